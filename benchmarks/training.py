"""How many images per second does our loop train, compared with a plain DataLoader loop?

The plain loop is what most people write: a Dataset that converts one image at a time to a float tensor (with a random
crop and flip for CIFAR-10), a DataLoader, NCHW tensors, and the number of workers that is fastest. Both loops run in
turn in this process, and the best round of each counts.

    python benchmarks/training.py
"""

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from excite import data, models
from excite.data.augment import crop_flip, none
from excite.data.batches import epoch_batches
from excite.objectives import standard_loss
from excite.training import descend

ROUNDS = 3
Batches = Callable[[int], Iterator[tuple[Tensor, Tensor]]]


class PlainDataset(Dataset[tuple[Tensor, int]]):
    def __init__(self, split: data.Split, *, augment: bool) -> None:
        self.images, self.labels, self.augment = split.images, split.labels, augment

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index].float() / 255
        if self.augment:
            top, left = (int(offset) for offset in torch.randint(0, 9, (2,)))
            image = nn.functional.pad(image, (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
            if torch.rand(()) < 0.5:
                image = image.flip(-1)
        return image, int(self.labels[index])


def plain_batches(split: data.Split, batch_size: int, *, augment: bool, workers: int) -> Batches:
    loader = DataLoader(
        PlainDataset(split, augment=augment),
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return lambda _: iter(loader)


def our_batches(split: data.Split, batch_size: int, *, augment: bool) -> Batches:
    return lambda epoch: epoch_batches(
        split,
        batch_size=batch_size,
        seed=0,
        epoch=epoch,
        augment=crop_flip if augment else none,
        memory_format=torch.channels_last,
    )


class Loop:
    """A training; `run` trains one epoch and updates the best number of images per second."""

    def __init__(self, model: nn.Module, batches: Batches, *, channels_last: bool, compiled: bool = False) -> None:
        self.model = model
        if channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if compiled:
            self.model.compile()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.batches, self.best, self.epoch = batches, 0.0, 0

    def run(self) -> None:
        images, started = 0, time.perf_counter()
        for x, y in self.batches(self.epoch):
            for _ in descend(self.model, [(x, y)], standard_loss, self.optimizer):
                images += len(y)
        self.epoch += 1
        self.best = max(self.best, images / (time.perf_counter() - started))


def measure(title: str, name: str, split: data.Split, *, batch_size: int, augment: bool) -> None:
    channels, height, width = split.images.shape[1:]

    def new_model() -> nn.Module:
        torch.manual_seed(0)
        return models.create(name, input_shape=(channels, height, width))

    ours, plain = our_batches(split, batch_size, augment=augment), "plain DataLoader, "
    loops = {
        f"{plain}no workers": Loop(
            new_model(), plain_batches(split, batch_size, augment=augment, workers=0), channels_last=False
        ),
        f"{plain}2 workers": Loop(
            new_model(), plain_batches(split, batch_size, augment=augment, workers=2), channels_last=False
        ),
        "ours": Loop(new_model(), ours, channels_last=True),
        "ours in NCHW": Loop(new_model(), ours, channels_last=False),
        "ours with torch.compile": Loop(new_model(), ours, channels_last=True, compiled=True),
    }
    for loop in loops.values():
        loop.run()  # warm up: worker processes, compilation, caches
        loop.best = 0.0
    for _ in range(ROUNDS):
        for loop in loops.values():
            loop.run()
    peer = max(loop.best for label, loop in loops.items() if label.startswith(plain))
    print(f"{title}, batch {batch_size}, {torch.get_num_threads()} threads, {len(split)} images")
    for label, loop in loops.items():
        print(f"  {label:28} {loop.best:8.0f} images/s   {loop.best / peer:5.2f} × the best plain loop", flush=True)


def main() -> None:
    mnist, cifar10 = data.load("mnist").train, data.load("cifar10").train
    measure("LeNet-5 on MNIST", "lenet5", mnist.subset(12_000), batch_size=64, augment=False)
    measure("ResNet-20 on CIFAR-10", "resnet20", cifar10.subset(2_000), batch_size=128, augment=True)


if __name__ == "__main__":
    main()
