"""The page on one's own images and network: its network, experiment and commands run, on a small folder of images."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from excite.integrations.hub import from_pretrained
from excite.runs.folder import RunFolder
from tests.command_line import call

PAGE = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")
SMALL = ["training.epochs=2", "training.batch_size=8", "lipschitz.steps=10", "record.slopes_per_epoch=2"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """What the page tells to write, and twelve images of each class: dark cats, bright dogs."""
    (tmp_path / "mynet.py").write_text(blocks("python")[0])
    (tmp_path / "mine.toml").write_text(blocks("toml")[0])
    rng = np.random.default_rng(0)
    for name, least in (("cat", 0), ("dog", 128)):
        folder = tmp_path / "photos" / "train" / name
        folder.mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(least, least + 128, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    yield tmp_path
    sys.modules.pop("mynet", None)


def test_the_command_runs_the_whole_procedure(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = blocks("console")[0].splitlines()
    words = [*command.split()[1:], "--force", *(word for key in SMALL for word in ("--set", key))]
    printed, _ = call(*words, cwd=project)
    assert "PoE-motivated, 1/L" in printed
    run = RunFolder(project / "runs/mine")
    evaluation = run.arm("poe").evaluation
    assert evaluation is not None
    assert (len(evaluation.correct), [*evaluation.robust]) == (4, ["PGD-20"])
    assert (project / "runs/mine/report.html").exists()
    assert len(run.experiment.data.fingerprint or "") == 64
    call(*words, cwd=project)  # nothing to do
    export, _ = blocks("console")[1].splitlines()
    call(*export.split()[1:], cwd=project)
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    namespace: dict[str, object] = {}
    exec(blocks("python")[1].replace("32, 32", "8, 8"), namespace)  # noqa: S102
    model, images = namespace["model"], torch.rand(2, 3, 8, 8)
    again = from_pretrained(project / "exports/mine-poe", namespace["network"])  # type: ignore[arg-type]
    assert torch.equal(model(images), again(images))  # type: ignore[operator]
    image = project / "photos/train/cat/0.png"
    Image.open(image).rotate(90).save(image)
    attack = ["attack", "runs/mine", "--arm", "poe", "--with", "pgd", "--eps", "0.01"]
    for refused in (words, attack):
        assert "data.fingerprint" in call(*refused, cwd=project, code=2)[1]
    (project / "mynet.py").unlink()
    del sys.modules["mynet"]
    call("report", "runs/mine", cwd=project)  # reading imports no model
    call("verify", "runs/mine", cwd=project)
