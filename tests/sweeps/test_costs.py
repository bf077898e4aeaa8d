import pytest
import torch

from excite.runs import load
from excite.sweeps import speed
from excite.sweeps.costs import costs, duration
from excite.sweeps.speed import Network

CPU = torch.device("cpu")


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


def test_a_teacher_with_a_network_of_its_own_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_images_per_second", lambda *_: 100.0)  # no clock: both measured networks as fast
    overrides = ["data.name=mnist-sample-1k+4k", 'training.objective={kind="rst"}', "data.epoch_samples=100"]
    overrides += ['arms=["baseline"]', "training.epochs=1", "record.curvature_every=0"]
    overrides += ['teacher.training={epochs=20, batch_size=64, schedule={kind="constant", rate=0.1}}']
    alike = load("mnist-sample", overrides=overrides)
    larger = load("mnist-sample", overrides=[*overrides, "teacher.model.name=resnet20"])
    found = costs({"alike": alike, "larger": larger}, CPU)
    assert found["alike"].work == found["larger"].work
    longer = (found["larger"].seconds - found["alike"].seconds) / found["alike"].work.teaching
    assert longer == pytest.approx(
        1 / 300 * (Network("resnet20", (1, 28, 28)).flops() / Network("resnet8").flops() - 1)
    )
