"""Where the time of one training step of LeNet-5 goes, beside the time of its convolutions alone, which is the limit.

Processor time of this process, so that a busy machine does not count; the least of several rounds. The parts are
measured one by one; what is left of the whole step is the loop itself.

    OMP_NUM_THREADS=1 python benchmarks/training_step.py
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy
from torch.utils.data import DataLoader
from training import PlainDataset

from excite import data, models
from excite.data.batches import epoch_batches
from excite.objectives import standard_loss
from excite.training import descend

BATCH, STEPS, ROUNDS = 64, 40, 12
LAYOUTS = {"channels_last": torch.channels_last, "NCHW": torch.contiguous_format}


def milliseconds(work: Callable[[], object], steps: int = STEPS) -> float:
    """Per step, of `work` that does `steps` of them."""
    work()
    times = []
    for _ in range(ROUNDS):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return 1000 * min(times) / steps


def repeated(once: Callable[[], object]) -> Callable[[], None]:
    def work() -> None:
        for _ in range(STEPS):
            once()

    return work


def convolutions(model: models.LeNet5, x: Tensor, layout: torch.memory_format) -> Callable[[], object]:
    """Forwards and backwards through both, with inputs of the shapes that a step gives them."""
    hidden = torch.rand(len(x), 6, 12, 12).contiguous(memory_format=layout).requires_grad_()
    calls = [(x, model.conv1), (hidden, model.conv2)]
    gradients = [torch.rand_like(conv2d(inputs, layer.weight, layer.bias)) for inputs, layer in calls]

    def once() -> None:
        for (inputs, layer), gradient in zip(calls, gradients, strict=True):
            wanted = [layer.weight, layer.bias, *([inputs] if inputs.requires_grad else [])]
            torch.autograd.grad(conv2d(inputs, layer.weight, layer.bias), wanted, gradient)

    return once


def step_parts(split: data.Split, layout: torch.memory_format) -> dict[str, float]:
    torch.manual_seed(0)
    model = models.LeNet5()
    model.to(memory_format=layout)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = partial(epoch_batches, split, batch_size=BATCH, seed=0, epoch=0, memory_format=layout)
    x, y = next(batches())

    def differentiate() -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]

    whole = milliseconds(lambda: list(descend(model, islice(batches(), STEPS), standard_loss, optimizer)))
    parts = {
        "the convolutions": milliseconds(repeated(convolutions(model, x, layout))),
        "making the batch": milliseconds(lambda: list(islice(batches(), STEPS))),
        "the optimizer's step": milliseconds(repeated(optimizer.step)),
    }
    parts["all other layers, the loss, autograd"] = milliseconds(repeated(differentiate)) - parts["the convolutions"]
    parts["the loop itself"] = whole - sum(parts.values())
    return {"a whole step": whole} | parts


def plain_step(split: data.Split) -> float:
    torch.manual_seed(0)
    model: nn.Module = models.LeNet5()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(PlainDataset(split, augment=False), batch_size=BATCH, shuffle=True)

    def work() -> None:
        for x, y in islice(cycle(loader), STEPS):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return milliseconds(work)


def main() -> None:
    torch.set_num_threads(1)
    split = data.load("mnist-sample").train
    plain = plain_step(split)
    print(f"LeNet-5, batch {BATCH}, one thread, milliseconds of processor time per step; a plain loop: {plain:.2f}")
    for name, layout in LAYOUTS.items():
        for part, taken in step_parts(split, layout).items():
            print(f"  {name:14} {part:38} {taken:6.2f}   {plain / taken:6.2f} × the plain step's speed", flush=True)


if __name__ == "__main__":
    main()
