"""Experiments are read, checked and changed as they should be, and say which estimators of L they want."""

from pathlib import Path

import msgspec
import pytest

from excite.console import Console
from excite.errors import InputError
from excite.lipschitz import ESTIMATORS
from excite.runs import catalogue, load
from excite.runs.assemble import assemble
from excite.runs.experiment import differences, from_recorded, from_values
from excite.runs.folder import RunFolder, begin_study
from excite.runs.procedure import Run


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
        ("training.epoch=3", '"training.epochs"'),
        ("trainin.epochs=3", '"training"'),
        ("training.epochs=many", "training.epochs"),
        ("training.epochs=0", "training.epochs"),
        ("training.momentum=-1", "training.momentum"),
        ("decides=PGD", "margin PGD"),
        ("seed=1.5", "seed"),
        ("training.precision=fp16", "training.precision.*float32, tf32, bf16"),
        ("training.epochs.more=1", "table"),
        ("training.epochs", "key=value"),
    ],
)
def test_what_does_not_fit_is_named(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load("mnist-sample", overrides=[override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.name=lenet", '"lenet5"'),
        ("model.options.activation=3", r"activation"),
        ("data.name=mnits", r"mnist"),
        ("data.augment=flip", '"crop-flip"'),
        ("data.train_examples=5001", r"5001"),
        ("training.objective=standrad", '"standard"'),
        ("training.schedule.kind=steps", '"step"'),
        ("training.schedule.milestone=[3]", r"milestone"),
        ("training.schedule.rate=-1", "rate"),
        ('attacks.mine={kind="pdg", eps=0.1}', '"pgd"'),
        ('attacks.mine={kind="pgd", epz=0.1}', '"eps"'),
        ("attacks.mine={eps=0.1}", "kind"),
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
    with pytest.raises(InputError, match="TOML"):
        load(str(path))
    with pytest.raises(InputError, match=r"none\.toml"):
        load(str(tmp_path / "none.toml"))
    with pytest.raises(InputError, match='"mnist-sample"'):
        load("mnist-sampel")


def test_what_an_earlier_version_recorded_is_read() -> None:
    values = load("mnist-sample").to_json()
    values["lipschitz"] |= {"runs": 10, "ratio": 1.25, "seeds": 3, "steps": 480}
    assert from_recorded(values).lipschitz["steps"] == 480
    assert not {"runs", "ratio", "seeds"} & from_recorded(values).lipschitz.keys()


@pytest.mark.parametrize(
    ("recorded", "today"),
    [
        ({"method": "epochs", "statistic": "scale"}, {"method": "epochs", "protocol": "text"}),
        ({"method": "epochs", "protocol": "fitted"}, {"method": "epochs", "protocol": "fitted"}),
        ({"method": "epochs", "protocol": "authors"}, {"method": "epochs", "protocol": "authors"}),
        ({"method": "local", "statistic": "scale"}, {"method": "local"}),
    ],
)
def test_former_names_of_algorithm_1_are_read(recorded: dict[str, str], today: dict[str, str]) -> None:
    values = load("mnist-sample").to_json() | {"lipschitz": recorded, "estimators": {"former": recorded}}
    experiment = from_recorded(values)
    assert experiment.lipschitz == experiment.estimators["former"] == today


PRESETS = (
    'estimators.fitted={method="epochs",n_maxima=20,n_points=2}',
    'estimators.authors={method="epochs",protocol="authors",n_points=2}',
    'estimators.stated={method="stated",constant=4.0}',
    'estimators.shared={method="stated",constant=8.0,shared=true}',
)


def test_a_better_sentence_is_no_other_experiment(tiny: Path, tmp_path: Path) -> None:
    first = Run(tmp_path / "run", load(str(tiny)), console=Console(quiet=True))
    said_better = msgspec.structs.replace(first.experiment, summary="What was meant.")
    assert Run(tmp_path / "run", said_better, console=Console(quiet=True)).files.experiment == first.experiment


def test_a_preset_takes_the_place_of_the_experiments_own(tiny: Path) -> None:
    experiment = load(str(tiny), overrides=[*PRESETS, "lipschitz=authors"])
    assert experiment.lipschitz == {"method": "epochs", "protocol": "authors", "n_points": 2}
    assert experiment.estimator_of("stated")(None).constant == 4
    assert experiment.options_of("local") == {"method": "local"}
    assert load(str(tiny), overrides=["lipschitz=local"]).lipschitz == {"method": "local"}


def test_comparing_shows_the_presets_too(tiny: Path) -> None:
    measuring = [name for name, kind in ESTIMATORS.items() if kind.needs != "nothing"]
    assert set(load(str(tiny)).every_estimator().values()) == set(measuring)
    experiment = load(str(tiny), overrides=[*PRESETS, "lipschitz=fitted"])
    assert experiment.own_name == "fitted"
    assert list(experiment.every_estimator().values())[:4] == ["fitted", "authors", "stated", "shared"]
    assert set(list(experiment.every_estimator().values())[4:]) == set(measuring)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lipschitz.method=guess", "estimator"),
        ("lipschitz=statd", '"stated"'),
        ("lipschitz.bugdet=0.1", '"budget"'),
        ('lipschitz={method="epochs",n_points=20}', "20"),
        ('lipschitz={method="epochs",protocol="authors"}', r"record\.input_gradients"),
        ('lipschitz={method="stated",constant=0.0}', "positive"),
        ('lipschitz={method="stated",constant=-3.5}', r"-3\.5"),
        ('lipschitz={method="stated"}', "constant"),
        ('lipschitz={method="curvature"}', "curvature"),
        ('arms=["poe@guess"]', "estimator"),
    ],
)
def test_what_cannot_be_estimated_is_refused_before_anything_trains(tiny: Path, override: str, message: str) -> None:
    folder = tiny.parent / "run"
    with pytest.raises(InputError, match=message):
        Run(folder, load(str(tiny), overrides=[override]), console=Console())
    assert not folder.exists()
    load(str(tiny), overrides=['lipschitz={method="epochs",n_points=20}', 'arms=["baseline"]']).check_estimators(
        ("baseline",)
    )


def test_arms_of_several_estimators_in_one_run(tiny: Path, tmp_path: Path) -> None:
    experiment = load(str(tiny), overrides=[*PRESETS, "lipschitz=fitted", "data.train_examples=64"])
    run = Run(tmp_path / "run", experiment, console=Console())
    for arm in ("poe@stated", "largest@stated", "poe"):
        run.train(arm)
    rates = {arm.name: arm.rate for arm in run.files.arms}
    assert (rates["poe@stated"], rates["largest@stated"]) == (0.25, 0.5)
    assert rates["poe"] == run.estimate().learning_rate()
    assert run.files.arm("poe@stated").title == "PoE-motivated, 1/L (stated)"
    other = load(str(tiny), overrides=[*PRESETS, "lipschitz=fitted", "data.train_examples=64"])
    other.estimators["stated"]["constant"] = 5.0
    with pytest.raises(InputError, match="stated"):
        Run(tmp_path / "run", other, console=Console()).estimate("stated")


def test_one_l_for_a_study(tiny: Path, tmp_path: Path) -> None:
    overrides = ['lipschitz={method="local",shared=true,n_points=2,bootstraps=0}', "data.train_examples=64"]
    runs = [
        Run(tmp_path / f"seed-{seed}", load(str(tiny), overrides=[*overrides, f"seed={seed}"]), console=Console())
        for seed in (0, 1)
    ]
    begin_study(tmp_path, [run.folder for run in runs])
    second = runs[1].estimate()
    assert second.constant == runs[0].estimate().constant
    assert "seed-0" in second.basis
    assert not RunFolder(tmp_path / "seed-1").arm("baseline").trained  # nothing was trained for it there


def test_the_title_of_an_attack_has_its_largest_radius_and_a_norm_other_than_the_usual_one() -> None:
    experiment = load("mnist-sample").with_values(
        {
            "attacks.curve": {"kind": "pgd", "eps": [0.1, 0.3]},
            "attacks.sparse": {"kind": "fmn", "eps": 12, "norm": "l1"},
        }
    )
    titles = [experiment.attack_title(name) for name in ("curve", "sparse", "clean")]
    assert titles == ["curve, ε = 0.3", "sparse, L1 ε = 12", "clean"]
