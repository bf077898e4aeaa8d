"""The verdict of runs whose outcome is known. Tests look for numbers and keywords, not for sentences."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from msgspec import structs

from excite.evaluation import AttackResult, Cost, Evaluation, Flag, Stage
from excite.lipschitz.protocol import LipschitzEstimate
from excite.report.formats import points
from excite.report.rows import tidy
from excite.report.verdict import Effect, Verdict, compare_arms, conclude
from excite.runs.folder import RunFolder
from excite.runs.records import Certified

ONE_SEED = "one training per arm"
ATTACK = "PGD_20 ε=1/255"  # what `write_run` puts into the experiment
EDGE = LipschitzEstimate(4.0, (3.0, 5.0), "edge", True, "8 short trainings")  # 2/L = 0.5, within 0.4 to 0.667
VAGUE = LipschitzEstimate(4.0, (3.0, 5.0), "local", False, "25 maxima")
DIVERGED = {"rate": 0.5, "problem": "Training diverged in epoch 2"}
WriteRun = Callable[..., RunFolder]


def verdict(*runs: RunFolder) -> Verdict:
    return conclude(tidy(runs))


def evaluation(right: int, flags: tuple[Flag, ...] = (), shift: int = 0) -> Evaluation:
    """100 images: 95 correct without attack, `right` of them under the attack, beginning with number `shift`."""
    numbers = np.arange(100)
    robust = (numbers >= shift) & (numbers < shift + right)
    stages = (Stage(ATTACK, right, Cost(1.0, 1, 1)),)
    return Evaluation(numbers < 95, {ATTACK: AttackResult("PGD", robust, stages)}, flags, Cost(), examples="same")


def dead() -> Evaluation:
    """Ten classes, the same answer for every image: 10 of 100 correct, whatever the attack."""
    right = np.arange(100) < 10
    attacks = {ATTACK: AttackResult("PGD", right, (Stage(ATTACK, 10, Cost(1.0, 1, 1)),))}
    return Evaluation(right, attacks, (), Cost(), examples="same", chance=0.1)


def arms(baseline: int, poe: int, **more: object) -> dict[str, dict[str, object]]:
    return {"baseline": {"evaluation": evaluation(baseline)}, "poe": {"evaluation": evaluation(poe)}, **more}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("right", "effect"),
    [  # 5 of 100 images more or fewer are within the interval, 6 are not
        *((46, Effect.MAYBE_HELPED), (45, Effect.UNCLEAR), (44, Effect.UNCLEAR), (40, Effect.UNCLEAR)),
        *((35, Effect.UNCLEAR), (34, Effect.MAYBE_HURT)),
    ],
)
def test_one_seed_weakens_the_headline(write_run: WriteRun, right: int, effect: Effect) -> None:
    found = verdict(write_run(arms(40, right)))
    assert (found.headline, found.tone) == (f"1/L {effect}", "unclear")
    assert ONE_SEED in str(found)
    assert any("second seed" in caution and "2 s" in caution for caution in found.cautions)


@pytest.mark.parametrize(
    ("right", "effect", "tone"),
    [(60, Effect.HELPED, "helped"), (20, Effect.HURT, "hurt"), (41, Effect.UNCLEAR, "unclear")],
)
def test_headline_follows_the_interval_over_seeds(write_run: WriteRun, right: int, effect: Effect, tone: str) -> None:
    found = verdict(*(write_run(arms(40, right), changes=[f"seed={seed}"]) for seed in range(3)))
    assert (found.headline, found.tone) == (f"1/L {effect}", tone)
    assert not any("second seed" in caution for caution in found.cautions)


def test_arms_with_opposite_effects_leave_the_tone_unclear(write_run: WriteRun) -> None:
    opposite = arms(40, 60, largest={"evaluation": evaluation(20)})
    assert verdict(*(write_run(opposite, changes=[f"seed={seed}"]) for seed in range(3))).tone == "unclear"


def test_evidence_has_accuracies_difference_and_interval(write_run: WriteRun) -> None:
    run = write_run(arms(40, 60, largest=DIVERGED))
    found = verdict(run)
    difference = compare_arms(tidy([run]))[0].difference
    assert difference
    low, high = difference.interval
    assert 0.1 < low < 0.2 < high < 0.3
    for part in (ATTACK, "40.0%", "60.0%", "+20.0 points", f"{points(low)} to {points(high)}"):
        assert part in found.evidence
    assert f"2/L {Effect.DIVERGED}" in found.headline


WARNED = (Flag("vanishing gradients", "every gradient is zero"),)


@pytest.mark.parametrize(("doubted", "named"), [("largest", True), ("baseline", False), ("poe", True)])
def test_headline_names_the_arm_with_a_warning(write_run: WriteRun, doubted: str, named: bool) -> None:
    right = {"baseline": 40, "poe": 60, "largest": 41}
    run = write_run(
        {name: {"evaluation": evaluation(count, WARNED if name == doubted else ())} for name, count in right.items()}
    )
    found = verdict(run)
    title = {"largest": "2/L", "poe": "1/L"}.get(doubted, "")
    assert found.tone == "warning"
    assert f"1/L {Effect.MAYBE_HELPED}; 2/L {Effect.UNCLEAR}" in found.headline
    assert (found.headline.startswith("1/L") and f"of {title} yet" in found.headline) == named
    assert "vanishing gradients" in found.cautions[0]


def test_warning_about_the_only_arm_makes_the_verdict_doubtful(write_run: WriteRun) -> None:
    run = write_run({"baseline": {"evaluation": evaluation(40)}, "poe": {"evaluation": evaluation(60, WARNED)}})
    assert verdict(run).tone == "warning"
    assert not verdict(run).headline.startswith("1/L")


def test_warning_about_a_control_does_not_change_the_headline(write_run: WriteRun) -> None:
    """Its true accuracy may be lower: then the arm beats it all the more."""
    control = {"evaluation": evaluation(40, (Flag("a stronger attack helps", "by 2 points."),))}
    found = verdict(*(write_run(arms(40, 60, placebo=control), changes=[f"seed={seed}"]) for seed in range(3)))
    assert (found.headline.startswith("1/L helped"), found.tone) == (True, "helped")
    assert "a stronger attack helps" in found.cautions[0]


def test_mentions_an_unidentified_l(write_run: WriteRun) -> None:
    assert "L is not identified" in str(verdict(write_run(arms(40, 60), estimate=VAGUE)))
    assert "not identified" not in str(verdict(write_run(arms(40, 60))))


def test_contradicted_l_replaces_the_advice_for_a_second_seed(write_run: WriteRun) -> None:
    """The baseline trained at 0.1, fifty times the largest rate that L would allow."""
    far_off = LipschitzEstimate(1000.0, (900.0, 1200.0), "edge", False, "8 runs that hardly learned")
    text = str(verdict(write_run(arms(40, 10), estimate=far_off)))
    assert "L is in doubt" in text
    assert "second seed" not in text
    bound = LipschitzEstimate(1000.0, (0.0, 1000.0), "edge", False, "every rate converged")  # 2/L is a lower bound
    assert "L is in doubt" not in str(verdict(write_run(arms(40, 10), estimate=bound)))


def test_judges_the_l_of_every_arm(write_run: WriteRun) -> None:
    low = LipschitzEstimate(1.0, (0.9, 1.1), "epochs", True, "25 maxima")
    tried = {"poe@vague": {"evaluation": evaluation(50)}, "poe@low": {"rate": 1.0, "problem": "Training diverged"}}
    text = str(verdict(write_run(arms(40, 60, **tried), estimates={"vague": VAGUE, "low": low, "unused": VAGUE})))
    assert "L by vague is not identified" in text
    assert "L by low is in doubt" in text
    assert "unused" not in text


@pytest.mark.parametrize(("slopes", "told"), [((10.1, 12.5), True), ((10.0, 10.0), False)])
def test_says_where_recorded_slopes_exceed_one_over_the_rate(
    write_run: WriteRun, slopes: tuple[float, float], told: bool
) -> None:
    """The rate is 0.1. The slopes that are told are those of the first seed."""
    runs = [write_run(arms(40, 60), changes=[f"seed={seed}"]) for seed in range(2)]
    for run, slope in zip(runs, slopes, strict=True):
        Certified(1, 0, 0, 1, slope, None, None, None, "").save(run.arm("poe").certificate_file)
    text = str(verdict(*runs))
    assert ("theorem" in text, "10.1" in text, "12.5" in text) == (told, told, False)


def test_mentions_attacks_that_disagree(write_run: WriteRun) -> None:
    run = write_run(arms(40, 60))
    experiment = run.experiment
    experiment.attacks["other"] = {"kind": "pgd", "eps": 0.3, "step": 0.01}
    for arm, right in zip(run.arms, (50, 10), strict=True):
        assert arm.evaluation
        attacks = dict(arm.evaluation.attacks) | {"other": evaluation(right).attacks[ATTACK]}
        object.__setattr__(arm.evaluation, "attacks", attacks)
    assert any("under other" in caution and "−40.0" in caution for caution in verdict(run).cautions)
    object.__setattr__(run, "experiment", structs.replace(experiment, decides="other"))
    found = verdict(run)
    assert found.headline == f"1/L {Effect.MAYBE_HURT}"
    assert "50.0%" in found.evidence
    assert "10.0%" in found.evidence
    assert any(f"under {ATTACK}" in caution and "+20.0" in caution for caution in found.cautions)


def test_mentions_best_weights_that_disagree(write_run: WriteRun) -> None:
    both = arms(40, 60)
    both["baseline"]["best"], both["poe"]["best"] = evaluation(60), evaluation(40)
    found = verdict(*(write_run(both, changes=[f"seed={seed}"]) for seed in range(3)))
    assert any("best weights" in caution and "−20.0" in caution for caution in found.cautions)
    both["baseline"]["best"], both["poe"]["best"] = evaluation(41), evaluation(40)  # reversed, but not clearly
    found = verdict(*(write_run(both, changes=[f"seed={seed}"]) for seed in range(3)))
    assert not any("best weights" in caution for caution in found.cautions)


def test_counts_the_settings_of_a_sweep(write_run: WriteRun) -> None:
    rights = {32: 60, 64: 41, 128: 20, 256: 39}
    runs = [write_run(arms(40, right), changes=[f"training.batch_size={size}"]) for size, right in rights.items()]
    found = verdict(*runs)
    assert "4 settings" in found.headline
    for effect, count in ((Effect.UNCLEAR, 2), (Effect.MAYBE_HELPED, 1), (Effect.MAYBE_HURT, 1)):
        assert f"{effect} in {count}" in found.headline
    assert "−20.0 points (1/L) to +20.0 points (1/L)" in found.evidence
    assert found.tone == "unclear"


@pytest.mark.parametrize(
    "trained",
    [{}, {"baseline": {}}, {"baseline": {"evaluation": evaluation(40)}}, {"baseline": {}, "poe": {}}],
    ids=["nothing", "trained", "attacked", "both trained"],
)
def test_nothing_to_compare_yet(write_run: WriteRun, trained: dict[str, dict[str, object]]) -> None:
    found = verdict(write_run(trained))
    assert "nothing to compare" in found.headline
    assert found.evidence == ""


@pytest.mark.parametrize(("fitted", "poe", "told"), [(0.941, 60, True), (0.939, 60, False), (0.96, 40, False)])
def test_mentions_an_arm_that_helped_and_fitted_better(
    write_run: WriteRun, fitted: float, poe: int, told: bool
) -> None:
    """As in batches of 2,000 images, in which the usual rate had not finished."""
    both = arms(40, poe)
    both["baseline"]["train_accuracy"], both["poe"]["train_accuracy"] = 0.93, fitted
    cautions = verdict(write_run(both)).cautions
    assert (
        any(f"{fitted:.1%}" in caution and "93.0%" in caution and "`batch`" in caution for caution in cautions) == told
    )


def test_does_not_recommend_a_trained_control(write_run: WriteRun) -> None:
    both = arms(40, 60, batch={"evaluation": evaluation(60), "train_accuracy": 0.96})
    both["baseline"]["train_accuracy"], both["poe"]["train_accuracy"] = 0.93, 0.96
    (caution,) = (caution for caution in verdict(write_run(both)).cautions if "96.0%" in caution)
    assert "`batch`" not in caution


@pytest.mark.parametrize(
    ("fitted", "change", "told"),
    [
        (0.949, "training.batch_size=1000", True),
        (0.95, "training.batch_size=1000", False),
        (0.86, "training.batch_size=999", False),
        (0.86, "training.objective=trades", False),
        (None, "training.batch_size=1000", False),
    ],
)
def test_advice_for_an_unfinished_baseline_in_large_batches(
    write_run: WriteRun, fitted: float | None, change: str, told: bool
) -> None:
    alone = {"baseline": {"evaluation": evaluation(40)} | ({} if fitted is None else {"train_accuracy": fitted})}
    text = str(verdict(write_run(alone, changes=["training.batch_size=1000", change])))
    assert ("94.9%" in text) == told
    assert ("--arms baseline,batch" in text) == told


def test_no_advice_for_a_baseline_that_learned_nothing(write_run: WriteRun) -> None:
    dead = {"evaluation": dataclasses.replace(evaluation(5), chance=0.95), "train_accuracy": 0.11}
    assert "--arms" not in str(verdict(write_run({"baseline": dead}, changes=["training.batch_size=1000"])))


def test_does_not_recommend_trained_arms(write_run: WriteRun) -> None:
    alone = {"evaluation": evaluation(40), "train_accuracy": 0.86}
    for more, told in (("poe", True), ("batch", False)):
        text = str(verdict(write_run({"baseline": alone, more: alone}, changes=["training.batch_size=1000"])))
        assert ("--arms baseline,batch." in text) == told


@pytest.mark.parametrize(
    ("best", "objective", "told"), [(41, "trades", True), (40, "trades", False), (43, "standard", False)]
)
def test_advice_for_adversarial_training_that_overfits(
    write_run: WriteRun, best: int, objective: str, told: bool
) -> None:
    overfitted = {"evaluation": evaluation(40), "best": evaluation(best)}
    changes = [f"training.objective={objective}"]
    text = str(verdict(write_run({"baseline": overfitted}, changes=changes)))
    assert ("overfits" in text and "1.0 points" in text and ATTACK in text) == told
    assert ("--arms baseline,batch" in text) == told
    everything = {"baseline": overfitted, "poe": overfitted, "batch": overfitted}
    assert "--arms" not in str(verdict(write_run(everything, changes=changes)))


def test_counts_only_compared_seeds(write_run: WriteRun) -> None:
    runs = [write_run(arms(40, 60))]
    runs += [write_run({"baseline": {"evaluation": evaluation(40)}}, changes=[f"seed={seed}"]) for seed in (1, 2)]
    assert "1 of 3 seeds" in verdict(*runs).evidence
    assert ONE_SEED in str(verdict(*runs))
