"""Which run folders and which jobs a sweep consists of."""

import gc
import tracemalloc
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from excite import sweeps
from excite.console import Console
from excite.errors import InputError
from excite.execution import Shared
from excite.files import write_json
from excite.report.rows import apart, by_seed
from excite.runs import Experiment, load
from excite.runs.assemble import Parts
from excite.runs.folder import ESTIMATE, EVALUATION, EXPERIMENT, RunFolder, begin_study, collect, run_folders
from excite.runs.stages.rate import leader_of
from excite.sweeps import Job, JobEnd, combinations, earlier_outcome, jobs_of, run_jobs, sweep, turn


def names(runs: dict[Path, Experiment]) -> list[str]:
    return [path.name for path in runs]


def test_a_sweep_is_the_product_of_its_values(tmp_path: Path) -> None:
    table = ["sweep.training.schedule.rate=[0.1, 0.2]", 'sweep={"training.batch_size"=[8, 16], seed=[3, 4]}']
    experiment = load("mnist-sample", overrides=[table[1], table[0]])
    runs = dict(combinations(experiment, tmp_path))
    assert len(runs) == 8
    assert names(runs)[:2] == ["batch_size-8,rate-0.1,seed-3", "batch_size-8,rate-0.1,seed-4"]
    one = runs[tmp_path / "batch_size-16,rate-0.2,seed-4"]
    assert (one.training.batch_size, one.training.schedule["rate"], one.seed) == (16, 0.2, 4)
    assert one.sweep == {}
    assert names(dict(combinations(experiment, tmp_path, seeds=1)))[0] == "batch_size-8,rate-0.1,seed-0"


def test_values_of_every_kind_have_a_folder(tmp_path: Path) -> None:
    values = [
        'sweep.model.name=["lenet5"]',
        'sweep.data.name=["mnist-sample"]',
        'sweep.training.objective=["standard"]',
    ]
    runs = dict(combinations(load("mnist-sample", overrides=values), tmp_path))
    assert names(runs) == ["model.name-lenet5,data.name-mnist-sample,objective-standard,seed-0"]
    schedules = "sweep.training.schedule=[{kind='constant',rate=0.1},{kind='cosine',rate=0.1,epochs=9}]"
    runs = dict(combinations(load("mnist-sample", overrides=[schedules]), tmp_path))
    assert len(runs) == 2
    assert all("/" not in name and " " not in name for name in names(runs))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sweep.training.batch_sizes=[1]", "training.batch_size"),
        ("sweep.training.batch_size=[0]", "training.batch_size"),
        ("sweep.training.batch_size=[]", "training.batch_size"),
        ("sweep.training.batch_size=8", "array"),
        ("arms=['best']", "best"),
    ],
)
def test_a_sweep_that_does_not_fit_is_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        next(combinations(load("mnist-sample", overrides=[override]), tmp_path))


def test_a_folder_of_a_sweep_fits_the_file_system(tmp_path: Path) -> None:
    experiment = load("mnist-sample").with_values({"sweep": {"data.name": [90 * "漢", 90 * "字"]}})
    for folder, _ in combinations(experiment, tmp_path):
        folder.mkdir()
    assert len([*tmp_path.iterdir()]) == 2


def test_a_million_combinations_are_made_one_at_a_time(tmp_path: Path) -> None:
    numbers = [*range(1, 1001)]
    experiment = load("mnist-sample").with_values({"sweep": {"training.epochs": numbers, "seed": numbers}})
    combinations(experiment, tmp_path)
    tracemalloc.start()
    (folder, run) = next(islice(combinations(experiment, tmp_path), 50, None))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (folder.name, run.training.epochs, run.seed) == ("epochs-1,seed-51", 1, 51)
    assert peak < 2e6


def n_assembled() -> int:
    gc.collect()
    return sum(type(thing) is Parts for thing in gc.get_objects())


def test_opened_runs_keep_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [n_assembled()]

    def no_jobs(*_: object, **__: object) -> Iterator[tuple[Job, JobEnd]]:
        kept.append(n_assembled())
        return iter(())

    monkeypatch.setattr(sweeps, "run_jobs", no_jobs)
    sweep(load("mnist-sample"), tmp_path, seeds=3, console=Console(quiet=True))
    assert len([*tmp_path.glob("*/experiment.json")]) == 3
    assert kept[1] == kept[0]


def test_a_folder_is_one_run_or_holds_several(tmp_path: Path) -> None:
    experiment = load("mnist-sample")
    assert run_folders(experiment, tmp_path, None) == {tmp_path: experiment}
    assert [run.seed for run in run_folders(experiment, tmp_path, 3).values()] == [0, 1, 2]
    write_json(tmp_path / EXPERIMENT, experiment.to_json())
    with pytest.raises(InputError, match=str(tmp_path)):
        run_folders(experiment, tmp_path, 3)
    with pytest.raises(InputError, match=str(tmp_path)):
        next(combinations(experiment, tmp_path))
    with pytest.raises(InputError, match=str(tmp_path.parent)):
        run_folders(experiment, tmp_path.parent, None)


def test_arms_that_need_l_come_after_it(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, load("mnist-sample"), ["poe", "baseline", "largest", "grid:2"])
    assert [job.task for job in sorted(jobs, key=turn)] == ["baseline", "grid-2", "L", "poe", "largest"]
    assert [job.task for job in jobs_of(tmp_path, load("mnist-sample"), ["baseline"])] == ["baseline"]


@pytest.mark.parametrize(("rates", "wanting"), [("[0.05, 0.1, 0.3]", 2), ("[0.2, 0.3]", 0)])
def test_an_l_wanted_for_itself_is_estimated_once(tmp_path: Path, rates: str, wanting: int) -> None:
    overrides = [f"sweep.training.schedule.rate={rates}", "sweep.seed=[3, 4]", "lipschitz.wanted=true"]
    runs = dict(combinations(load("mnist-sample", overrides=overrides), tmp_path))  # its own rate is 0.1
    tasks = [[job.task for job in jobs_of(path, run, ["baseline"])] for path, run in runs.items()]
    assert tasks == [["L", "baseline"] if number == wanting else ["baseline"] for number in range(len(runs))]


def test_an_l_wanted_once_leaves_the_seeds_of_a_setting_together(tmp_path: Path) -> None:
    runs = dict(combinations(load("figure-2-relu-small"), tmp_path, seeds=3))
    for path, run in runs.items():
        write_json(path / EXPERIMENT, run.to_json())
    groups = by_seed(collect([tmp_path]))
    assert [[run.experiment.seed for run in group] for group in groups] == [[0, 1, 2]] * (len(runs) // 3)
    assert not any(apart([group[0].experiment for group in groups]))  # a rate has a column of its own
    shared = load("mnist-sample", overrides=["lipschitz.wanted=true", "lipschitz.shared=true"])
    seeds = dict(combinations(shared, tmp_path / "shared", seeds=2))
    for path, run in seeds.items():
        write_json(path / EXPERIMENT, run.to_json())
    begin_study(tmp_path / "shared", seeds)
    leader = leader_of(RunFolder(tmp_path / "shared/seed-1"), shared, "")
    assert leader
    assert leader.path.name == "seed-0"


def keep_training(folder: Path, arm: str, problem: str | None = None) -> None:
    """Leave the file of a finished training."""
    write_json(RunFolder(folder).arm(arm).outcome_file, {"rate": 0.1, "seconds": 1.0, "problem": problem})


def test_what_is_finished_is_known_without_a_process(tmp_path: Path) -> None:
    write_json(tmp_path / EXPERIMENT, load("mnist-sample").to_json())
    job, estimate = Job(tmp_path, "poe"), Job(tmp_path, "L")
    assert earlier_outcome(job) is None
    keep_training(tmp_path, "poe")
    assert earlier_outcome(job) is None  # trained, not attacked
    write_json(tmp_path / "poe" / EVALUATION, {})
    write_json(tmp_path / ESTIMATE, {})
    for finished in (earlier_outcome(job), earlier_outcome(estimate)):
        assert finished
        assert finished.status == "done"
    keep_training(tmp_path, "largest", "the loss became nan")
    assert earlier_outcome(Job(tmp_path, "largest")) == JobEnd("diverged", "the loss became nan")


class Engine:
    """Runs nothing: each job ends as `ends` says."""

    n_workers = 1.0

    def __init__(self, ends: dict[str, JobEnd]) -> None:
        self.ends = ends

    def submit(self, _function: object, job: Job, *_: object) -> "Future[JobEnd]":
        future: Future[JobEnd] = Future()
        future.set_result(self.ends[job.task])
        return future

    def wait(self, tasks: Collection[Any]) -> Collection[Any]:
        return list(tasks)

    def share(self, value: object) -> Shared:
        raise NotImplementedError


def test_every_job_ends(tmp_path: Path) -> None:
    jobs = [Job(tmp_path, "baseline"), Job(tmp_path, "poe")]
    ends = {"baseline": JobEnd("failed", "no room"), "poe": JobEnd("done")}
    assert dict(run_jobs(jobs, Engine(ends))) == dict(zip(jobs, ends.values(), strict=True))
