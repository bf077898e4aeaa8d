import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch

from excite.runs import load
from excite.runs.procedure import Run
from excite.sweeps.costs import costs, duration

CPU = torch.device("cpu")


class Silence:
    def say(self, text: str) -> None: ...

    def task(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]:
        return nullcontext(lambda *_: None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.123, "0.12 s"),
        (59, "59 s"),
        (89, "89 s"),
        (91, "1.5 min"),
        (3599, "60 min"),
        (2 * 3600, "2 h"),
        (86400, "24 h"),
        (40 * 86400, "40 days"),
        (400 * 86400, "400 days"),
        (4 * 365.25 * 86400, "4 years"),
    ],
)
def test_durations_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_sweep_costs_the_sum_of_its_runs() -> None:
    plain = load("mnist-sample", overrides=["data.train_examples=1000", "lipschitz.steps=9"])
    swept = load(
        "mnist-sample",
        overrides=[
            "sweep={seed=[0, 1], training.epochs=[10, 20, 40]}",
            "data.train_examples=1000",
            "lipschitz.steps=9",
        ],
    )
    one, several = costs({"plain": plain, "swept": swept}, CPU).values()
    assert (one.sweep_runs, one.sweep_seconds) == (0, 0)
    assert several.sweep_runs == 6
    assert several.work == one.work
    assert several.seconds == one.seconds
    # Longer trainings; the same estimate of L and the same attacks.
    longer = (several.sweep_seconds - 6 * several.seconds) / several.seconds * several.work.passes
    assert longer == pytest.approx(2 * (0.5 - 1 + 2 - 1) * several.work.training, rel=0.05)
    assert str(one) == f"≈ {duration(one.seconds)}"


def test_a_teacher_with_a_network_of_its_own_is_added() -> None:
    overrides = ["data.name=mnist-sample-1k+4k", 'training.objective={kind="rst"}', "data.epoch_samples=100"]
    overrides += ['arms=["baseline"]', "training.epochs=1", "record.curvature_every=0"]
    overrides += ['teacher.training={epochs=20, batch_size=64, schedule={kind="constant", rate=0.1}}']
    alike = load("mnist-sample", overrides=overrides)
    larger = load("mnist-sample", overrides=[*overrides, "teacher.model.name=resnet20"])
    found = costs({"alike": alike, "larger": larger}, CPU)
    assert found["alike"].work == found["larger"].work
    assert found["larger"].seconds > 2 * found["alike"].seconds


@pytest.mark.slow
def test_the_estimate_is_near_the_truth(tmp_path: Path) -> None:
    """Whatever else the machine does: measured before, in the middle and after."""
    experiment = load("mnist-sample", overrides=["lipschitz.steps=120", "training.epochs=6"])
    estimates = [costs({"": experiment}, CPU)[""].seconds]
    started = time.perf_counter()
    run = Run(tmp_path / "run", experiment, console=Silence())
    for arm in experiment.arms:
        run.all([arm])
        estimates.append(costs({"": experiment}, CPU)[""].seconds)
    truth = time.perf_counter() - started
    assert 1 / 3 < statistics.median(estimates) / truth < 3
