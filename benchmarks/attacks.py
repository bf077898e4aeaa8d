"""Are our attacks faster than foolbox and pyautoattack called directly, at the same verdicts?

    python benchmarks/attacks.py verdicts    every example's verdict against the direct call (an hour and more)
    python benchmarks/attacks.py speed       ratios, each round measuring all of them in turn (a quarter of an hour)
    python benchmarks/attacks.py tricks      what folding, channels_last and torch.compile bring, one by one
    python benchmarks/attacks.py fooled      AutoAttack where most fall at once and where most withstand, and verdicts
    python benchmarks/attacks.py curve       four radii in one evaluation against four evaluations
    python benchmarks/attacks.py shards      two processes against one, and against one with two threads
    python benchmarks/attacks.py trust       what the trust checks add to an evaluation of 1,000 images

Needs CIFAR-10 and, for `speed`, foolbox (`pip install excite[bench]`). The ResNet-18 is the one pyautoattack ships.
Networks of ours are trained at their first use, for a few minutes, and kept beside the data.
"""

import argparse
import collections
import copy
import importlib.util
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyautoattack
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from excite import attacks, data, models
from excite.attacks import Attack, fast_inference
from excite.attacks.fast_model import fold
from excite.evaluation import Evaluation, evaluate
from excite.objectives import Objective, standard_loss
from excite.objectives.pgd_at import PGDAT
from excite.training import descend

EPS, STEP = 1 / 255, 0.1 / 255
Direct = Callable[[nn.Module, Tensor, Tensor], Tensor]


def resnet18() -> nn.Module:
    folder = Path(pyautoattack.__file__).parent / "examples"
    spec = importlib.util.spec_from_file_location("pyautoattack_resnet", folder / "resnet.py")
    assert spec is not None
    assert spec.loader is not None
    definition = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(definition)
    model: nn.Module = definition.ResNet18()
    model.load_state_dict(torch.load(folder / "model_test.pt", weights_only=True, map_location="cpu"))
    return model.eval()


def trained(name: str, *, epochs: int, objective: Objective = standard_loss) -> nn.Module:
    """A small network of ours after a few passes over 10,000 images; adversarially, if the objective is."""
    torch.manual_seed(0)
    model = models.create(name)
    kind = "plain" if objective is standard_loss else "robust"
    kept = data.data_directory() / "benchmarks" / f"{name}-{epochs}-{kind}.pt"
    if kept.exists():
        model.load_state_dict(torch.load(kept, weights_only=True))
        return model.eval()
    train = data.load("cifar10").train
    x, y = train.floats()[:10_000], train.labels[:10_000]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(epochs):
        order = torch.split(torch.randperm(len(x)), 128)
        collections.deque(descend(model, ((x[batch], y[batch]) for batch in order), objective, optimizer), maxlen=0)
    kept.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), kept)
    return model.eval()


def robust_resnet8() -> nn.Module:
    """By one-step adversarial training within 4/255."""
    return trained("resnet8", epochs=3, objective=PGDAT(eps=4 / 255, step=5 / 255, steps=1, random_start=True))


def test_images(count: int) -> tuple[Tensor, Tensor]:
    test = data.load("cifar10").test
    return test.floats()[:count], test.labels[:count]


def plain_pgd(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x_adv = x.clone()
    for _ in range(20):
        x_adv.requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(model(x_adv), y, reduction="sum"), x_adv)
        with torch.no_grad():
            x_adv = (x + (x_adv + STEP * gradient.sign() - x).clamp(-EPS, EPS)).clamp(0, 1)
    return x_adv.detach()


def direct_autoattack(members: list[str] | None, *, eps: float = EPS, shorter: bool = False) -> Direct:
    """The package called as its documentation shows; `shorter` takes a tenth of its iterations and queries."""

    def run(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        version = "standard" if members is None else "custom"
        adversary = pyautoattack.AutoAttack(model, attacks=members, eps=eps, seed=0, version=version)
        adversary.apgd.n_restarts = 1  # "custom" begins with five
        if shorter:
            for attack in (adversary.apgd, adversary.apgd_targeted):
                attack.n_iter = 10
                attack.n_iter_2, attack.n_iter_min, attack.size_decr = 2, 1, 1
            adversary.fab.n_iter = 10
            adversary.square.n_queries = 500
        x_adv: Tensor = adversary.run_standard_evaluation(x, y, batch_size=len(x))[0]
        return x_adv

    return run


def foolbox_pgd(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    import foolbox

    attack = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=20, random_start=False)
    x_adv: Tensor = attack.run(foolbox.PyTorchModel(model, bounds=(0, 1)), x, y, epsilon=EPS)
    return x_adv


def verdicts(only: str) -> None:
    ours = {member: attacks.create(member, eps=EPS) for member in ("apgd-ce", "apgd-t")}
    standard = attacks.create("autoattack", eps=EPS)
    resnet8 = trained("resnet8", epochs=6)
    cases: list[tuple[str, nn.Module, int, Attack, Direct]] = [
        ("ResNet-18 PGD-20", resnet18(), 200, attacks.create("pgd", eps=EPS, step=STEP), plain_pgd),
        ("ResNet-8 standard", resnet8, 200, standard, direct_autoattack(None)),
        ("ResNet-18 APGD-CE", resnet18(), 100, ours["apgd-ce"], direct_autoattack(["apgd-ce"])),
        ("ResNet-18 APGD-T", resnet18(), 100, ours["apgd-t"], direct_autoattack(["apgd-t"])),
        ("ResNet-18 standard", resnet18(), 24, standard, direct_autoattack(None)),
    ]
    for name, model, count, attack, direct in cases:
        if only not in name:
            continue
        x, y = test_images(count)
        began = time.perf_counter()
        evaluation = evaluate(model, x, y, {"attack": attack}, batch_size=count, checks=False)
        halfway = time.perf_counter()
        x_adv = direct(model, x, y)
        with torch.no_grad():
            right = model(x_adv).argmax(1) == y
        ended = time.perf_counter()
        different = np.flatnonzero(right.numpy() != evaluation.outcomes("attack")).tolist()
        print(
            f"{name}, {count} images: clean {evaluation.clean.value:.1%}, robust {evaluation.worst.value:.1%}, direct "
            f"{float(right.float().mean()):.1%}, verdicts that differ: {different or 'none'}; "
            f"{halfway - began:.0f} s against {ended - halfway:.0f} s",
            flush=True,
        )


def in_turn(cases: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """The fastest round of each case, in CPU seconds; they take turns, so that a busy machine is busy for all."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, run in cases.items():
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    return {name: min(values) for name, values in seconds.items()}


def gradient(model: nn.Module, x: Tensor, y: Tensor, *, times: int = 1) -> None:
    images = x.detach().requires_grad_()
    for _ in range(times):
        torch.autograd.grad(cross_entropy(model(images), y, reduction="sum"), images)


def speed(only: str) -> None:
    for name, model, count in (("ResNet-18", resnet18(), 32), ("ResNet-20", trained("resnet20", epochs=2), 100)):
        x, y = test_images(count)
        pgd = attacks.create("pgd", eps=EPS, step=STEP)
        few = test_images(24)
        shorter = attacks.create("autoattack", eps=EPS, iterations=10, queries=500)
        cases: dict[str, dict[str, Callable[[], object]]] = {
            f"{name}, PGD-20 on {count} images": {
                "foolbox": partial(foolbox_pgd, model, x, y),
                "ten plain lines": partial(plain_pgd, model, x, y),
                "ours, every example to the end": partial(attacks.pgd, model, x, y, eps=EPS, step=STEP),
                "ours, fooled examples leave": partial(pgd, model, x, y, None),
                "limit: 20 gradients of the fast model": partial(gradient, fast_inference(model), x, y, times=20),
            },
            f"{name}, a tenth of AutoAttack standard on 24 images": {
                "pyautoattack": partial(direct_autoattack(None, shorter=True), model, *few),
                "ours": partial(evaluate, model, *few, {"attack": shorter}, batch_size=24, checks=False),
            },
        }
        for title, candidates in cases.items():
            if only in title:
                print_ratios(title, in_turn(candidates, rounds=2))


def fooled(only: str) -> None:
    """The whole of AutoAttack, where images fall at once and where most withstand."""
    for name, model, eps, count in (
        ("ResNet-18, not robust,", resnet18, 8 / 255, 16),
        ("ResNet-18, not robust,", resnet18, 4 / 255, 16),
        ("ResNet-8, adversarially trained,", robust_resnet8, 2 / 255, 40),
    ):
        title = f"{name} AutoAttack standard at {255 * eps:g}/255, {count} images"
        if only not in title:
            continue
        network, (x, y) = model(), test_images(count)
        began = time.process_time()
        theirs = direct_autoattack(None, eps=eps)(network, x, y)
        halfway = time.process_time()
        attack = attacks.create("autoattack", eps=eps)
        ours = evaluate(network, x, y, {"attack": attack}, batch_size=count, checks=False)
        ended = time.process_time()
        print_ratios(title, {"pyautoattack": halfway - began, "ours": ended - halfway})
        with torch.no_grad():
            different = int(((network(theirs).argmax(1) == y) != ours.outcomes("attack")).sum())
        print(
            f"  {ours.clean.correct} right, {ours.worst.correct} withstand; verdicts that differ: {different}",
            flush=True,
        )


def curve(only: str) -> None:
    """Radii at which most fall, and radii at which most withstand; beside four evaluations, and the dearest of them."""
    model, count = trained("resnet20", epochs=2), 200
    x, y = test_images(count)
    for title, radii in (
        ("ResNet-20 falls early, ε = 1, 2, 4, 8/255", (1 / 255, 2 / 255, 4 / 255, 8 / 255)),
        ("ResNet-20 withstands long, ε = 0.1, 0.2, 0.4, 0.8/255", (0.1 / 255, 0.2 / 255, 0.4 / 255, 0.8 / 255)),
    ):
        effort = {"members": ("apgd-ce", "apgd-t"), "iterations": 20}
        for kind, attack in (
            ("PGD-20", attacks.create("pgd", eps=radii[-1], step=radii[-1] / 8)),
            ("APGD-CE + APGD-T, 20 iterations", attacks.create("autoattack", eps=radii[-1], **effort)),
        ):
            if only not in f"{title}, {kind}":
                continue
            judge = partial(evaluate, model, x, y, batch_size=100, checks=False)
            seconds, apart = [], []
            for eps in radii:
                began = time.process_time()
                apart.append(judge({"attack": attack.at(eps)}).outcomes("attack"))
                seconds.append(time.process_time() - began)
            began = time.process_time()
            together = judge({"attack": attack}, eps=radii).curves["attack"]
            spent = time.process_time() - began
            print_ratios(f"{title}, {kind}", {"four evaluations": sum(seconds), "a curve": spent})
            print(f"  {spent / max(seconds):.2f} times the dearest of the four")
            verdicts = [together.robust(eps) for eps in radii]
            print(f"  of {count} withstand {[int(v.sum()) for v in verdicts]}, apart {[int(v.sum()) for v in apart]}")
            fewer, more = (
                [int((a & ~b).sum()) for a, b in pairs]
                for pairs in (zip(apart, verdicts, strict=True), zip(verdicts, apart, strict=True))
            )
            print(f"  withstand apart but not here {fewer}, here but not apart {more}", flush=True)


def shards(only: str) -> None:
    """Wall time, and CPU time with that of the workers: on a busy machine only the latter says anything."""
    model = trained("resnet20", epochs=2)
    effort = {"iterations": 10, "queries": 500}
    for title, count, batch, attack in (
        ("PGD-20", 1500, 50, attacks.create("pgd", eps=EPS, step=STEP)),
        ("a tenth of AutoAttack standard", 48, 4, attacks.create("autoattack", eps=EPS, **effort)),
    ):
        if only not in title:
            continue
        x, y = test_images(count)
        print(f"\nResNet-20, {title} on {count} images, batches of {batch}")
        found: list[Evaluation] = []
        walls: list[float] = []
        for name, threads, workers in (
            ("one process, one thread", 1, 1),
            ("one process, two threads", 2, 1),
            ("two processes, one thread each", 1, 2),
        ):
            torch.set_num_threads(threads)
            wall, cpu = time.perf_counter(), cpu_seconds()
            found.append(evaluate(model, x, y, {"a": attack}, batch_size=batch, checks=False, workers=workers))
            walls.append(time.perf_counter() - wall)
            cpu = cpu_seconds() - cpu
            print(f"  {name:32} wall {walls[-1]:8.2f} s   {walls[0] / walls[-1]:5.2f}×   CPU {cpu:8.2f} s", flush=True)
        torch.set_num_threads(1)
        same = np.array_equal(found[0].outcomes("a"), found[-1].outcomes("a"))
        print(f"  two processes against one with two threads: {walls[1] / walls[2]:.2f}×")
        words = "the same verdicts" if same else "OTHER VERDICTS"
        print(f"  {words} from one and two processes: {found[0].worst.correct} withstand", flush=True)


def trust(only: str) -> None:
    """The share of an evaluation that its trust checks are."""
    for name, network, eps in (
        ("ResNet-20", partial(trained, "resnet20", epochs=2), 1 / 255),
        ("adversarially trained ResNet-8", robust_resnet8, 2 / 255),
    ):
        if only not in name:
            continue
        attack = attacks.create("pgd", eps=eps, step=eps / 8)
        result, attacking, checking = attacked_and_checked(network(), attack, 1000)
        print(f"\n{name}, 1,000 images, {attack}: {result.worst.correct} withstand, flags {result.warnings or 'none'}")
        print(f"  {attacking:.2f} s of attacks, {checking:.2f} s of checks: {checking / attacking:.1%}", flush=True)


def attacked_and_checked(model: nn.Module, attack: Attack, images: int) -> tuple[Evaluation, float, float]:
    """CPU seconds until the last batch is judged, and after it."""
    moments = [time.process_time()]
    x, y = test_images(images)
    result = evaluate(model, x, y, {"attack": attack}, on_progress=lambda *_: moments.append(time.process_time()))
    return result, moments[-1] - moments[0], time.process_time() - moments[-1]


def cpu_seconds() -> float:
    """Of this process and of those it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def tricks(only: str) -> None:
    for name, model, count in (("ResNet-18", resnet18(), 32), ("ResNet-20", models.create("resnet20").eval(), 100)):
        if only not in name:
            continue
        x, y = test_images(count)
        folded = fold(model)
        assert isinstance(folded, nn.Module)
        for parameter in folded.parameters():
            parameter.data = parameter.data.contiguous()
        last = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x_last = x.contiguous(memory_format=torch.channels_last)
        compiled = fast_inference(model, compile=True)
        gradient(compiled, x, y)
        print_ratios(
            f"{name}, forward and input gradient of {count} images",
            in_turn(
                {
                    "plain": partial(gradient, model, x, y),
                    "folded": partial(gradient, folded, x, y),
                    "channels_last": partial(gradient, last, x_last, y),
                    "folded and channels_last": partial(gradient, fast_inference(model), x, y),
                    "and compiled": partial(gradient, compiled, x, y),
                },
                rounds=4,
            ),
        )


def print_ratios(title: str, seconds: dict[str, float]) -> None:
    reference = next(iter(seconds.values()))
    print(f"\n{title}")
    for name, value in seconds.items():
        print(f"  {name:40} {value:8.2f} s  {reference / value:5.2f}×", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = {
        "verdicts": verdicts,
        "speed": speed,
        "tricks": tricks,
        "fooled": fooled,
        "curve": curve,
        "shards": shards,
        "trust": trust,
    }
    parser.add_argument("what", nargs="+", choices=sections)
    parser.add_argument("--only", default="", help="a part of a case's name, e.g. APGD-T or 'ResNet-18, a tenth'")
    parser.add_argument("--threads", type=int, default=1, help="of torch; waiting threads burn CPU time too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for what in arguments.what:
        sections[what](arguments.only)
