"""A run folder as its owner reads it, and as the document says that others can."""

import re
import shutil
from pathlib import Path

import pytest

from excite.errors import CorruptFileError, InputError
from excite.files import read_json, write_json
from excite.runs.folder import RunFolder

DOCUMENT = Path(__file__).parents[2] / "docs" / "run-folder.md"


def test_what_the_stages_left_is_read(small_run: RunFolder) -> None:
    assert [arm.name for arm in small_run.arms] == ["baseline", "poe", "largest"]
    assert small_run.estimate
    assert small_run.arm("poe").rate == small_run.estimate.learning_rate()
    assert {"", "epochs", "local"} <= small_run.estimates.keys()
    assert small_run.illustration
    assert small_run.illustration.arms == ("baseline", "poe", "largest")
    for arm in small_run.arms:
        assert arm.evaluation
        assert len(arm.epochs) == small_run.experiment.training.epochs
        assert not arm.moments.exists()
        assert not list(arm.path.glob("*.journal"))


def test_the_time_of_a_run_includes_recording_and_measuring(small_run: RunFolder, tmp_path: Path) -> None:
    assert small_run.seconds == pytest.approx(sum(stage.seconds for stage in small_run.stages))
    assert small_run.seconds > sum(arm.outcome.seconds for arm in small_run.arms)
    older = RunFolder(Path(shutil.copytree(small_run.path, tmp_path / "run")))
    (older.path / "stages.json").unlink()
    assert older.seconds == sum(arm.outcome.seconds for arm in older.arms)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="excite run"):
        _ = RunFolder(tmp_path).experiment
    assert RunFolder(tmp_path).arms == ()
    assert RunFolder(tmp_path).estimate is None


def test_files_that_do_not_agree(small_run: RunFolder, tmp_path: Path) -> None:
    run = RunFolder(Path(shutil.copytree(small_run.path, tmp_path / "run")))
    outcome = run.arm("poe").outcome_file
    write_json(outcome, read_json(outcome) | {"epochs": 2})
    with pytest.raises(CorruptFileError, match=r"metrics\.jsonl"):
        _ = run.arm("poe").epochs


def test_the_document_names_every_file_and_its_code_works(small_run: RunFolder) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for path in small_run.files():
        name = re.sub(r"^weights-.*", "weights-*.safetensors", path.name)
        if path.parent.name == "estimates":
            name = "estimates/*.json"
        assert name in text
        if path.suffix == ".json" and path.name not in ("experiment.json", "illustration.json"):
            assert all(f"`{key}`" in text for key in read_json(path)), path
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block.replace("runs/mnist-sample", str(small_run.path)), {})  # noqa: S102
