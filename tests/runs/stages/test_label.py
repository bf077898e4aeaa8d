import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from excite.cli import cli
from excite.console import Console
from excite.data import Unlabelled, load_extra, load_unlabelled
from excite.errors import InputError
from excite.runs import load
from excite.runs.procedure import Run
from excite.runs.stages.teach import label_with, label_with_run


class Quiet:
    def say(self, text: str) -> None: ...

    @contextmanager
    def task(self, title: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda _done, _total: None


class Brightness(nn.Module):
    """Class 0 for a dark image, 1 for a bright one, the surer the further from grey; dropout and batch-norm inside."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(8.0))
        self.noise = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        brightness = self.noise(x.flatten(1).mean(1, keepdim=True) - 0.5)
        return self.scale * torch.cat([-brightness, brightness], dim=1)


def grey(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()


def test_a_model_labels_in_eval_mode_and_is_left_as_it_was(tmp_path: Path) -> None:
    model = Brightness().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = Unlabelled("mine.npz", grey(0, 255, 128, 30, 200))
    facts = {"source": "mine.npz", "teacher": {}}
    labelling = label_with(model, images, Console(quiet=True), "mine", out=tmp_path / "pseudo.npz", options=facts)
    assert labelling.kept.labels.tolist() == [0, 1, 1, 0, 1]
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """LeNet-5 after a short training on a thousand digits."""
    overrides = ["data.name=mnist-sample-1k+4k", "data.test_examples=50", "training.epochs=4", "training.batch_size=20"]
    folder = tmp_path_factory.mktemp("runs") / "teacher"
    run = Run(folder, load("mnist-sample", overrides=overrides), console=Quiet(), device="cpu")
    run.train("baseline")
    return run


def test_a_run_labels_what_it_has_not_seen(trained: Run, tmp_path: Path) -> None:
    out = tmp_path / "pseudo.npz"
    labelling = label_with_run(trained, "baseline", "mnist-sample-1k+4k", out, threshold=0.9)
    assert labelling.candidates == 4000
    assert labelling.accuracy is not None
    assert labelling.accuracy > 0.9
    assert min(labelling.kept.confidences) >= 0.9
    hidden, extra = load_unlabelled("mnist-sample-1k+4k"), load_extra(out)
    assert torch.equal(extra.images, hidden.images[labelling.kept.indices])
    assert torch.equal(extra.labels, labelling.kept.labels)
    assert labelling.kept.teacher["run"] == "teacher"
    assert labelling.kept.teacher["experiment"]["training"]["epochs"] == 4


def test_a_file_of_images_is_labelled(trained: Run, tmp_path: Path) -> None:
    images = load_unlabelled("mnist-sample-1k+4k").images[:30]
    np.savez(tmp_path / "mine.npz", x=images.numpy())
    labelling = label_with_run(trained, "baseline", str(tmp_path / "mine.npz"), tmp_path / "pseudo.npz")
    assert labelling.accuracy is None
    assert torch.equal(load_extra(tmp_path / "pseudo.npz").images, images)


def test_the_command_prints_what_it_did(trained: Run, tmp_path: Path) -> None:
    command = ["pseudo-label", str(trained.folder), "--data", "mnist-sample-1k+4k", "--out", str(tmp_path / "p.npz")]
    answer = CliRunner().invoke(cli, [*command, "--threshold", "1/2", "--balance", "--json"], catch_exceptions=False)
    found = json.loads(answer.stdout)
    assert found["file"] == str(tmp_path / "p.npz")
    assert found["per_class"] == [found["kept"] // 10] * 10
    assert load_extra(tmp_path / "p.npz").labels.bincount().tolist() == found["per_class"]
    told = CliRunner().invoke(cli, command, catch_exceptions=False).stdout
    for text in ("4,000 of 4,000 images kept", "mean confidence", "per class: ", "diagnostic only", "p.npz"):
        assert text in told
    missing = CliRunner().invoke(cli, ["pseudo-label", str(tmp_path / "none"), *command[2:]])
    assert (missing.exit_code, "does not exist" in missing.output) == (2, True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="run folder"):
        CliRunner().invoke(cli, ["pseudo-label", str(tmp_path / "empty"), *command[2:]], catch_exceptions=False)


def test_what_cannot_be_labelled_is_named(trained: Run, tmp_path: Path) -> None:
    out = tmp_path / "pseudo.npz"
    with pytest.raises(InputError, match="--arm poe"):
        label_with_run(trained, "poe", "mnist-sample-1k+4k", out)
    with pytest.raises(InputError, match=r"--out .*pseudo\.npz"):
        label_with_run(trained, "baseline", "mnist-sample-1k+4k", tmp_path / "pseudo")
    np.savez(tmp_path / "colour.npz", x=np.zeros((2, 32, 32, 3), np.uint8))
    with pytest.raises(InputError, match=r"colour\.npz"):
        label_with_run(trained, "baseline", str(tmp_path / "colour.npz"), out)
    with pytest.raises(InputError, match="mnist"):
        label_with_run(trained, "baseline", "mnist", out)
    assert not out.exists()
