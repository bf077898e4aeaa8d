"""Both engines return the same results, repeat tasks of dead workers, and share values without changing them."""

import io
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from excite import execution, models
from excite.errors import ExciteError, InputError
from excite.execution import Executor, Shards, Shared, as_completed, executor, load, save
from tests.faults.processes import FORKED


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> Iterator[Executor]:
    if request.param == "ray":
        pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2])  # workers import this file by the name that pytest gave it
        patch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}")
        patch.setattr(execution, "SPAWN", FORKED)  # starts in no time
        with executor(Shards(2, request.param), use_gpus=False) as engine:
            yield engine


def square(number: int) -> int:
    if number < 0:
        raise InputError(f"{number} is negative")
    return number * number


def dies(notes: Path, times: int) -> int:
    """Kill its own process the first few times; then return how often it was called."""
    (notes / str(os.getpid())).touch()
    n_calls = len(list(notes.iterdir()))
    if n_calls <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return n_calls


def n_threads() -> int:
    return torch.get_num_threads()


def norm(shared: Shared) -> float:
    return float(shared.load().norm())


def test_results_arrive_with_their_keys(engine: Executor) -> None:
    calls = [(f"{number} squared", (number,)) for number in range(7)]
    assert dict(as_completed(engine, square, calls)) == {f"{number} squared": number**2 for number in range(7)}
    assert engine.submit(n_threads).result() == 1


def test_an_error_in_a_worker_is_raised_here(engine: Executor) -> None:
    with pytest.raises(InputError, match="negative"):
        engine.submit(square, -1).result()
    assert engine.submit(square, 3).result() == 9


def test_a_task_whose_process_dies_is_repeated(engine: Executor, tmp_path: Path) -> None:
    assert engine.submit(dies, tmp_path, 2).result() == 3


def test_a_task_that_kills_every_process_is_given_up(engine: Executor, tmp_path: Path) -> None:
    with pytest.raises(ExciteError):
        engine.submit(dies, tmp_path, 99).result()
    assert len(list(tmp_path.iterdir())) == 3
    assert engine.submit(square, 3).result() == 9


def test_a_shared_value_reaches_the_workers(engine: Executor) -> None:
    values = torch.arange(5.0)
    assert engine.submit(norm, engine.share(values)).result() == float(values.norm())


def test_what_cannot_be_pickled_is_refused() -> None:
    with executor(Shards(1), use_gpus=False) as engine:
        with pytest.raises(InputError, match="workers=1"):
            engine.share(lambda: None)
        assert engine.submit(len, "abc").result() == 3  # by a spawned worker


def test_a_worker_that_fails_to_start_says_why(tmp_path: Path) -> None:
    script = """
        from excite.execution import Shards, executor
        if __name__ != "__main__":
            raise ImportError("libmissing.so: no such file")
        if __name__ == "__main__":
            with executor(Shards(1), use_gpus=False) as engine:
                print(engine.submit(len, "abc").result())
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    process = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert "ExciteError" in process.stderr
    assert "libmissing.so: no such file" in process.stderr


def sent(value: object) -> Any:
    file = io.BytesIO()
    save(value, file)
    file.seek(0)
    return load(file)


class Tied(nn.Module):
    """Two layers share a weight, of which a buffer is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 5)
        self.last.weight = self.first.weight
        self.register_buffer("corner", self.first.weight.detach()[1:, ::2])


def test_tied_weights_stay_tied_and_views_stay_views() -> None:
    arrived = sent(Tied())
    assert arrived.first.weight is arrived.last.weight
    assert arrived.corner.untyped_storage().data_ptr() == arrived.first.weight.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        lambda: torch.rand(6, 4)[1::2, 1:],
        lambda: torch.tensor([-0.0, torch.inf, 1e-45]),
        lambda: torch.rand(3).to(torch.bfloat16),
    ],
)
def test_layouts_and_number_formats(make: Callable[[], Tensor]) -> None:
    tensor = make()
    arrived = sent(tensor)
    assert arrived.equal(tensor)
    assert (arrived.dtype, arrived.stride()) == (tensor.dtype, tensor.stride())


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_model_gives_the_same_answers_to_the_bit(memory_format: torch.memory_format) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = models.create("resnet8").to(memory_format=memory_format).eval()  # type: ignore[call-overload]
        x = torch.rand(6, 3, 32, 32, requires_grad=True)
    arrived, far = sent((model, x))
    logits, arrived_logits = model(x), arrived(far)
    assert logits.equal(arrived_logits)
    (gradient,), (arrived_gradient,) = (
        torch.autograd.grad(values.sum(), images) for values, images in ((logits, x), (arrived_logits, far))
    )
    assert gradient.equal(arrived_gradient)
