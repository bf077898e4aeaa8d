from pathlib import Path

import pytest

from excite.errors import InputError
from excite.runs import catalogue, load
from excite.runs.assemble import assemble
from excite.runs.experiment import differences, from_recorded, from_values


@pytest.mark.parametrize("name", catalogue())
def test_every_shipped_experiment_is_read(name: str) -> None:
    experiment = load(name)
    assert experiment.name == name
    assert experiment.summary
    assert from_values(experiment.to_json()) == experiment


def test_overrides_change_single_keys() -> None:
    changed = load(
        "mnist-sample",
        overrides=["training.epochs=3", "model.name=resnet8", 'training.schedule.kind="cosine"', "seed = 7"],
    )
    assert (changed.training.epochs, changed.model.name, changed.seed) == (3, "resnet8", 7)
    assert changed.training.schedule == {"kind": "cosine", "rate": 0.1}
    assert differences(load("mnist-sample"), changed)[:2] == ["model.name: lenet5 → resnet8", "seed: 0 → 7"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epoch=3", r'no key of an experiment "training.epoch"; did you mean "training.epochs"'),
        ("trainin.epochs=3", r'no key of an experiment "trainin"; did you mean "training"'),
        ("training.epochs=many", r"Expected `int`, got `str` - at `training.epochs`"),
        ("training.epochs=0", r">= 1 - at `training.epochs`"),
        ("training.momentum=-1", r"at `training.momentum`"),
        ("seed=1.5", r"Expected `int`, got `float` - at `seed`"),
        ("training.epochs.more=1", r'"epochs" is a value, not a table'),
        ("training.epochs", r"sets nothing; write key=value"),
    ],
)
def test_what_does_not_fit_is_named(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load("mnist-sample", overrides=[override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.name=lenet", r'no model "lenet"; did you mean "lenet5"'),
        ("model.options.activation=3", r"activation"),
        ("data.name=mnits", r"mnist"),
        ("data.augment=flip", r'no augmentation "flip"; did you mean "crop-flip"'),
        ("data.train_examples=5001", r"5001"),
        ("training.objective=standrad", r'no objective "standrad"; did you mean "standard"'),
        ("training.schedule.kind=steps", r'no schedule "steps"; did you mean "step"'),
        ("training.schedule.milestone=[3]", r"milestone"),
        ("training.schedule.rate=-1", r"must be a finite number above 0"),
        ('attacks.mine={kind="pdg", eps=0.1}', r'no attack "pdg"; did you mean "pgd"'),
        ('attacks.mine={kind="pgd", epz=0.1}', r'"epz"; did you mean "eps"'),
        ("attacks.mine={eps=0.1}", r"needs a kind"),
    ],
)
def test_names_are_checked_before_anything_runs(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        assemble(load("mnist-sample", overrides=[override]))


def test_files_are_read_and_missing_ones_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(catalogue()["mnist-sample"].read_text(encoding="utf-8"), encoding="utf-8")
    assert load(str(path)) == load("mnist-sample")
    path.write_text("name =")
    with pytest.raises(InputError, match="not valid TOML"):
        load(str(path))
    with pytest.raises(InputError, match="There is no file"):
        load(str(tmp_path / "none.toml"))
    with pytest.raises(InputError, match='did you mean "mnist-sample"'):
        load("mnist-sampel")


def test_what_an_earlier_version_recorded_is_read() -> None:
    values = load("mnist-sample").to_json()
    values["lipschitz"] |= {"runs": 10, "ratio": 1.25, "seeds": 3, "steps": 480}
    assert from_recorded(values).lipschitz["steps"] == 480
    assert not {"runs", "ratio", "seeds"} & from_recorded(values).lipschitz.keys()
