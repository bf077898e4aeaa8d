"""Which method picks the best learning rate within the same number of steps: ours, or common packages?

    python -m benchmarks.rates run [NETWORK …] [--minutes 10]   # adds what is missing in results/rates/*.csv
    python -m benchmarks.rates report                            # tables and figure of docs/lab/rates.md

Requires the `bench` extra. docs/lab/rates.md explains the design.
"""

import argparse
import csv
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.rate_pickers import CUSTOMARY, PICKERS, Pick, with_model
from benchmarks.regret import Training
from excite.data.batches import epoch_batches
from excite.evaluation import evaluate
from excite.lipschitz.online import OnlineRate
from excite.runs import load
from excite.runs.assemble import Parts, assemble
from excite.training import descend

RESULTS = Path(__file__).parents[1] / "results" / "rates"
PICKS, TRAININGS = RESULTS / "picks.csv", RESULTS / "trainings.csv"
RATES = 12  # of the grid, √2 apart
GRID, ONLINE, BY_ITSELF = "grid", "online", ("schedulefree SGD", "dadaptation SGD", "prodigyopt (Adam family)")
BUDGET = 2.0  # for the search, in whole trainings
BEGIN = 0.2  # where the online rate begins, as a multiple of the customary rate
SEEDS, MORE_SEEDS = (0, 1, 2), (3, 4)  # for all methods; for ours only, if the network asks for it


@dataclass(frozen=True)
class Network:
    title: str
    overrides: tuple[str, ...]
    smallest: float  # of the grid
    build: Callable[[], nn.Module] | None = None
    more_seeds: bool = False

    @property
    def grid(self) -> list[float]:
        return [self.smallest * math.sqrt(2) ** number for number in range(RATES)]

    def parts(self, seed: int) -> Parts:
        parts = assemble(load("mnist-sample", overrides=[*COMMON, *self.overrides, f"seed={seed}"]), device="cpu")
        return with_model(parts, self.build) if self.build else parts


COMMON = ("data.train_examples=2000", "data.test_examples=400", "training.batch_size=32", "training.epochs=10")
MOMENTUM = ("training.momentum=0.9", 'training.schedule={ kind = "step", rate = 0.1, milestones = [8] }')


def _attack(eps: str, step: str) -> str:
    options = f'kind = "pgd", eps = "{eps}", step = "{step}", steps = 20, random_start = true, loss = "margin"'
    return f'attacks={{ "margin PGD" = {{ {options} }} }}'


def _lenet(activation: str) -> str:
    return f'model.options={{ activation = "{activation}" }}'


def _perceptron(activation: type[nn.Module], *, batch_norm: bool = False) -> Callable[[], nn.Module]:
    """784-128-128-10."""

    def build() -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs in (784, 128):
            layers += [nn.Linear(inputs, 128), *([nn.BatchNorm1d(128)] if batch_norm else []), activation()]
        return nn.Sequential(*layers, nn.Linear(128, 10))

    return build


MNIST, FASHION = ("data.name=mnist", _attack("1/10", "1/100")), ("data.name=fashion-mnist", _attack("8/255", "1/255"))
NETWORKS = {
    "perceptron-tanh": Network(
        "perceptron tanh, MNIST", MNIST, smallest=0.02, build=_perceptron(nn.Tanh), more_seeds=True
    ),
    "perceptron-relu": Network(
        "perceptron ReLU, Fashion-MNIST, momentum",
        (*FASHION, *MOMENTUM),
        smallest=0.005,
        build=_perceptron(nn.ReLU),
        more_seeds=True,
    ),
    "perceptron-bn": Network(
        "perceptron batch-norm, Fashion-MNIST, momentum",
        (*FASHION, *MOMENTUM),
        smallest=0.02,
        build=_perceptron(nn.ReLU, batch_norm=True),
        more_seeds=True,
    ),
    "lenet-relu": Network("LeNet-5 ReLU, MNIST", (*MNIST, _lenet("relu")), smallest=0.02, more_seeds=True),
    "lenet-fashion": Network(
        "LeNet-5 ReLU, Fashion-MNIST, momentum", (*FASHION, _lenet("relu"), *MOMENTUM), smallest=0.0025
    ),
}


def train(parts: Parts, model: nn.Module, optimizer: Optimizer, *, shape: Callable[[int], float]) -> Iterator[Tensor]:
    """The same training for every method; yields the losses. `shape` is the rate by epoch, up to a factor."""
    training, seed = parts.experiment.training, parts.experiment.seed
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for epoch in range(training.epochs):
        for group in optimizer.param_groups:
            group["lr"] *= shape(epoch) / shape(max(epoch - 1, 0))
        batches = epoch_batches(
            parts.train, batch_size=training.batch_size, seed=seed, epoch=epoch, memory_format=torch.channels_last
        )
        yield from descend(model.train(), batches, parts.objective, optimizer)


def constant(epoch: int) -> float:  # noqa: ARG001
    return 1.0


def judge(parts: Parts, model: nn.Module) -> tuple[float, float]:
    """Clean and robust accuracy in percent; 0 if the weights are not finite."""
    if not all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values()):
        return 0.0, 0.0
    x, y = parts.test.floats(), parts.test.labels
    found = evaluate(model.eval(), x, y, parts.attacks, seed=parts.experiment.seed, checks=False)
    return 100 * found.clean.value, 100 * found.worst.value


def at_rate(parts: Parts, network: str, pick: Pick) -> Training:
    model = parts.new_model()
    for loss in train(parts, model, parts.new_optimizer(model, pick.rate), shape=parts.schedule):
        if not loss.isfinite():
            break
    return Training(
        network, parts.experiment.seed, pick.method, pick.rate, *judge(parts, model), pick.steps, parts.whole_training
    )


def online(parts: Parts, network: str) -> Training:
    """Find the rate during the training itself; steps that were rolled back count as search steps."""
    model = parts.new_model()
    optimizer = parts.new_optimizer(model, BEGIN * CUSTOMARY)
    rate = OnlineRate(model, optimizer, steps=parts.whole_training)
    for loss in train(parts, model, optimizer, shape=parts.schedule):
        rate.after_step(loss)
    ladder = rate.ladder
    print(f"  held {_rates(ladder.good)}; broke {_rates(ladder.breaks)}; final rate {ladder.rate:.3g}", flush=True)
    return Training(
        network,
        parts.experiment.seed,
        ONLINE,
        ladder.rate,
        *judge(parts, model),
        ladder.lost,
        parts.whole_training - ladder.lost,
    )


def by_itself(parts: Parts, network: str, method: str) -> Training:
    """Optimizers that need no rate, with their authors' settings: lr 1, and the schedule if they take one."""
    import dadaptation
    import prodigyopt
    import schedulefree

    model, momentum = parts.new_model(), parts.experiment.training.momentum
    schedule_free = method == BY_ITSELF[0]
    optimizer: Optimizer
    if schedule_free:
        optimizer = schedulefree.SGDScheduleFree(model.parameters(), warmup_steps=parts.whole_training // 20)
        optimizer.train()  # type: ignore[attr-defined]
    elif method == BY_ITSELF[1]:
        optimizer = dadaptation.DAdaptSGD(model.parameters(), momentum=momentum)
    else:
        optimizer = prodigyopt.Prodigy(model.parameters())
    for loss in train(parts, model, optimizer, shape=constant if schedule_free else parts.schedule):
        if not loss.isfinite():
            break
    if schedule_free:
        optimizer.eval()  # type: ignore[attr-defined]
        with torch.no_grad():  # recompute batch-norm statistics for the averaged weights
            for images, _ in epoch_batches(parts.train, batch_size=32, seed=0, epoch=0):
                model.train()(images)
    return Training(network, parts.experiment.seed, method, None, *judge(parts, model), 0, parts.whole_training)


def run(names: Sequence[str], minutes: float) -> None:
    """Run what is missing, seed by seed, until the time is over; the current training is completed."""
    torch.set_num_threads(1)
    ends = time.monotonic() + 60 * minutes
    for seed in (*SEEDS, *MORE_SEEDS):
        for name in names:
            network = NETWORKS[name]
            if seed in SEEDS or network.more_seeds:
                for training in _missing(name, network, seed):
                    _append(TRAININGS, asdict(training))
                    print(training, flush=True)
                    if time.monotonic() > ends:
                        return


def _missing(name: str, network: Network, seed: int) -> Iterator[Training]:
    done = {(each.method, each.rate) for each in trainings() if (each.network, each.seed) == (name, seed)}
    methods = {method for method, _ in done}
    parts, every = network.parts(seed), seed in SEEDS
    if ONLINE not in methods:
        yield online(parts, name)
    for pick in _picks(name, parts, every):
        if pick.method not in methods:
            yield at_rate(parts, name, pick)
    for method in BY_ITSELF if every else ():
        if method not in methods:
            yield by_itself(parts, name, method)
    for rate in network.grid if every else ():
        if (GRID, float(f"{rate:.6g}")) not in done:
            yield at_rate(parts, name, Pick(GRID, float(f"{rate:.6g}"), 0))


def _picks(name: str, parts: Parts, every: bool) -> Iterator[Pick]:
    seed = parts.experiment.seed
    kept = [row for row in rows(PICKS) if (row["network"], row["seed"]) == (name, str(seed))]
    done = {row["picker"] for row in kept}
    for row in kept:
        yield Pick(row["method"], float(row["rate"]), int(row["steps"]), row["note"])
    for picker in PICKERS if every else PICKERS[:2]:
        if picker.__name__ not in done:
            started = time.process_time()
            for pick in picker(parts, round(BUDGET * parts.whole_training)):
                print(f"  {pick}, {time.process_time() - started:.0f} s", flush=True)
                _append(PICKS, {"network": name, "seed": seed, "picker": picker.__name__} | asdict(pick))
                yield pick


def rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def trainings() -> list[Training]:
    """All trainings without duplicates, which two processes may have written."""
    found = [
        Training(
            row["network"],
            int(row["seed"]),
            row["method"],
            float(row["rate"]) if row["rate"] else None,
            float(row["clean"]),
            float(row["robust"]),
            int(row["search_steps"]),
            int(row["steps"]),
        )
        for row in rows(TRAININGS)
    ]
    return list(dict.fromkeys(found))


def _append(path: Path, row: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})


def _rates(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:.3g}" for rate in rates) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--minutes", type=float, default=math.inf)
    arguments = parser.parse_args()
    if arguments.what == "run":
        run(arguments.networks or list(NETWORKS), arguments.minutes)
    else:
        from benchmarks.rates_report import report

        report()


if __name__ == "__main__":
    main()
