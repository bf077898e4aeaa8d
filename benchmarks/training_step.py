"""Where does the time of a LeNet-5 training step go? Its convolutions alone are the lower limit.

CPU time of this process, because other work on the machine distorts it less than wall time.

    OMP_NUM_THREADS=1 python benchmarks/training_step.py            the parts of a step
    OMP_NUM_THREADS=1 python benchmarks/training_step.py layouts    channels_last and NCHW, three networks
    OMP_NUM_THREADS=1 python benchmarks/training_step.py precision  float32 and bfloat16, three networks and PGD-AT
    OMP_NUM_THREADS=1 python benchmarks/training_step.py memory 10  what a step of ResNet-8 needs, its batch in 10 parts
"""

import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy
from torch.utils.data import DataLoader, Dataset

from excite import data, models
from excite.data.batches import epoch_batches
from excite.objectives import NFGSM, PGDAT, Objective, Trades, standard_loss
from excite.precision import Precision
from excite.training import descend, keep_freed_memory

BATCH, STEPS, ROUNDS = 64, 20, 25
Shape = tuple[int, int, int]
Case = tuple[Objective, str, Shape, int, int, int]  # network, image shape, batch size, steps, rounds
STANDARD: list[Case] = [
    (standard_loss, "lenet5", (1, 28, 28), 128, STEPS, 12),
    (standard_loss, "resnet20", (3, 32, 32), 128, 1, 12),
    (standard_loss, "resnet8", (3, 32, 32), 1000, 1, 6),
]
ADVERSARIAL: list[Case] = [(objective, "resnet8", (3, 32, 32), 128, 1, 6) for objective in (NFGSM(), PGDAT(), Trades())]
LAYOUTS = {"channels_last": torch.channels_last, "NCHW": torch.contiguous_format}


class PlainDataset(Dataset[tuple[Tensor, int]]):
    """Returns one float image at a time, as in training.py."""

    def __init__(self, split: data.Split) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.split.images[index].float() / 255, int(self.split.labels[index])


def milliseconds(works: dict[str, Callable[[], object]], steps: int = STEPS, rounds: int = ROUNDS) -> dict[str, float]:
    """Milliseconds per step of each function, which does `steps` steps; measured in turn, best round."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            started = time.process_time()
            work()
            best[name] = min(best[name], 1000 * (time.process_time() - started) / steps)
    return best


def repeated(once: Callable[[], object]) -> Callable[[], None]:
    def work() -> None:
        for _ in range(STEPS):
            once()

    return work


def convolutions(model: models.LeNet5, x: Tensor, layout: torch.memory_format) -> Callable[[], object]:
    """Forward and backward passes through both layers, with inputs of the shapes of a training step."""
    hidden = torch.rand(len(x), 6, 12, 12).contiguous(memory_format=layout).requires_grad_()
    calls = [(x, model.conv1), (hidden, model.conv2)]
    gradients = [torch.rand_like(conv2d(inputs, layer.weight, layer.bias)) for inputs, layer in calls]

    def once() -> None:
        for (inputs, layer), gradient in zip(calls, gradients, strict=True):
            wanted = [*layer.parameters(), *([inputs] if inputs.requires_grad else [])]
            torch.autograd.grad(conv2d(inputs, layer.weight, layer.bias), wanted, gradient)

    return once


def step_works(split: data.Split, layout: torch.memory_format) -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    model = models.LeNet5()
    model.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = partial(epoch_batches, split, batch_size=BATCH, seed=0, epoch=0, memory_format=layout)
    x, y = next(batches())

    def differentiate() -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]

    return {
        "a whole step": lambda: list(descend(model, islice(batches(), STEPS), standard_loss, optimizer)),
        "its convolutions alone": repeated(convolutions(model, x, layout)),
        "all layers, loss and gradient": repeated(differentiate),
        "making the batch": lambda: list(islice(batches(), STEPS)),
        "the optimizer's step": repeated(optimizer.step),
    }


def plain_work(split: data.Split) -> Callable[[], object]:
    torch.manual_seed(0)
    model: nn.Module = models.LeNet5()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(PlainDataset(split), batch_size=BATCH, shuffle=True)

    def work() -> None:
        for x, y in islice(loader, STEPS):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return work


def whole_steps(
    name: str,
    shape: tuple[int, int, int],
    size: int,
    steps: int,
    *,
    layout: torch.memory_format = torch.channels_last,
    precision: Precision = "float32",
    objective: Objective = standard_loss,
    at_once: int | None = None,
) -> Callable[[], object]:
    torch.manual_seed(0)
    model = models.create(name, input_shape=shape).train()
    model.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch = torch.rand(size, *shape).contiguous(memory_format=layout), torch.randint(10, (size,))
    return lambda: list(descend(model, [batch] * steps, objective, optimizer, precision=precision, at_once=at_once))


def compare(option: str, variants: Mapping[str, Any], cases: Iterable[Case]) -> None:
    """Time whole steps with each of two values of the option."""
    keep_freed_memory()
    for objective, name, shape, size, steps, rounds in cases:
        works = {
            key: whole_steps(name, shape, size, steps, objective=objective, **{option: value})
            for key, value in variants.items()
        }
        taken = milliseconds(works, steps, rounds)
        (first, slow), (second, fast) = sorted(taken.items(), key=lambda pair: -pair[1])
        title = getattr(objective, "title", "standard training")
        print(
            f"{title}, {name}, batch {size}: {first} {slow:.2f} ms, {second} {fast:.2f} ms a step; {second} is "
            f"{slow / fast:.2f} × as fast",
            flush=True,
        )


def memory(n_parts: int) -> None:
    """Print by how much two steps raise the peak memory of this process."""
    keep_freed_memory()
    work = whole_steps("resnet8", (3, 32, 32), 1000, 2, at_once=1000 // n_parts)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    risen = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"ResNet-8, batch 1000 in {n_parts} parts: {risen:.0f} MB")


def parts() -> None:
    split = data.load("mnist-sample").train
    plain_step = plain_work(split)
    before = milliseconds({"a plain loop's step": plain_step})
    keep_freed_memory()
    works = {"with freed memory kept: a plain loop's step": plain_step} | {
        f"{name}: {part}": work for name, layout in LAYOUTS.items() for part, work in step_works(split, layout).items()
    }
    taken = before | milliseconds(works)
    plain = taken["a plain loop's step"]
    print(
        f"LeNet-5, batch {BATCH}, one thread, milliseconds of processor time per step, best of {ROUNDS} rounds in turns"
    )
    for name, each in taken.items():
        print(f"  {name:46} {each:6.2f}   {plain / each:6.2f} × the plain step's speed")


if __name__ == "__main__":
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["layouts"]:
            compare("layout", LAYOUTS, STANDARD)
        case ["precision"]:
            compare("precision", {"float32": "float32", "bfloat16": "bf16"}, [*STANDARD, *ADVERSARIAL])
        case ["memory", n_parts]:
            memory(int(n_parts))
        case _:
            parts()
