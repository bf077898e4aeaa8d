from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from excite import data
from excite.data.catalog import DATASETS, HIDDEN_LABELS, MNIST, MNIST_SAMPLE
from excite.errors import CorruptFileError, InputError

Get = Callable[[str], data.Dataset]

# Of the train split: mean and standard deviation per channel as published, and the first ten labels.
KNOWN = {
    "mnist": ((0.1307,), (0.3081,), [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]),
    "fashion-mnist": ((0.2860,), (0.3530,), [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]),
    "cifar10": ((0.49140, 0.48216, 0.44653), (0.24703, 0.24349, 0.26159), [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]),
    "cifar100": ((0.50708, 0.48655, 0.44092), (0.26733, 0.25644, 0.27615), [19, 29, 0, 11, 1, 86, 90, 28, 23, 31]),
}


def test_every_data_set_has_its_row() -> None:
    assert data.names() == ["mnist-sample", *KNOWN, *HIDDEN_LABELS]


def test_what_is_known_of_a_data_set_before_it_is_loaded_is_true(tmp_path: Path) -> None:
    for name in ("mnist-sample", "mnist-sample-1k+4k"):
        known, loaded = data.find(name), data.load(name)
        assert (known.train_images, known.test_images) == (len(loaded.train), len(loaded.test))
        assert (known.input_shape, known.num_classes) == (loaded.input_shape, loaded.num_classes)
        assert known.class_names == loaded.class_names == tuple("0123456789")


def test_a_data_set_of_a_user_is_registered_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("excite.data.catalog.DATASETS", dict(DATASETS))
    images, labels = torch.zeros(4, 2, 3, 3, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    mine = data.register(data.from_tensors(images, labels, images, labels, name="mine", class_names=["cat", "dog"]))
    assert data.load("mine") is mine
    assert "mine" in data.names()
    assert data.find("mine").class_names == ("cat", "dog")
    assert [(row.name, row.size) for row in data.listing()][-1] == ("mine", 0)
    assert data.verify("mine") == mine.fingerprint()
    with pytest.raises(InputError, match="mnist"):
        data.register(data.from_tensors(images, labels, images, labels, name="mnist"))


def test_classes_have_names_or_numbers() -> None:
    assert data.find("cifar10").class_names[3] == "cat"
    images, labels = torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.tensor([0, 2])
    assert data.from_tensors(images, labels, images, labels).class_names == ("0", "1", "2")
    with pytest.raises(InputError, match="class_names"):
        data.from_tensors(images, labels, images, labels, num_classes=3, class_names=["a", "b"])
    with pytest.raises(InputError, match="num_classes"):
        data.from_tensors(images, labels + 2**40, images, labels)


@pytest.mark.full_data
@pytest.mark.parametrize("name", KNOWN)
def test_a_complete_data_set_is_the_published_one(name: str, full_dataset: Get) -> None:
    dataset = full_dataset(name)
    mean, std, first_labels = KNOWN[name]
    found_mean, found_std = dataset.train.channel_mean_std()
    assert found_mean == pytest.approx(mean, abs=5e-5)
    assert found_std == pytest.approx(std, abs=5e-5)
    assert dataset.train.labels[:10].tolist() == first_labels
    for split in (dataset.train, dataset.test):
        if name != "mnist":
            assert split.labels.bincount().tolist() == [len(split) // dataset.num_classes] * dataset.num_classes


@pytest.mark.full_data
def test_cifar10_is_in_its_canonical_order(full_dataset: Get) -> None:
    cifar10 = full_dataset("cifar10")
    assert cifar10.train.images[0, :, 0, :3].T.tolist() == [[59, 62, 63], [43, 46, 45], [50, 48, 43]]
    assert cifar10.test.images[0, :, 0, 0].tolist() == [158, 112, 49]
    batch_1 = cifar10.train.labels[:10_000].bincount().tolist()
    assert batch_1 == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]


@pytest.mark.full_data
def test_the_sample_is_the_first_of_each_class_of_mnist(full_dataset: Get) -> None:
    complete, sample = full_dataset("mnist"), data.load("mnist-sample")
    for whole, part, per_class in ((complete.train, sample.train, 500), (complete.test, sample.test, 100)):
        seen = [0] * 10
        chosen = []
        for index, label in enumerate(whole.labels.tolist()):
            if seen[label] < per_class:
                seen[label] += 1
                chosen.append(index)
        assert torch.equal(part.images, whole.images[chosen])
        assert torch.equal(part.labels, whole.labels[chosen])


def test_the_sample_is_embedded_balanced_and_small() -> None:
    sample = data.load("mnist-sample")
    assert str(sample) == "mnist-sample: train 5,000 images 1×28×28, test 1,000 images 1×28×28, 10 classes"
    assert sample.train.labels.bincount().tolist() == [500] * 10
    assert sample.test.labels.bincount().tolist() == [100] * 10
    assert MNIST_SAMPLE.path.stat().st_size < 1_300_000
    assert data.verify("mnist-sample") == MNIST_SAMPLE.fingerprint
    assert data.fetch("mnist-sample") == MNIST_SAMPLE.path
    notice = (MNIST_SAMPLE.path.parent / "README.md").read_text()
    assert "LeCun" in notice
    assert "ShareAlike 3.0" in notice


@pytest.mark.parametrize("use", [data.load, data.fetch, data.verify])
def test_an_unknown_name_is_refused_with_the_nearest(use: Callable[[str], object]) -> None:
    with pytest.raises(InputError, match='did you mean "cifar10"'):
        use("cifar-10")
    with pytest.raises(InputError, match=r"\.npz"):
        use("zzz")


def test_a_data_set_that_is_not_there_is_not_made_up(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="excite data fetch mnist"):
        data.verify("mnist", tmp_path)


def test_a_wrong_file_in_the_data_directory_is_refused(tmp_path: Path) -> None:
    MNIST.write(MNIST.file(tmp_path), data.load("mnist-sample"))
    with pytest.raises(CorruptFileError, match="60,000"):
        data.load("mnist", data_dir=tmp_path)
    with pytest.raises(CorruptFileError, match="excite data fetch mnist"):
        data.verify("mnist", tmp_path)


def test_the_listing_says_what_is_here(tmp_path: Path) -> None:
    (tmp_path / "cifar10.safetensors").write_bytes(b"x" * 3_000_000)
    rows = {row.name: row for row in data.listing(tmp_path)}
    assert list(rows) == data.names()
    assert [name for name, row in rows.items() if row.size is not None] == [
        *("mnist-sample", "cifar10", "mnist-sample-1k+4k", "cifar10-10k+40k")
    ]
    assert "3.0 MB" in str(rows["cifar10"])
    assert "50,000 train and 10,000 test images" in str(rows["cifar10"])
    assert rows["mnist"].size is None


@pytest.mark.full_data
def test_a_listed_data_set_verifies(full_dataset: Get) -> None:
    mnist = full_dataset("mnist")
    assert data.verify("mnist") == mnist.fingerprint() == MNIST.fingerprint


def test_a_users_own_tensors_count_their_classes() -> None:
    images, labels = torch.zeros(4, 2, 3, 3, dtype=torch.uint8), torch.tensor([0, 1, 2, 5])
    dataset = data.from_tensors(images, labels, images[:1], labels[:1], name="mine")
    assert dataset.num_classes == 6
    assert dataset.name == "mine"
    assert data.from_tensors(images, labels, images, labels, num_classes=9).num_classes == 9
    with pytest.raises(InputError, match="num_classes"):
        data.from_tensors(images, labels, images, labels, num_classes=5)
