"""Make the embedded `mnist-sample`: the first images of each class of the complete MNIST, in file order.

Run as `python tools/embed_mnist_sample.py`; the result is the same bytes every time.
"""

from pathlib import Path

import numpy as np
import torch

from excite import data
from excite.data.catalog import MNIST_SAMPLE
from excite.data.dataset import Split
from excite.files import atomic

TRAIN_PER_CLASS = 500
TEST_PER_CLASS = 100


def first_of_each_class(split: Split, per_class: int) -> Split:
    """The first `per_class` images of every class, in the order of the file."""
    firsts = [(split.labels == label).nonzero().flatten()[:per_class] for label in range(10)]
    chosen = torch.cat(firsts).sort().values
    return Split(split.images[chosen], split.labels[chosen])


def embed(mnist: data.Dataset, path: Path) -> None:
    train = first_of_each_class(mnist.train, TRAIN_PER_CLASS)
    test = first_of_each_class(mnist.test, TEST_PER_CLASS)
    with atomic(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            x_train=train.images.squeeze(1).numpy(),
            y_train=train.labels.to(torch.uint8).numpy(),
            x_test=test.images.squeeze(1).numpy(),
            y_test=test.labels.to(torch.uint8).numpy(),
        )


def main() -> None:
    embed(data.load("mnist"), MNIST_SAMPLE.path)
    size = MNIST_SAMPLE.path.stat().st_size
    print(f"{MNIST_SAMPLE.path}: {size:,} bytes, fingerprint {data.load('mnist-sample').fingerprint()}")


if __name__ == "__main__":
    main()
