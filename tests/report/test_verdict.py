"""The verdict of runs whose outcome is known."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from msgspec import structs

from excite.evaluation import AttackResult, Cost, Evaluation, Flag, Stage
from excite.lipschitz.protocol import LipschitzEstimate
from excite.report import table
from excite.report.findings import compare_arms, signed
from excite.report.tables.estimates import estimates_table
from excite.report.tables.run_tables import study_table
from excite.report.trainings import standing, standing_in
from excite.report.verdict import NOT_IDENTIFIED, ONE_TRAINING, conclude, verdict
from excite.runs.collection import by_seed
from excite.runs.folder import RunFolder

ATTACK = "PGD_20 ε=1/255"  # what `write_run` puts into the experiment
WriteRun = Callable[..., RunFolder]


def evaluation(right: int, flags: tuple[Flag, ...] = (), shift: int = 0) -> Evaluation:
    """100 images: 95 right clean, `right` of them under the attack, beginning with number `shift`."""
    numbers = np.arange(100)
    robust = (numbers >= shift) & (numbers < shift + right)
    stages = (Stage(ATTACK, right, Cost(1.0, 1, 1)),)
    return Evaluation(numbers < 95, {ATTACK: AttackResult("PGD", robust, stages)}, flags, Cost(), examples="same")


def arms(baseline: int, poe: int, **more: object) -> dict[str, dict[str, object]]:
    return {"baseline": {"evaluation": evaluation(baseline)}, "poe": {"evaluation": evaluation(poe)}, **more}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("right", "headline", "tone"),
    [
        (60, "1/L may have helped", "unclear"),
        (20, "1/L may have hurt", "unclear"),
        (41, "1/L made no clear difference", "unclear"),
        (40, "1/L made no clear difference", "unclear"),
    ],
)
def test_after_one_training_the_headline_says_maybe(write_run: WriteRun, right: int, headline: str, tone: str) -> None:
    found = conclude(by_seed([write_run(arms(40, right))]))
    assert (found.headline, found.tone) == (headline, tone)
    assert ONE_TRAINING in found.cautions
    assert any(caution.startswith("A second seed costs about 2 s") for caution in found.cautions)


def test_a_second_seed_pays_for_every_estimate(write_run: WriteRun) -> None:
    run = write_run(arms(40, 41), estimate=EDGE, estimates={"stated": EDGE, "paper": EDGE})
    assert "about 5 s" in next(caution for caution in conclude(by_seed([run])).cautions if "second seed" in caution)


@pytest.mark.parametrize(
    ("right", "headline", "tone"),
    [
        (60, "1/L helped", "helped"),
        (20, "1/L hurt", "hurt"),
        (41, "1/L made no clear difference", "unclear"),
        (40, "1/L made no clear difference", "unclear"),
    ],
)
def test_over_seeds_the_headline_says_what_the_interval_says(
    write_run: WriteRun, right: int, headline: str, tone: str
) -> None:
    found = conclude(by_seed([write_run(arms(40, right), changes=[f"seed={seed}"]) for seed in range(3)]))
    assert (found.headline, found.tone) == (headline, tone)
    assert not any("second seed" in caution for caution in found.cautions)


EDGE = LipschitzEstimate(4.0, (3.0, 5.0), "edge", True, "8 short trainings")  # 2/L = 0.5, within 0.4 to 0.667
LOST = {"rate": 0.5, "problem": "Training diverged in epoch 2"}


def test_a_training_that_diverges_at_2_over_l_is_told_and_not_held_against_l(
    write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of all trainings do."""
    run = write_run(arms(40, 60, largest=LOST), estimate=EDGE)
    monkeypatch.setenv("COLUMNS", "200")
    assert conclude(by_seed([run])).headline == "1/L may have helped, 2/L diverged"
    assert "in doubt" not in table(run)
    assert "largest convergent" not in table(run)
    assert "largest convergent" in table(write_run(arms(40, 60, largest={"rate": 0.5}), estimate=EDGE))


@pytest.mark.parametrize(("lost", "of", "told"), [(4, 4, False), (5, 5, True), (6, 7, False), (7, 8, True)])
def test_many_that_are_lost_at_2_over_l_are_held_against_it(
    write_run: WriteRun, lost: int, of: int, told: bool
) -> None:
    """Where every second should end well, 5 of 5 are lost in 3% of all cases, 4 of 4 in 6%."""
    ended = [LOST] * (lost - 1) + [{"rate": 0.5, "evaluation": dead()}] + [{"rate": 0.5}] * (of - lost)
    runs = [
        write_run(arms(40, 60, largest=one), estimate=EDGE, changes=[f"seed={seed}"]) for seed, one in enumerate(ended)
    ]
    words = f"L is in doubt: {lost} of {of} trainings at 2/L failed, where at least half should converge."
    study = study_table(by_seed(runs))
    assert (words in conclude(by_seed(runs)).cautions) == told
    assert any(words in note for note in study.notes) == told
    assert [record.L_trusted for record in study.records if record.arm == "largest"] == [not told] * 2


@pytest.mark.parametrize(
    ("rate", "problem", "words"),
    [
        (0.5, None, "yes: identified"),
        (0.66, None, "yes: identified"),
        (1.5, None, "no: training converged at 1.5, so 2/L = 0.5 seems too low"),  # beyond 2/3, the interval's end
        (0.7, "Training diverged", "yes: identified"),
        (0.5, "Training diverged", "yes: identified"),
        (0.4, "Training diverged", "yes: identified"),  # the interval's other end
        (0.39, "Training diverged", "no: training diverged at 0.39, so 2/L = 0.5 seems too high"),
    ],
)
def test_an_estimate_that_trainings_speak_against_is_not_trusted(
    write_run: WriteRun, rate: float, problem: str | None, words: str
) -> None:
    run = write_run({"baseline": {"rate": rate, "problem": problem}})
    assert str(standing(EDGE, run.arms)) == words


def test_an_interval_however_wide_does_not_save_an_l_whose_1_over_l_diverges(write_run: WriteRun) -> None:
    wide = LipschitzEstimate(4.0, (0.1, 50.0), "epochs", False, "25 maxima")
    at_half, above = (write_run({"poe": {"rate": rate, "problem": "Training diverged"}}) for rate in (0.25, 0.26))
    assert str(standing(wide, at_half.arms)) == "no: training diverged at 0.25, so 2/L = 0.5 seems too high"
    assert str(standing(wide, above.arms)) == "no: the data do not identify it"


def test_where_a_higher_rate_did_well_a_divergence_does_not_make_2_over_l_too_high(write_run: WriteRun) -> None:
    """As ResNet-8 without batch-norm, whose 1/L broke in epoch 52 and whose 2/L trained."""
    broken = {"rate": 0.25, "problem": "Training diverged"}
    assert not standing(EDGE, write_run({"poe": broken}).arms).trusted
    assert not standing(EDGE, write_run({"poe": broken, "largest": {"rate": 0.5, "evaluation": dead()}}).arms).trusted
    assert standing(EDGE, write_run({"poe": broken, "largest": {"rate": 0.5}}).arms).trusted


def test_an_estimate_far_from_what_short_trainings_gave_is_not_trusted() -> None:
    measured = LipschitzEstimate(20.0, (10.0, 40.0), "edge", True, "8 short trainings")
    near, far = (LipschitzEstimate(c, (c / 1.2, c * 1.2), "epochs", True, "25 maxima") for c in (30.0, 0.2))
    assert standing(near, [], measured).trusted
    assert str(standing(far, [], measured)) == (
        "no: its 2/L = 10 is not within 0.05 to 0.2, where short trainings stop converging"
    )
    bound = LipschitzEstimate(0.1, (0.0, 0.1), "edge", False, "every rate that was tried converged")
    assert str(standing(near, [], bound)) == (
        "no: its 2/L = 0.0667 is not above 20, where short trainings stop converging"
    )


def test_the_sentence_names_both_accuracies_the_difference_and_its_interval(write_run: WriteRun) -> None:
    run = write_run(arms(40, 60, largest={"problem": "Training diverged in epoch 2"}))
    found = conclude(by_seed([run]))
    low, high = compare_arms(by_seed([run])[0])[0].interval
    assert found.sentence == (
        f"1/L may have helped, 2/L diverged: accuracy under {ATTACK} is 40.0% with the baseline, 60.0% with 1/L "
        f"(+20.0 points, 95% interval {signed(low)} to {signed(high)})."
    )
    assert 0.1 < low < 0.2 < high < 0.3
    assert ONE_TRAINING in found.cautions
    assert str(found) == verdict(run)


def test_with_warnings_the_comparison_is_not_to_be_trusted(write_run: WriteRun) -> None:
    flags = (Flag("vanishing gradients", "every gradient is zero"),)
    run = write_run({"baseline": {"evaluation": evaluation(40)}, "poe": {"evaluation": evaluation(60, flags)}})
    found = conclude(by_seed([run]))
    assert found.headline == "Not to be trusted yet; as measured, 1/L may have helped"
    assert found.tone == "warning"
    assert found.cautions[0] == "Trust checks warn: “vanishing gradients” (1/L)."


@pytest.mark.parametrize(
    ("doubted", "headline"),
    [
        ("largest", "1/L may have helped, 2/L made no clear difference; the accuracy of 2/L is not to be trusted yet"),
        ("baseline", "Not to be trusted yet; as measured, 1/L may have helped, 2/L made no clear difference"),
    ],
)
def test_a_doubt_of_one_arm_leaves_the_others_what_was_measured(
    write_run: WriteRun, doubted: str, headline: str
) -> None:
    flags = (Flag("vanishing gradients", "every gradient is zero"),)
    right = {"baseline": 40, "poe": 60, "largest": 41}
    run = write_run(
        {name: {"evaluation": evaluation(count, flags if name == doubted else ())} for name, count in right.items()}
    )
    found = conclude(by_seed([run]))
    assert (found.headline, found.tone) == (headline, "warning")


def test_an_l_that_is_not_identified_is_mentioned(write_run: WriteRun) -> None:
    vague = LipschitzEstimate(4.0, (3.0, 5.0), "local", False, "25 maxima")
    assert NOT_IDENTIFIED.format("L") in verdict(write_run(arms(40, 60), estimate=vague))
    assert "not identified" not in verdict(write_run(arms(40, 60)))


def test_a_vague_l_is_refuted_by_its_own_run_and_comes_before_a_second_seed(write_run: WriteRun) -> None:
    """The baseline trained at 0.1, fifty times the largest rate that L would allow."""
    far_off = LipschitzEstimate(1000.0, (900.0, 1200.0), "edge", False, "8 runs that hardly learned")
    said = verdict(write_run(arms(40, 10), estimate=far_off))
    assert "L is in doubt: training converged at 0.1, so 2/L = 0.002 seems too low." in said
    assert "second seed" not in said
    bound = LipschitzEstimate(1000.0, (0.0, 1000.0), "edge", False, "every rate converged")
    assert "L is in doubt" not in verdict(write_run(arms(40, 10), estimate=bound))  # of which 2/L is a lower bound


def test_an_l_that_other_arms_rest_on_is_judged_like_the_experiments_own(write_run: WriteRun) -> None:
    vague = LipschitzEstimate(4.0, (3.0, 5.0), "local", False, "25 maxima")
    low = LipschitzEstimate(1.0, (0.9, 1.1), "epochs", True, "25 maxima")
    tried = {"poe@vague": {"evaluation": evaluation(50)}, "poe@low": {"rate": 1.0, "problem": "Training diverged"}}
    said = verdict(write_run(arms(40, 60, **tried), estimates={"vague": vague, "low": low, "unused": vague}))
    assert NOT_IDENTIFIED.format("L by vague") in said
    assert "L by low is in doubt: training diverged at 1, so 2/L = 2 seems too high." in said
    assert "unused" not in said


def test_attacks_that_disagree_are_mentioned(write_run: WriteRun) -> None:
    run = write_run(arms(40, 60))
    experiment = run.experiment
    experiment.attacks["other"] = {"kind": "pgd", "eps": 0.3, "step": 0.01}
    for arm, right in zip(run.arms, (50, 10), strict=True):
        assert arm.evaluation
        attacks = dict(arm.evaluation.attacks) | {"other": evaluation(right).attacks[ATTACK]}
        object.__setattr__(arm.evaluation, "attacks", attacks)
    assert "The attacks disagree: under other, 1/L may have hurt (−40.0)." in conclude(by_seed([run])).cautions
    object.__setattr__(run, "experiment", structs.replace(experiment, decides="other"))
    found = conclude(by_seed([run]))
    assert found.sentence.startswith(
        "1/L may have hurt: accuracy under other is 50.0% with the baseline, 10.0% with 1/L"
    )
    assert f"The attacks disagree: under {ATTACK}, 1/L may have helped (+20.0)." in found.cautions


def test_a_sweep_is_counted(write_run: WriteRun) -> None:
    rights = {32: 60, 64: 41, 128: 20, 256: 39}
    runs = [write_run(arms(40, right), changes=[f"training.batch_size={size}"]) for size, right in rights.items()]
    found = conclude(by_seed(runs))
    assert (
        found.headline
        == "Over 4 settings, 1/L made no clear difference in 2, may have helped in 1 and may have hurt in 1"
    )
    assert "range from −20.0 points (1/L) to +20.0 points (1/L)" in found.evidence
    assert found.tone == "unclear"


@pytest.mark.parametrize(
    "trained",
    [{}, {"baseline": {}}, {"baseline": {"evaluation": evaluation(40)}}, {"baseline": {}, "poe": {}}],
    ids=["nothing", "trained", "attacked", "both trained"],
)
def test_nothing_to_compare_yet(write_run: WriteRun, trained: dict[str, dict[str, object]]) -> None:
    assert verdict(write_run(trained)) == "There is nothing to compare yet."


def dead() -> Evaluation:
    """Ten classes, one answer: 10 of 100 right, whatever the attack."""
    right = np.arange(100) < 10
    attacks = {ATTACK: AttackResult("PGD", right, (Stage(ATTACK, 10, Cost(1.0, 1, 1)),))}
    return Evaluation(right, attacks, (), Cost(), examples="same", chance=0.1)


def test_nobody_beats_a_baseline_that_guesses(write_run: WriteRun) -> None:
    run = write_run({"baseline": {"evaluation": dead()}, "poe": {"evaluation": evaluation(60)}})
    found = conclude(by_seed([run]))
    assert (found.headline, found.tone) == ("1/L met a baseline that learned nothing", "unclear")


def test_a_baseline_that_guesses_like_the_others_is_named(write_run: WriteRun) -> None:
    both = {name: {"evaluation": dead()} for name in ("baseline", "placebo")}
    assert conclude(by_seed([write_run(both)])).headline == "The placebo learned nothing, nor did the baseline"


def test_a_grid_search_is_an_arm_like_others(write_run: WriteRun) -> None:
    run = write_run(arms(40, 60, **{"grid-5": {"evaluation": evaluation(55)}}))
    assert conclude(by_seed([run])).headline == "1/L and the grid of 5 rates may have helped"


@pytest.mark.parametrize(("fitted", "poe", "told"), [(0.96, 60, True), (0.935, 60, False), (0.96, 40, False)])
def test_an_arm_that_helped_by_learning_further_is_told_so(
    write_run: WriteRun, fitted: float, poe: int, told: bool
) -> None:
    """As in batches of 2,000 images, in which the customary rate had not finished."""
    both = arms(40, poe)
    both["baseline"]["train_accuracy"], both["poe"]["train_accuracy"] = 0.93, fitted
    cautions = conclude(by_seed([write_run(both)])).cautions
    assert any("1/L has also learned further, 96.0% of the training images" in words for words in cautions) == told


@pytest.mark.parametrize(
    ("fitted", "change", "told"),
    [
        (0.86, "training.batch_size=1000", True),
        (0.96, "training.batch_size=1000", False),
        (0.86, "training.batch_size=128", False),
        (0.86, "training.objective=trades", False),
        (None, "training.batch_size=1000", False),
    ],
)
def test_a_baseline_that_has_not_finished_in_large_batches_is_told_what_helped_there(
    write_run: WriteRun, fitted: float | None, change: str, told: bool
) -> None:
    alone = {"baseline": {"evaluation": evaluation(40)} | ({} if fitted is None else {"train_accuracy": fitted})}
    said = verdict(write_run(alone, changes=["training.batch_size=1000", change]))
    assert ("The baseline has fitted 86.0% of the training images, in batches of 1,000." in said) == told
    assert ("To try: --arms baseline,half,poe." in said) == told


def test_a_baseline_that_learned_nothing_is_not_told_to_learn_further(write_run: WriteRun) -> None:
    dead = {"evaluation": dataclasses.replace(evaluation(5), chance=0.95), "train_accuracy": 0.11}
    said = verdict(write_run({"baseline": dead}, changes=["training.batch_size=1000"]))
    assert "has fitted" not in said


def test_what_was_tried_already_is_not_recommended(write_run: WriteRun) -> None:
    alone = {"evaluation": evaluation(40), "train_accuracy": 0.86}
    for more, cure in (("poe", "To try: --arms baseline,half."), ("half", "To try: --arms baseline,poe.")):
        assert cure in verdict(write_run({"baseline": alone, more: alone}, changes=["training.batch_size=1000"]))


@pytest.mark.parametrize(
    ("best", "objective", "told"), [(43, "trades", True), (40, "trades", False), (43, "standard", False)]
)
def test_adversarial_training_that_overfits_is_told_what_helped_there(
    write_run: WriteRun, best: int, objective: str, told: bool
) -> None:
    overfitted = {"evaluation": evaluation(40), "best": evaluation(best)}
    changes = [f"training.objective={objective}"]
    said = verdict(write_run({"baseline": overfitted}, changes=changes))
    assert (
        f"The baseline's best weights keep 3.0 points more than its last under {ATTACK}: it overfits." in said
    ) == told
    assert ("To try: --arms baseline,poe,batch." in said) == told
    everything = {"baseline": overfitted, "poe": overfitted, "batch": overfitted}
    assert "To try" not in verdict(write_run(everything, changes=changes))


def test_only_seeds_that_were_compared_are_counted(write_run: WriteRun) -> None:
    runs = [write_run(arms(40, 60))]
    runs += [write_run({"baseline": {"evaluation": evaluation(40)}}, changes=[f"seed={seed}"]) for seed in (1, 2)]
    said = str(conclude(by_seed(runs)))
    assert "at the 1 of 3 seeds where both are there" in said
    assert ONE_TRAINING in said
    assert "over 3 seeds" not in said


def test_a_control_is_not_told_to_try_itself(write_run: WriteRun) -> None:
    both = arms(40, 60, batch={"evaluation": evaluation(60), "train_accuracy": 0.96})
    both["baseline"]["train_accuracy"], both["poe"]["train_accuracy"] = 0.93, 0.96
    said = verdict(write_run(both))
    assert said.count("has also learned further") == 1
    assert "the arm `batch`" not in said


def test_an_l_is_held_against_what_short_trainings_gave_everywhere(write_run: WriteRun) -> None:
    measured = LipschitzEstimate(20.0, (10.0, 40.0), "edge", True, "8 short trainings")
    far = LipschitzEstimate(0.2, (0.15, 0.25), "epochs", True, "25 maxima")
    run = write_run(
        arms(40, 60, **{"poe@epochs": {"evaluation": evaluation(50)}}), estimate=measured, estimates={"epochs": far}
    )
    words = "its 2/L = 10 is not within 0.05 to 0.2, where short trainings stop converging"
    assert f"L by epochs is in doubt: {words}." in verdict(run)
    assert "its 2/L = 10 is not within" in " ".join(estimates_table({"epochs": far}, run).split())


@pytest.mark.parametrize(
    "measured",
    [
        LipschitzEstimate(200.0, (100.0, 400.0), "edge", True, "8 runs, and then 0.1 converged"),
        LipschitzEstimate(2.0, (1.0, 4.0), "edge", False, "8 runs that hardly learned"),
    ],
)
def test_an_l_that_is_not_to_be_trusted_is_no_measure_of_others(
    write_run: WriteRun, measured: LipschitzEstimate
) -> None:
    other = LipschitzEstimate(10.0, (8.0, 12.0), "local", True, "25 maxima")
    run = write_run(arms(40, 60), estimate=measured, estimates={"local": other})
    assert standing_in(run, other).trusted
    assert not standing_in(run, measured).trusted


def test_a_network_that_learned_nothing_has_not_converged(write_run: WriteRun) -> None:
    sure = LipschitzEstimate(4.0, (3.0, 5.0), "edge", True, "8 short trainings")
    run = write_run({"baseline": {"rate": 1.5, "evaluation": dead()}}, estimate=sure)
    assert standing(sure, run.arms).trusted


def test_best_weights_that_say_the_opposite_are_mentioned(write_run: WriteRun) -> None:
    both = arms(40, 60)
    both["baseline"]["best"], both["poe"]["best"] = evaluation(60), evaluation(40)
    runs = [write_run(both, changes=[f"seed={seed}"]) for seed in range(3)]
    cautions = conclude(by_seed(runs)).cautions
    assert "Best and last weights disagree: with the best ones, 1/L hurt (−20.0)." in cautions


def test_a_doubted_control_is_told_and_spoils_no_verdict(write_run: WriteRun) -> None:
    """Its true accuracy is lower, if anything: the arm beats it all the more."""
    control = {"evaluation": evaluation(40, (Flag("a stronger attack helps", "by 2 points."),))}
    runs = [write_run(arms(40, 60, placebo=control), changes=[f"seed={seed}"]) for seed in range(3)]
    found = conclude(by_seed(runs))
    assert (found.headline.startswith("1/L helped"), found.tone) == (True, "helped")
    assert found.cautions[0] == "Trust checks warn: “a stronger attack helps” (the placebo)."
