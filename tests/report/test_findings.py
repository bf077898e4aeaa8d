"""What an arm did against the baseline and its controls, at the seeds and images that both have."""

import shutil

import pytest

from excite.evaluation.comparison import paired_difference
from excite.report.findings import compare_arms, signed
from excite.report.verdict import ONE_TRAINING, conclude, verdict
from excite.runs.collection import by_seed
from excite.runs.folder import RunFolder
from tests.report.test_verdict import ATTACK, WriteRun, arms, dead, evaluation


def test_no_difference_is_plus_zero_whatever_the_rounding(write_run: WriteRun) -> None:
    assert "(+0.0 points, 95% interval −2.7 to +2.7)" in verdict(write_run(arms(40, 40)))
    assert (signed(-0.0001), signed(-0.029), signed(0.125)) == ("+0.0", "−2.9", "+12.5")


def test_several_seeds_are_paired_by_seed_and_image(write_run: WriteRun) -> None:
    runs = [write_run(arms(40, 50 + seed), changes=[f"seed={seed}"]) for seed in range(3)]
    (group,) = by_seed(runs)
    (finding,) = compare_arms(group)
    pairs = [(run.arms[0].evaluation, run.arms[1].evaluation) for run in runs]
    twin = paired_difference([(one, other) for one, other in pairs if one and other], ATTACK)
    assert (finding.difference, finding.interval) == (twin.difference, twin.interval)
    assert finding.difference == pytest.approx(0.11)
    assert "mean of 3 seeds, is 40.0% with the baseline, 51.0% with 1/L (+11.0 points" in str(conclude([group]))
    assert ONE_TRAINING not in conclude([group]).cautions


def test_seeds_that_diverged_are_counted(write_run: WriteRun) -> None:
    runs = [write_run(arms(40, 60), changes=["seed=0"])]
    diverged = {"baseline": {"evaluation": evaluation(40)}, "poe": {"problem": "Training diverged"}}
    runs.append(write_run(diverged, changes=["seed=1"]))
    assert "1 of 2 seeds diverged" in str(conclude(by_seed(runs)))


def test_the_means_and_the_difference_in_one_sentence_are_of_the_same_seeds(write_run: WriteRun) -> None:
    """The baseline is 40, 44 and 60; 1/L diverged where it was 60, and 2/L where it was 44."""
    trained = [(40, 50, 60), (44, 48, None), (60, None, 50)]
    runs = []
    for seed, rights in enumerate(trained):
        names = dict(zip(("baseline", "poe", "largest"), rights, strict=True))
        found = {
            name: {"problem": "Training diverged"} if right is None else {"evaluation": evaluation(right)}
            for name, right in names.items()
        }
        runs.append(write_run(found, changes=[f"seed={seed}"]))
    (group,) = by_seed(runs)
    told = conclude([group]).evidence
    assert "49.0% with 1/L (+7.0 points" in told
    assert "1 of 3 seeds diverged) against 42.0% with the baseline at seeds 0 and 1" in told
    assert "55.0% with 2/L (+5.0 points" in told
    assert "against 50.0% with the baseline at seeds 0 and 2" in told
    for finding in compare_arms(group):
        assert finding.value - finding.baseline == pytest.approx(finding.difference)
    without_largest = by_seed([run_without(run, "largest") for run in runs])
    assert "at the 2 of 3 seeds where both are there, is 42.0% with the baseline, 49.0% with 1/L (+7.0" in str(
        conclude(without_largest)
    )


def run_without(run: RunFolder, arm: str) -> RunFolder:
    shutil.rmtree(run.arm(arm).path)
    return RunFolder(run.path)


def test_a_network_that_guesses_neither_helps_nor_hurts(write_run: WriteRun) -> None:
    """At a radius that nobody withstands, 10% are 10 points more than the baseline's nothing."""
    run = write_run(arms(0, 1, largest={"evaluation": dead()}))
    assert conclude(by_seed([run])).headline == "1/L made no clear difference, 2/L learned nothing"
    seeds = [run, write_run(arms(0, 1, largest={"evaluation": evaluation(1)}), changes=["seed=1"])]
    (_, largest) = compare_arms(by_seed(seeds)[0])
    assert largest.missing == "1 of 2 seeds learned nothing"


@pytest.mark.parametrize(
    ("control", "headline", "tone"),
    [
        (58, "1/L helped, but was not shown to do more than the placebo", "unclear"),
        (40, "1/L helped", "helped"),
    ],
)
def test_an_arm_that_does_not_beat_its_control_is_told_so(
    write_run: WriteRun, control: int, headline: str, tone: str
) -> None:
    runs = [
        write_run(arms(40, 60, placebo={"evaluation": evaluation(control)}), changes=[f"seed={seed}"])
        for seed in range(5)
    ]
    found = conclude(by_seed(runs))
    assert found.headline.startswith(headline)
    assert ("but was not shown" in found.headline) == (control == 58)
    assert found.tone == tone
    (poe,) = (finding for finding in compare_arms(by_seed(runs)[0]) if finding.name == "poe")
    assert poe.so == headline.removeprefix("1/L ")


def test_both_controls_are_named_and_a_control_has_none(write_run: WriteRun) -> None:
    same = {name: {"evaluation": evaluation(60)} for name in ("placebo", "batch")}
    poe, placebo, batch = compare_arms(by_seed([write_run(arms(40, 60, **same))])[0])
    assert poe.so == "may have helped, but was not shown to do more than the placebo and the η/B control"
    assert placebo.unbeaten == batch.unbeaten == ()


@pytest.mark.parametrize(
    ("poe", "headline"),
    [
        ({"evaluation": evaluation(60)}, "The baseline diverged"),
        ({"problem": "Training diverged"}, "The baseline and 1/L diverged"),
    ],
)
def test_a_baseline_that_diverged_is_named(write_run: WriteRun, poe: dict[str, object], headline: str) -> None:
    run = write_run({"baseline": {"problem": "Training diverged"}, "poe": poe})
    assert conclude(by_seed([run])).headline == headline
    (finding,) = compare_arms(by_seed([run])[0])
    assert finding.effect == ("diverged" if "problem" in poe else "has no baseline to stand beside, which diverged")


def test_the_seeds_that_did_not_diverge_may_be_the_lucky_ones(write_run: WriteRun) -> None:
    lost = {"baseline": {"evaluation": evaluation(40)}, "poe": {"problem": "Training diverged"}}
    runs = [write_run(lost if seed > 2 else arms(40, 60), changes=[f"seed={seed}"]) for seed in range(5)]
    found = conclude(by_seed(runs))
    assert (found.headline, found.tone) == ("1/L may have helped", "unclear")


def test_a_baseline_that_was_lost_at_some_seeds_is_told(write_run: WriteRun) -> None:
    """Where it diverged the seeds that remain may be its lucky ones; where it learned nothing its mean is of that."""
    lost = {"baseline": {"problem": "Training diverged"}, "poe": {"evaluation": evaluation(20)}}
    runs = [write_run(lost if seed < 2 else arms(40, 20), changes=[f"seed={seed}"]) for seed in range(5)]
    found = conclude(by_seed(runs))
    assert (found.headline, found.tone) == ("1/L may have hurt", "unclear")
    assert "; the baseline diverged at 2 of 5 seeds)" in found.evidence
    guessing = {"baseline": {"evaluation": dead()}, "poe": {"evaluation": evaluation(60)}}
    runs = [write_run(guessing if seed < 2 else arms(40, 60), changes=[f"seed={seed}"]) for seed in range(5)]
    assert "; the baseline learned nothing at 2 of 5 seeds)" in conclude(by_seed(runs)).evidence


def test_several_arms_are_told_in_the_plural(write_run: WriteRun) -> None:
    more = {name: {"evaluation": evaluation(60)} for name in ("largest", "placebo")}
    headline = conclude(by_seed([write_run(arms(40, 60, **more))])).headline
    assert headline.startswith("1/L and 2/L may have helped, but were not shown to do more than the placebo,")


def test_a_control_at_one_seed_is_not_beaten_at_three(write_run: WriteRun) -> None:
    runs = [write_run(arms(40, 60, placebo={"evaluation": evaluation(40)}))]
    runs += [write_run(arms(40, 60), changes=[f"seed={seed}"]) for seed in (1, 2)]
    poe, _ = compare_arms(by_seed(runs)[0])
    assert poe.unbeaten == ("the placebo",)
