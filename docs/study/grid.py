"""Train each network of the study over a grid of rates, attack it, and store what the estimators need.

    OMP_NUM_THREADS=1 python docs/study/grid.py [--seed 1] [NETWORK …]

Rows are appended to runs.csv (accuracies; `robust` is the worst case over the losses that PGD climbs), losses.csv (the
first losses, for the short runs of `edge`) and traces/. Existing rows are not computed again, so an interrupted study
continues where it stopped.
"""

import argparse
import csv
import math
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from excite.data.batches import epoch_batches
from excite.data.dataset import unit_floats
from excite.evaluation import evaluate
from excite.runs import load
from excite.runs.assemble import Parts, assemble
from excite.trace import Recorder
from excite.training.collapse import diagnose
from excite.training.loop import descend

HERE = Path(__file__).parent
RUNS, LOSSES, TRACES = HERE / "runs.csv", HERE / "losses.csv", HERE / "traces"
RUN_COLUMNS = ["network", "seed", "rate", "steps", "problem", "initial_loss", "final_loss"]
RUN_COLUMNS += ["clean", "cross_entropy_alone", "robust", "robust_2x", "robust_3x", "cpu_seconds"]
LOSS_COLUMNS = ["network", "seed", "rate", "losses"]
MOMENTS_PER_EPOCH = 4  # the trainings are short; a moment per epoch would leave Algorithm 1 nothing to draw from
BASELINES = (0.02, 0.05, 0.1)
LENET_PGD = "step = 0.01, steps = 40, random_start = true"


@dataclass(frozen=True)
class Network:
    title: str
    overrides: tuple[str, ...]
    rates: tuple[float, ...]  # in the order of their importance
    stepped: bool  # ×0.1 in the last quarter
    probe: int
    curvature_iterations: int
    curvature_moments: int  # per training
    curvature_rates: tuple[float, ...]
    slopes_per_moment: int
    edge_steps: int
    kept_losses: int


def _lenet(activation: str) -> Network:
    attacks = ", ".join(
        f'"{eps} {loss}" = {{ kind = "pgd", eps = {eps}, loss = "{loss}", {LENET_PGD} }}'
        for eps in (0.1, 0.2, 0.3)
        for loss in ("cross_entropy", "margin")  # the activated logits hide gradients from the first
    )
    return Network(
        title=f"LeNet-5, {activation}",
        overrides=(
            "data.name=mnist",
            "data.test_examples=1000",
            f'model.options={{ activation = "{activation}" }}',
            "training.epochs=5",
            f"attacks={{ {attacks} }}",
        ),
        rates=(0.1, 0.45, 0.2, 0.05, 0.02, 0.3, 0.6, 0.9),
        stepped=False,
        probe=256,
        curvature_iterations=20,
        curvature_moments=5,
        curvature_rates=(*BASELINES, 0.45),
        slopes_per_moment=5,
        edge_steps=480,
        kept_losses=960,
    )


def _resnet(*, batch_norm: bool, momentum: float, rates: tuple[float, ...]) -> Network:
    return Network(
        title=f"ResNet-8 {'with' if batch_norm else 'without'} batch-norm, momentum {momentum}",
        overrides=(
            "data.name=cifar10",
            "data.train_examples=10000",
            "data.test_examples=1000",
            "data.augment=crop-flip",
            "model.name=resnet8",
            f"model.options={{ batch_norm = {str(batch_norm).lower()} }}",
            "training.epochs=4",
            "training.batch_size=128",
            f"training.momentum={momentum}",
            'attacks={ "1/255" = { kind = "pgd", eps = "1/255", step = "1/2550", steps = 20 } }',
        ),
        rates=rates,
        stepped=True,
        probe=256,
        curvature_iterations=8,
        curvature_moments=2,
        curvature_rates=(0.1,),
        slopes_per_moment=3,
        edge_steps=80 if batch_norm else 160,
        kept_losses=316,
    )


NETWORKS = {
    "lenet-relu": _lenet("relu"),
    "lenet-tanh": _lenet("tanh"),
    "resnet-bn-0.9": _resnet(batch_norm=True, momentum=0.9, rates=(0.1, 0.4, 0.2, 0.8, 0.02, 0.05, 1.6)),
    "resnet-bn-0": _resnet(batch_norm=True, momentum=0.0, rates=(0.1, 0.8, 3.2, 1.6, 0.4, 0.02, 0.05, 6.4)),
    "resnet-plain-0.9": _resnet(batch_norm=False, momentum=0.9, rates=(0.1, 0.05, 0.02, 0.01, 0.005, 0.2)),
    "resnet-plain-0": _resnet(batch_norm=False, momentum=0.0, rates=(0.1, 0.4, 0.2, 0.05, 0.8, 0.02)),
}


def parts_of(name: str, seed: int) -> Parts:
    return assemble(load("mnist-sample", overrides=[*NETWORKS[name].overrides, f"seed={seed}"]), device="cpu")


def rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, columns: list[str], row: dict[str, object]) -> None:
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def trace_path(name: str, seed: int, rate: float) -> Path:
    return TRACES / f"{name}-seed{seed}-{rate:g}.safetensors"


def train(name: str, parts: Parts, rate: float) -> None:
    """One training of the grid: a row of each file."""
    network, seed, started = NETWORKS[name], parts.experiment.seed, time.process_time()
    model = parts.new_model().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = parts.new_optimizer(model, rate)
    batch_size, epochs = parts.experiment.training.batch_size, parts.experiment.training.epochs
    steps_per_moment = math.ceil(parts.steps_per_epoch / MOMENTS_PER_EPOCH)
    every = epochs * MOMENTS_PER_EPOCH // network.curvature_moments if rate in network.curvature_rates else 0
    recorder = Recorder(
        model,
        optimizer,
        probe=(unit_floats(parts.train.images[: network.probe]), parts.train.labels[: network.probe]),
        objective=parts.objective,
        slopes_per_epoch=network.slopes_per_moment,
        steps_per_epoch=steps_per_moment,
        curvature_every=every,
        curvature_iterations=network.curvature_iterations,
        batch_size=batch_size,
        seed=seed,
    )
    losses: list[float] = []
    epoch_losses: list[float] = []
    problem = None
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = rate * (0.1 if network.stepped and epoch >= 0.75 * epochs else 1.0)
        model.train()
        batches = epoch_batches(
            parts.train,
            batch_size=batch_size,
            seed=seed,
            epoch=epoch,
            augment=parts.augment,
            memory_format=torch.channels_last,
        )
        for loss in descend(model, batches, parts.objective, optimizer, recorder):
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                break
            if len(losses) % steps_per_moment == 0:
                recorder.record()
        epoch_losses.append(math.fsum(losses[-parts.steps_per_epoch :]) / min(parts.steps_per_epoch, len(losses)))
        problem = diagnose(epoch_losses, losses[0])
        if problem:
            break
    recorder.trace.save(trace_path(name, seed, rate))
    result: dict[str, object] = {}
    if not problem:
        x, y = parts.test.floats(), parts.test.labels
        found = evaluate(model.eval(), x, y, parts.attacks, seed=seed, checks=False)
        robust = [
            torch.stack([found.outcomes(attack) for attack in same_eps]).all(0).double().mean().item()
            for _, same_eps in groupby(parts.attacks, key=lambda name: name.split()[0])
        ]
        result = dict(zip(["robust", "robust_2x", "robust_3x"], robust, strict=False))
        result |= {"clean": found.clean.value, "cross_entropy_alone": next(iter(found.robust.values())).value}
    keep_losses(name, seed, rate, losses[: network.kept_losses])
    row: dict[str, object] = {
        "network": name,
        "seed": seed,
        "rate": f"{rate:g}",
        "steps": len(losses),
        "problem": problem or "",
        "initial_loss": f"{losses[0]:.4g}",
        "final_loss": f"{epoch_losses[-1]:.4g}",
        "cpu_seconds": f"{time.process_time() - started:.1f}",
    }
    append(RUNS, RUN_COLUMNS, row | result)
    print({key: value for key, value in (row | result).items() if value != ""}, flush=True)


def keep_losses(name: str, seed: int, rate: float, losses: list[float]) -> None:
    text = " ".join(f"{loss:.4g}" for loss in losses)
    append(LOSSES, LOSS_COLUMNS, {"network": name, "seed": seed, "rate": f"{rate:.6g}", "losses": text})


def main(names: list[str], seed: int) -> None:
    torch.set_num_threads(1)
    for name in names or NETWORKS:
        parts = parts_of(name, seed)
        for rate in NETWORKS[name].rates:
            done = {(row["network"], row["seed"], row["rate"]) for row in rows(RUNS)}
            if (name, str(seed), f"{rate:g}") not in done:
                train(name, parts, rate)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.networks, arguments.seed)
