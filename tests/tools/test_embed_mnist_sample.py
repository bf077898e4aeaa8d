"""The embedded sample is what the tool makes of MNIST: of the sample itself it makes the sample."""

from pathlib import Path

import numpy as np

from excite import data
from excite.data.catalog import MNIST_SAMPLE
from tests.tools.loading import loaded


def test_sample_has_the_first_images_of_each_class(tmp_path: Path) -> None:
    tool = loaded(Path(__file__).parents[2] / "tools/embed_mnist_sample.py")
    tool.embed(data.load("mnist-sample"), tmp_path / "again.npz")
    with np.load(MNIST_SAMPLE.path) as embedded, np.load(tmp_path / "again.npz") as again:
        assert embedded.files == again.files
        assert all(np.array_equal(embedded[name], again[name]) for name in embedded.files)
