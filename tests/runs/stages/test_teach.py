import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from excite.data import Mixture, PseudoLabels, load_unlabelled
from excite.errors import InputError, InterruptedRunError
from excite.files import read_json
from excite.runs import Experiment, load
from excite.runs.experiment import from_values
from excite.runs.folder import RunFolder
from excite.runs.procedure import Run
from excite.training import read_metrics

SMALL = [
    *("data.name=mnist-sample-1k+4k", "data.test_examples=40", "data.epoch_samples=120"),
    *("training.epochs=2", "training.batch_size=20", 'training.objective={kind="rst", eps=0.1, step=0.05, steps=2}'),
    'arms=["baseline", "poe"]',
    *(
        "record.curvature_every=1",
        "record.probe_examples=40",
        "lipschitz.steps=5",
        "lipschitz.limit=1.0",
        "allow_unidentified=true",
    ),
    'attacks={"PGD"={kind="pgd", eps=0.1, step=0.05, steps=2}}',
]
TEACHER = [
    "teacher.threshold=0.2",
    'teacher.training={epochs=3, batch_size=20, schedule={kind="constant", rate=0.2}}',
]


class Stopper:
    """A console that sends the process a stop signal at a step of a task, once; notes what it was told."""

    def __init__(self, task: str | None = None, step: int = 0) -> None:
        self.stop: tuple[str | None, int] = (task, step)
        self.said: list[str] = []
        self.titles: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    @contextmanager
    def task(self, title: str) -> Iterator[Callable[[int, int], None]]:
        self.titles.append(title)
        task, step = self.stop

        def progress(done: int, _total: int) -> None:
            if task is not None and title.startswith(task) and done == step:
                signal.raise_signal(signal.SIGTERM)

        yield progress


def experiment(*overrides: str) -> Experiment:
    return load("mnist-sample", overrides=[*SMALL, *overrides])


def run_in(folder: Path, described: Experiment, console: Stopper | None = None) -> Run:
    return Run(folder, described, console=console or Stopper(), device="cpu")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / read_json(folder / "checkpoint.json")["weights"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Stopper]:
    console = Stopper()
    run = run_in(tmp_path_factory.mktemp("whole") / "run", experiment(*TEACHER), console)
    run.all()
    return run, console


def test_the_whole_procedure_trains_a_teacher_then_every_arm_on_the_mixture(finished: tuple[Run, Stopper]) -> None:
    run, console = finished
    labels = PseudoLabels.load(run.folder / "teacher" / "pseudo.npz")
    assert labels.source == "mnist-sample-1k+4k"
    assert labels.teacher["experiment"]["training"]["objective"] == "standard"
    assert labels.teacher["experiment"]["training"]["epochs"] == 3
    assert float(labels.confidences.min()) >= 0.2
    assert len(read_metrics(run.folder / "teacher")) == 3
    assert [title.split(":")[0].split(", ")[-1] for title in console.titles][:3] == ["teacher", "teacher", "baseline"]
    assert any("4,000" in text for text in console.said)
    mixed = run.parts.training_set
    assert isinstance(mixed, Mixture)
    assert (len(mixed.labelled), len(mixed.pseudo)) == (1000, len(labels))
    assert run.parts.steps_per_epoch == 6
    for arm in ("baseline", "poe"):
        result = RunFolder(run.folder).arm(arm)
        assert result.problem or result.evaluation is not None
    assert run.files.needed_trace("baseline").curvatures.size == 2
    assert [arm.name for arm in run.all().arms] == ["baseline", "poe"]  # the teacher is none


def test_a_finished_teacher_is_not_asked_again(finished: tuple[Run, Stopper]) -> None:
    console = Stopper()
    again = run_in(finished[0].folder, experiment(*TEACHER), console)
    assert isinstance(again.parts.training_set, Mixture)
    assert console.titles == []


@pytest.mark.parametrize(
    ("task", "step"),
    [
        ("teacher: training", 70),
        ("baseline: training", 9),
        pytest.param("baseline: training", 4, marks=pytest.mark.slow),  # in the first epoch
    ],
)
def test_a_stopped_run_ends_as_one_that_was_not(
    task: str, step: int, finished: tuple[Run, Stopper], tmp_path: Path
) -> None:
    whole, stopped = finished[0].folder, tmp_path / "run"
    with pytest.raises(InterruptedRunError):
        run_in(stopped, experiment(*TEACHER), Stopper(task, step)).train("baseline")
    run_in(stopped, experiment(*TEACHER)).train("baseline")
    for part in ("teacher", "baseline"):
        expected, found = weights(whole / part), weights(stopped / part)
        assert expected.keys() == found.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    first, second = (PseudoLabels.load(folder / "teacher" / "pseudo.npz") for folder in (whole, stopped))
    assert torch.equal(first.labels, second.labels)
    assert torch.equal(first.confidences, second.confidences)


def test_a_file_of_images_needs_a_teacher_and_by_default_it_is_like_the_arms(tmp_path: Path) -> None:
    images = load_unlabelled("mnist-sample-1k+4k").images[:30]
    np.savez(tmp_path / "mine.npz", x=images.numpy())
    described = experiment(f"data.unlabelled={tmp_path / 'mine.npz'}", "teacher={}", "training.steps=2")
    run = run_in(tmp_path / "run", described)
    mixed = run.parts.training_set
    assert isinstance(mixed, Mixture)
    assert torch.equal(mixed.pseudo.images, images)
    labels = PseudoLabels.load(tmp_path / "run" / "teacher" / "pseudo.npz")
    assert labels.teacher["experiment"]["model"] == described.to_json()["model"]
    assert labels.teacher["experiment"]["training"] == described.to_json()["training"] | {"objective": "standard"}


SHORT = 'epochs=1, batch_size=20, steps=2, schedule={kind="constant", rate=0.2}'


@pytest.mark.parametrize(
    ("teacher", "precision"),
    [
        ("teacher={}", "bf16"),
        (f"teacher.training={{{SHORT}}}", "bf16"),
        (f'teacher.training={{{SHORT}, precision="float32"}}', "float32"),
    ],
)
def test_a_teacher_trains_in_its_own_precision_or_else_in_the_experiments(
    teacher: str, precision: str, tmp_path: Path
) -> None:
    changes = ("training.precision=bf16", "training.steps=2", "training.epochs=1")
    run = run_in(tmp_path / "run", experiment(*changes, teacher))
    run.parts.prepare()
    assert read_json(tmp_path / "run" / "teacher" / "checkpoint.json")["identity"]["precision"] == precision


def test_images_with_labels_need_no_teacher(tmp_path: Path) -> None:
    hidden = load_unlabelled("mnist-sample-1k+4k")
    assert hidden.labels is not None
    np.savez(tmp_path / "mine.npz", x=hidden.images[:50].numpy(), y=hidden.labels[:50].numpy())
    run = run_in(tmp_path / "run", experiment(f"data.unlabelled={tmp_path / 'mine.npz'}", "training.steps=2"))
    run.train("baseline")
    mixed = run.parts.training_set
    assert isinstance(mixed, Mixture)
    assert torch.equal(mixed.pseudo.labels, hidden.labels[:50])
    assert not (tmp_path / "run" / "teacher").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], r"data.unlabelled .*\[teacher\]"),
        (["data.name=mnist-sample", "teacher={}"], r"data.unlabelled"),
        (["teacher={}", "training.objective=standard"], r'kind = "rst"'),
        (["data.unlabelled=mnist-sample-1k+4k"], r"excite pseudo-label"),
        (
            ["data.name=mnist-sample", "data.unlabelled=mnist-sample-1k+4k", "teacher={}"],
            r'data.name = "mnist-sample-1k\+4k"',
        ),
        (["data.unlabelled=labelled.npz", "teacher={}"], r"\[teacher\]"),
        (["data.unlabelled=absent.npz", "teacher={}"], r"absent.npz"),
        (["data.unlabelled=mnist", "teacher={}"], r'"mnist"'),
        (["teacher.model.name=lenet"], r'"lenet5"'),
        (["teacher.thresholds=0.5"], r'"teacher.threshold"'),
        (["teacher.training.epoch=2"], r'"teacher.training.epochs"'),
        (["teacher.threshold=1.5"], r"teacher.threshold"),
        (["data.epoch_samples=0"], r"data.epoch_samples"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_there_is_a_folder(
    overrides: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("labelled.npz", x=np.zeros((3, 28, 28), np.uint8), y=np.arange(3))
    with pytest.raises(InputError, match=message):
        run_in(tmp_path / "run", experiment(*overrides))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("shape", "labels", "message"),
    [
        ((3, 28, 28), [0, 1, 10], r"mine.npz"),
        ((3, 14, 14), [0, 1, 2], r"shape"),
        ((3, 14, 14), None, r"1×14×14"),
    ],
)
def test_images_that_do_not_fit_the_labelled_ones_are_refused(
    shape: tuple[int, ...], labels: list[int] | None, message: str, tmp_path: Path
) -> None:
    arrays = {"x": np.zeros(shape, np.uint8)} | ({} if labels is None else {"y": np.array(labels)})
    np.savez(tmp_path / "mine.npz", **arrays)
    teacher = ["teacher={}"] if labels is None else []
    with pytest.raises(InputError, match=message):
        run_in(tmp_path / "run", experiment(f"data.unlabelled={tmp_path / 'mine.npz'}", *teacher)).train("baseline")


def test_a_teacher_that_is_sure_of_nothing_says_so_and_is_kept(tmp_path: Path) -> None:
    described = experiment(*TEACHER, "teacher.threshold=1.0", "teacher.training.steps=1")
    for _ in range(2):
        with pytest.raises(InputError, match="threshold"):
            run_in(tmp_path / "run", described).train("baseline")
    assert (tmp_path / "run" / "teacher" / "checkpoint.json").exists()


def test_an_experiment_with_a_teacher_comes_back_from_its_file() -> None:
    described = experiment(*TEACHER)
    assert from_values(described.to_json()) == described
