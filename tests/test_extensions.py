"""To add something takes one object and one registry entry: toys, added while it runs, go through the whole house."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from excite import attacks, data, lipschitz, models, objectives
from excite.attacks import Attack
from excite.attacks.protocol import Norm
from excite.cli import main
from excite.data.catalog import DATASETS
from excite.data.sources import InMemory
from excite.lipschitz import Estimator, LipschitzEstimate
from excite.lipschitz.protocol import Needs
from excite.report.figures import FIGURES, Kind
from excite.runs import load
from excite.runs.arms import ARMS, OWN, Arm
from excite.runs.costs import costs
from excite.runs.folder import RunFolder

EXPERIMENT = """
name = "toy"
arms = ["baseline", "toy-arm"]
[data]
name = "toy-data"
[model]
name = "toy-model"
options = { width = 8 }
[training]
epochs = 3
batch_size = 20
objective = { kind = "toy-objective", smoothing = 0.1 }
schedule = { kind = "constant", rate = 0.1 }
[lipschitz]
method = "toy-estimator"
factor = 2.0
[attacks]
"toy attack" = { kind = "toy-attack", eps = 0.2 }
"""


class ToyModel(nn.Module):
    """Two layers; `width` is its option."""

    def __init__(self, *, num_classes: int, input_shape: tuple[int, int, int], width: int = 4) -> None:
        super().__init__()
        pixels = input_shape[0] * input_shape[1] * input_shape[2]
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


@dataclass(frozen=True)
class ToyAttack(Attack):
    """Noise as loud as the ball allows."""

    eps: float
    norm: Norm = "linf"

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.rand(x.shape, generator=generator, device=x.device) * 2 - 1
        return (x + self.eps * noise).clamp(0, 1)

    def passes(self, classes: int) -> float:
        return 1

    def __str__(self) -> str:
        return f"toy noise of {self.eps:g}"


@dataclass(frozen=True)
class ToyObjective:
    title: ClassVar[str] = "toy training"
    passes: ClassVar[int] = 3
    needs_pseudo_labels: ClassVar[bool] = False
    smoothing: float = 0.0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), y, label_smoothing=self.smoothing)


@dataclass(frozen=True)
class ToyEstimator(Estimator[None]):
    title: ClassVar[str] = "toy (a guess)"
    about: ClassVar[str] = "As good as any."
    needs: ClassVar[Needs] = "nothing"
    factor: float = 1.0

    def __call__(self, evidence: None = None) -> LipschitzEstimate:
        constant = 5.0 * self.factor
        return LipschitzEstimate(constant, (constant, constant), "toy-estimator", True, basis="a guess")


def toy_data() -> data.Dataset:
    """Dark and bright squares."""
    labels = torch.arange(120) % 2
    images = (labels[:, None, None, None] * 100 + torch.arange(120)[:, None, None, None] % 50).expand(-1, 1, 6, 6)
    split = data.Split(images.to(torch.uint8).contiguous(), labels)
    return data.Dataset("toy-data", split, split, 2, ("dark", "bright"))


def toy_figure(runs: Sequence[RunFolder]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().bar([arm.title for arm in runs[0].arms], [arm.rate for arm in runs[0].arms])
    return figure


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """One object and one registry entry each."""
    monkeypatch.setitem(models.MODELS, "toy-model", ToyModel)
    monkeypatch.setitem(attacks.ATTACKS, "toy-attack", ToyAttack)
    monkeypatch.setitem(objectives.OBJECTIVES, "toy-objective", ToyObjective)
    monkeypatch.setitem(lipschitz.ESTIMATORS, "toy-estimator", ToyEstimator)
    monkeypatch.setitem(ARMS, "toy-arm", Arm("toy-arm", "toy arm, 1/(2L)", "1/(2L)", multiple=0.5, estimator=OWN))
    monkeypatch.setitem(FIGURES, "toy-figure", Kind("Rates of the toys", toy_figure))
    monkeypatch.setitem(DATASETS, "toy-data", InMemory.of(toy_data()))


@pytest.fixture
def excite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command line, in this process: only here are the toys known."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.toml").write_text(EXPERIMENT, encoding="utf-8")

    def call(*arguments: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capsys.readouterr()
        assert not ended.value.code, printed.err
        return printed.out

    return call


def test_toys_go_through_the_whole_house(toys: None, excite: Any, tmp_path: Path) -> None:
    cost = costs({"toy": load("toy.toml")}, torch.device("cpu"))["toy"]
    assert cost.work.passes > 0

    table = excite("run", "toy.toml", "--out", "run")
    assert "toy arm, 1/(2L)" in table
    assert "toy attack" in table
    assert "L = 10" in table
    arms = {arm["name"]: arm for arm in json.loads(excite("run", "toy.toml", "--out", "run", "--json"))["arms"]}
    assert arms["toy-arm"]["rate"] == pytest.approx(0.05)
    assert "flags" in arms["baseline"]["evaluation"]  # the trust checks have seen the toy attack

    page = (tmp_path / "run/report.html").read_text(encoding="utf-8")
    for text in ("toy arm, 1/(2L)", "toy-data", "toy-model", "toy (a guess)", "bright"):
        assert text in page
    assert "toy arm, 1/(2L)" in excite("report", "run", "--format", "markdown")
    assert "toy arm" in excite("report", "run", "--format", "latex")

    excite("figure", "toy-figure", "run", "--out", "figures")
    assert (tmp_path / "figures/toy-figure.svg").exists()
    assert "Rates of the toys" in (tmp_path / "figures/toy-figure.svg").read_text(encoding="utf-8")

    assert "10" in excite("estimate", "run")
    assert "Assumption 2" in excite("certify", "run", "--arm", "toy-arm")
    assert "toy noise of 0.1" in excite("attack", "run", "--with", "toy-attack", "--eps", "0.1", "--arm", "toy-arm")
    assert "toy-data" in excite("data", "list")


def test_toys_are_listed(toys: None, excite: Any) -> None:
    listing = excite("list")
    for kind in ("data", "model", "objective", "attack", "estimator", "arm", "figure"):
        assert f"toy-{kind}" in listing
