"""Every command in the tables of docs/paper.md and docs/paper-experiments.md runs, here on a few images of MNIST."""

import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from excite.cli import cli
from tests.docs.test_paper import QUOTED

Call = Callable[..., tuple[str, str]]
COMMANDS = [text for text in QUOTED if text.startswith("excite ")]
TRAINING = [line for line in COMMANDS if line.split()[1] in ("run", "sweep")]
REST = {  # what a page leaves out of a command
    "certify": ["."],
    "batch-size": ["mnist-sample", "--try", "16"],
    "pseudo-label": [".", "--data", "mnist-sample", "--out", "labels.npz"],
}
DRAWN = {
    "excite sweep figure-2-relu": ["figure-2"],
    "excite run figure-3": ["figure-3", "figure-1"],
    "excite sweep figure-4": ["figure-4"],
    "excite run figures-5-6": ["figure-5", "figure-6"],
    "excite run theorem-1": ["theorem-1"],
}
FEW = {
    "data": "{name='mnist-sample',train_examples=80,test_examples=8}",
    "training.epochs": "4",
    "training.batch_size": "16",
    "training.schedule": "{kind='constant',rate=0.05}",
    "record.slopes_per_epoch": "1",
    "record.probe_examples": "8",
    "record.test_examples": "8",
    "attacks": "{PGD={kind='pgd',eps=0.1,step=0.05,steps=2}}",
}
FULL_BATCHES = {"training.batch_size": "80", "record.probe_examples": "80", "record.curvature_every": "1"}
BRIEF = "{method='edge',steps=12,limit=1.0,shared=true,wanted=true}"
HIDDEN = "{name='mnist-sample-1k+4k',epoch_samples=64,test_examples=8}"
TEACHER = "{training={epochs=1,batch_size=64,schedule={kind='constant',rate=0.05}}}"


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_parsed(line: str) -> None:
    name, *words = shlex.split(line.replace(" RUN", " .").replace(" runs/theorem-1", " ."))[1:]
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    command.make_context(name, words or REST.get(name, []))


def on_few_images(line: str) -> list[str]:
    """The same command, on data and for times that take seconds; arms and the choice of L stay."""
    _, command, name, *words = shlex.split(line)
    changes = dict(FEW)
    if name == "theorem-1":
        changes |= FULL_BATCHES
    elif name.startswith(("table", "figure-3", "figure-4", "figures")):
        changes["model"] = "{name='resnet8'}"
        changes["estimators.edge"] = BRIEF
        for estimator, protocol in (("paper", "text"), ("fitted", "fitted"), ("authors", "authors")):
            changes[f"estimators.{estimator}"] = f"{{method='epochs',protocol='{protocol}',n_maxima=4,bootstraps=0}}"
    else:
        changes["lipschitz"] = "{method='edge',steps=12,limit=1.0,wanted=true}"
    if name.startswith("table-2"):
        kind = name.removeprefix("table-2-").replace("-", "_")
        changes["training.objective"] = f"{{kind='{kind}',eps=0.1,step=0.05,steps=1}}"
    if name == "table-2-rst":
        changes |= {"data": HIDDEN, "teacher": TEACHER}
    if command == "sweep":
        swept = {"figure-2": ("training.schedule.rate", "[0.05,0.1]"), "figure-4": ("training.batch_size", "[16,40]")}
        key, values = swept.get(name[:8], ("seed", "[0,1]"))
        changes["sweep"] = f'{{"{key}"={values}}}'
        changes.pop(key, None)
        words += ["--workers", "1"]
    return [command, name, *words, *(word for key, value in changes.items() for word in ("--set", f"{key}={value}"))]


@pytest.mark.slow
@pytest.mark.parametrize("line", TRAINING)
def test_a_training_of_the_tables_runs(line: str, call: Call) -> None:
    name = line.split()[2]
    unidentified = "--estimator paper" in line or name == "mnist-sample"  # no L is, on so few images
    shown, _ = call(*on_few_images(line), "--out", "out", code=6 if unidentified else 0)
    assert "Report:" in shown
    if name.startswith(("table", "figure-3", "figure-4")):
        assert "L by other estimators" in shown
    for figure in DRAWN.get(line, ()):
        assert f"{figure}.svg" in call("figure", figure, "out", "--out", "figures")[0]
    if name == "theorem-1":
        assert "certified" in call("certify", "out", "--arm", "poe")[0]


@pytest.mark.slow
def test_a_batch_size_is_chosen(call: Call) -> None:
    changes = {key: value for key, value in FEW.items() if key != "training.batch_size"}
    settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    assert "Assumption 2 holds" in call("batch-size", "mnist-sample", "--try", "16", "40", *settings)[0]


def test_the_committed_theorem_1_is_certified_and_drawn(call: Call, tmp_path: Path) -> None:
    run = Path(__file__).parents[2] / "results" / "theorem-1" / "theorem-1"
    assert "certified" in call("certify", run, "--arm", "largest")[0]
    assert (tmp_path / "figures" / "theorem-1.svg").exists() or "theorem-1.svg" in call("figure", "theorem-1", run)[0]
