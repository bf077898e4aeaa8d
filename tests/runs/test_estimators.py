"""Which L an experiment asks for, and what cannot be estimated from its baseline, refused before anything trains."""

from pathlib import Path

import pytest

from excite.console import Console
from excite.errors import InputError
from excite.lipschitz import ESTIMATORS
from excite.runs import load
from excite.runs.estimators import check, estimator_of, every_name, options_of, own_name
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run

PRESETS = (
    'estimators.paper={method="epochs",n_maxima=20,n_points=2,statistic="scale"}',
    'estimators.authors={method="epochs",protocol="authors",n_points=2}',
    'estimators.stated={method="stated",constant=4.0}',
    'estimators.shared={method="stated",constant=8.0,shared=true}',
)


def test_a_preset_takes_the_place_of_the_experiments_own(tiny: Path) -> None:
    experiment = load(str(tiny), overrides=[*PRESETS, "lipschitz=authors"])
    assert experiment.lipschitz == {"method": "epochs", "protocol": "authors", "n_points": 2}
    assert estimator_of(experiment, "stated")(None).constant == 4
    assert options_of(experiment, "local") == {"method": "local"}
    assert load(str(tiny), overrides=["lipschitz=local"]).lipschitz == {"method": "local"}


def test_comparing_shows_the_presets_too(tiny: Path) -> None:
    measuring = [name for name, kind in ESTIMATORS.items() if kind.needs != "nothing"]
    assert set(every_name(load(str(tiny)))) == set(measuring)
    experiment = load(str(tiny), overrides=[*PRESETS, "lipschitz=paper"])
    assert own_name(experiment) == "paper"
    assert every_name(experiment)[:4] == ["paper", "authors", "stated", "shared"]
    assert set(every_name(experiment)[4:]) == set(measuring)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lipschitz.method=guess", "no estimator"),
        ("lipschitz=statd", 'did you mean "stated"'),
        ("lipschitz.bugdet=0.1", r'no option of the estimator edge "bugdet"; did you mean "budget"'),
        ('lipschitz={method="epochs",n_points=20}', "needs at least 20"),
        ('lipschitz={method="epochs",protocol="authors"}', r"no gradients .* record\.input_gradients = true"),
        ('lipschitz={method="stated",constant=0.0}', "must be positive"),
        ('lipschitz={method="stated",constant=-3.5}', r"must be positive and finite, not -3\.5\. .* state L = 1/η"),
        ('lipschitz={method="stated"}', 'needs "constant"'),
        ('lipschitz={method="curvature"}', "no curvatures"),
        ('arms=["poe@guess"]', "no estimator"),
    ],
)
def test_what_cannot_be_estimated_is_refused_before_anything_trains(tiny: Path, override: str, message: str) -> None:
    folder = tiny.parent / "run"
    with pytest.raises(InputError, match=message):
        Run(folder, load(str(tiny), overrides=[override]), console=Console())
    assert not folder.exists()
    check(load(str(tiny), overrides=['lipschitz={method="epochs",n_points=20}', 'arms=["baseline"]']), ("baseline",))


def test_arms_of_several_estimators_in_one_run(tiny: Path, tmp_path: Path) -> None:
    experiment = load(str(tiny), overrides=[*PRESETS, "lipschitz=paper", "data.train_examples=64"])
    run = Run(tmp_path / "run", experiment, console=Console())
    for arm in ("poe@stated", "largest@stated", "poe"):
        run.train(arm)
    rates = {arm.name: arm.rate for arm in run.files.arms}
    assert (rates["poe@stated"], rates["largest@stated"]) == (0.25, 0.5)
    assert rates["poe"] == run.estimate().learning_rate()
    assert run.files.arm("poe@stated").title == "PoE-motivated, 1/L (stated)"
    other = load(str(tiny), overrides=[*PRESETS, "lipschitz=paper", "data.train_examples=64"])
    other.estimators["stated"]["constant"] = 5.0
    with pytest.raises(InputError, match="other options"):
        Run(tmp_path / "run", other, console=Console()).estimate("stated")


def test_one_l_for_a_study(tiny: Path, tmp_path: Path) -> None:
    overrides = ['lipschitz={method="local",shared=true,n_points=2,bootstraps=0}', "data.train_examples=64"]
    runs = [
        Run(tmp_path / f"seed-{seed}", load(str(tiny), overrides=[*overrides, f"seed={seed}"]), console=Console())
        for seed in (0, 1)
    ]
    second = runs[1].estimate()
    assert second.constant == runs[0].estimate().constant
    assert second.basis.startswith("shared by the study, estimated in seed-0: ")
    assert not RunFolder(tmp_path / "seed-1").arm("baseline").trained  # nothing was trained for it there
