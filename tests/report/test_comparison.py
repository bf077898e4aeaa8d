"""What an arm did compared with the baseline and its controls, at the seeds and images that both have."""

import shutil

import pytest

from excite.evaluation.comparison import paired_difference
from excite.report.formats import points
from excite.report.rows import tidy
from excite.report.verdict import Effect, compare_arms
from excite.runs.folder import RunFolder
from tests.report.test_verdict import ATTACK, ONE_SEED, WriteRun, arms, dead, evaluation, verdict

BROKEN = {"problem": "Training diverged"}


def test_formats_zero_difference_as_plus_zero(write_run: WriteRun) -> None:
    assert "+0.0 points, 95% interval −2.7 to +2.7" in verdict(write_run(arms(40, 40))).evidence
    assert (points(-0.0001), points(-0.029), points(0.125)) == ("+0.0", "−2.9", "+12.5")


def test_pairs_by_seed_and_image(write_run: WriteRun) -> None:
    runs = [write_run(arms(40, 50 + seed), changes=[f"seed={seed}"]) for seed in range(3)]
    (finding,) = compare_arms(tidy(runs))
    pairs = [(run.arms[0].evaluation, run.arms[1].evaluation) for run in runs]
    twin = paired_difference([(one, other) for one, other in pairs if one and other], ATTACK)
    assert finding.difference == twin
    assert (*finding.means, twin.difference) == pytest.approx((0.4, 0.51, 0.11))
    assert "3 seeds" in verdict(*runs).evidence
    assert ONE_SEED not in str(verdict(*runs))


def test_counts_diverged_seeds(write_run: WriteRun) -> None:
    runs = [write_run(arms(40, 60), changes=["seed=0"])]
    runs.append(write_run({"baseline": {"evaluation": evaluation(40)}, "poe": BROKEN}, changes=["seed=1"]))
    assert "1 of 2 seeds failed" in verdict(*runs).evidence


def test_all_numbers_of_a_finding_are_means_over_the_same_seeds(write_run: WriteRun) -> None:
    """The baseline has 40, 44 and 60; 1/L diverged where it has 60, and 2/L where it has 44."""
    trained = [(40, 50, 60), (44, 48, None), (60, None, 50)]
    runs = []
    for seed, rights in enumerate(trained):
        names = dict(zip(("baseline", "poe", "largest"), rights, strict=True))
        found = {name: BROKEN if right is None else {"evaluation": evaluation(right)} for name, right in names.items()}
        runs.append(write_run(found, changes=[f"seed={seed}"]))
    poe, largest = compare_arms(tidy(runs))
    assert (poe.seeds, largest.seeds) == ((0, 1), (0, 2))
    assert poe.difference
    assert largest.difference
    assert (*poe.means, poe.difference.difference) == pytest.approx((0.42, 0.49, 0.07))
    assert (*largest.means, largest.difference.difference) == pytest.approx((0.50, 0.55, 0.05))
    evidence = verdict(*runs).evidence
    for part in ("49.0%", "42.0%", "seeds 0 and 1", "55.0%", "50.0%", "seeds 0 and 2", "1 of 3 seeds failed"):
        assert part in evidence
    without_largest = verdict(*(run_without(run, "largest") for run in runs)).evidence
    for part in ("2 of 3 seeds", "42.0%", "49.0%", "+7.0"):
        assert part in without_largest


def run_without(run: RunFolder, arm: str) -> RunFolder:
    shutil.rmtree(run.arm(arm).path)
    return RunFolder(run.path)


def test_guessing_neither_helps_nor_hurts(write_run: WriteRun) -> None:
    """At a radius where every network fails, guessing would gain 10 points on the baseline."""
    run = write_run(arms(0, 1, largest={"evaluation": dead()}))
    assert [finding.effect for finding in compare_arms(tidy([run]))] == [Effect.UNCLEAR, Effect.LEARNED_NOTHING]
    seeds = [run, write_run(arms(0, 1, largest={"evaluation": evaluation(1)}), changes=["seed=1"])]
    (_, largest) = compare_arms(tidy(seeds))
    assert largest.failures == "1 of 2 seeds failed"
    assert largest.effect is Effect.UNCLEAR


def test_does_not_compare_with_a_guessing_baseline(write_run: WriteRun) -> None:
    guesses = {"evaluation": dead()}
    (poe, placebo) = compare_arms(
        tidy([write_run({"baseline": guesses, "poe": {"evaluation": evaluation(60)}, "placebo": guesses})])
    )
    assert (poe.effect, placebo.effect) == (Effect.BASELINE_FAILED, Effect.BASELINE_FAILED)
    once = [{"baseline": guesses, "poe": guesses}, {"baseline": {"evaluation": evaluation(60)}, "poe": guesses}]
    runs = [write_run(found, changes=[f"seed={seed}"]) for seed, found in enumerate(once)]
    assert compare_arms(tidy(runs))[0].effect is Effect.LEARNED_NOTHING


def test_a_grid_search_is_an_arm_like_others(write_run: WriteRun) -> None:
    run = write_run(arms(40, 60, **{"grid-5": {"evaluation": evaluation(55)}}))
    assert {finding.arm.short_title: finding.effect for finding in compare_arms(tidy([run]))} == {
        "1/L": Effect.MAYBE_HELPED,
        "the grid of 5 rates": Effect.MAYBE_HELPED,
    }


@pytest.mark.parametrize(("control", "unbeaten", "tone"), [(58, ("the placebo",), "unclear"), (40, (), "helped")])
def test_an_arm_that_does_not_beat_its_control_did_not_clearly_help(
    write_run: WriteRun, control: int, unbeaten: tuple[str, ...], tone: str
) -> None:
    runs = [
        write_run(arms(40, 60, placebo={"evaluation": evaluation(control)}), changes=[f"seed={seed}"])
        for seed in range(5)
    ]
    poe, _ = compare_arms(tidy(runs))
    assert (poe.effect, tuple(poe.unbeaten)) == (Effect.HELPED, unbeaten)
    assert verdict(*runs).headline.startswith(f"1/L {poe.conclusion}")
    assert all(title in poe.conclusion for title in unbeaten)
    assert verdict(*runs).tone == tone


def test_a_control_has_no_controls(write_run: WriteRun) -> None:
    same = {name: {"evaluation": evaluation(60)} for name in ("placebo", "batch")}
    poe, placebo, batch = compare_arms(tidy([write_run(arms(40, 60, **same))]))
    assert poe.unbeaten == ["the placebo", "the η/B control"]
    assert placebo.unbeaten == batch.unbeaten == []


def test_a_control_at_one_seed_is_not_beaten_at_three(write_run: WriteRun) -> None:
    runs = [write_run(arms(40, 60, placebo={"evaluation": evaluation(40)}))]
    runs += [write_run(arms(40, 60), changes=[f"seed={seed}"]) for seed in (1, 2)]
    poe, _ = compare_arms(tidy(runs))
    assert poe.unbeaten == ["the placebo"]


@pytest.mark.parametrize(
    ("poe", "effect"), [({"evaluation": evaluation(60)}, Effect.BASELINE_FAILED), (BROKEN, Effect.DIVERGED)]
)
def test_names_a_diverged_baseline(write_run: WriteRun, poe: dict[str, object], effect: Effect) -> None:
    run = write_run({"baseline": BROKEN, "poe": poe})
    (finding,) = compare_arms(tidy([run]))
    assert finding.effect is effect
    headline = verdict(run).headline
    assert ("baseline" in headline, "1/L" in headline, "diverged" in headline) == (True, poe is BROKEN, True)


def test_diverged_seeds_weaken_the_effect(write_run: WriteRun) -> None:
    lost = {"baseline": {"evaluation": evaluation(40)}, "poe": BROKEN}
    runs = [write_run(lost if seed > 2 else arms(40, 60), changes=[f"seed={seed}"]) for seed in range(5)]
    assert compare_arms(tidy(runs))[0].effect is Effect.MAYBE_HELPED
    assert verdict(*runs).tone == "unclear"


def test_mentions_failed_seeds_of_the_baseline(write_run: WriteRun) -> None:
    """The other seeds may be the lucky ones."""
    lost = {"baseline": BROKEN, "poe": {"evaluation": evaluation(20)}}
    runs = [write_run(lost if seed < 2 else arms(40, 20), changes=[f"seed={seed}"]) for seed in range(5)]
    (finding,) = compare_arms(tidy(runs))
    assert (finding.effect, finding.failures) == (Effect.MAYBE_HURT, "the baseline failed at 2 of 5 seeds")
    guessing = {"baseline": {"evaluation": dead()}, "poe": {"evaluation": evaluation(60)}}
    runs = [write_run(guessing if seed < 2 else arms(40, 60), changes=[f"seed={seed}"]) for seed in range(5)]
    assert compare_arms(tidy(runs))[0].failures == "the baseline failed at 2 of 5 seeds"
