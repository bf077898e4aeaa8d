"""Ray with a GPU that does not exist: Ray counts what tasks ask for and looks for no device."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from excite.execution import Shards, as_completed, executor

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def one_gpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2])  # workers import this file by the name that pytest gave it
        patch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}")
        ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


def square(number: int) -> int:
    return number * number


def divided() -> dict[int, int]:
    """A job that divides its work among two workers, each of which uses a GPU."""
    with executor(Shards(2, "ray"), use_gpus=True) as engine:
        return dict(as_completed(engine, square, [(number, (number,)) for number in range(3)]))


def test_a_job_that_holds_the_only_gpu_waits_for_no_other() -> None:
    with executor(Shards(None, "ray"), use_gpus=True) as engine:
        job = engine.submit(divided)
        done, _ = ray.wait([job.reference], timeout=60)
        assert done, "the job waits for a GPU that it holds itself"
        assert job.result() == {0: 0, 1: 1, 2: 4}
        assert list(as_completed(engine, square, [(1, (7,)), (2, (8,))])) == [(1, 49), (2, 64)]
