"""A user's own model, loaded from its file and attacked."""

import contextlib
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from excite import models
from excite.attacks.given import named_attacks
from excite.console import Console
from excite.errors import CorruptFileError, InputError
from excite.evaluation import Evaluation, Shards
from excite.files import read_json
from excite.runs.stages.attack import Target, attack_target, own_model

FACTORY = """
from torch import nn

def digits():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

number = 3

def sized(width):
    return nn.Linear(width, 10)

def not_a_model():
    return number
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's in the current folder; its name is new for each test."""
    name = f"theirs_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    return name


def weights(path: Path) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    if path.suffix == ".safetensors":
        save_file(model.state_dict(), path)
    else:
        torch.save({"state_dict": model.state_dict()}, path)
    return model


def load(model: str, path: Path) -> nn.Module:
    return target(model, path).model


def target(model: str, path: Path) -> Target:
    return own_model(model, path, data_name="mnist-sample", device=None)


@pytest.mark.parametrize("file", ["w.safetensors", "w.pt"])
def test_weights_and_factory_make_the_model(tmp_path: Path, module: str, file: str) -> None:
    expected = weights(tmp_path / file)
    path = list(sys.path)
    model = load(f"{module}:digits", tmp_path / file)
    assert torch.equal(model.state_dict()["1.weight"], expected.state_dict()["1.weight"])
    assert not model.training
    assert sys.path == path


def test_a_model_of_ours_goes_by_its_name(tmp_path: Path) -> None:
    save_file(models.create("lenet5", input_shape=(1, 28, 28)).state_dict(), tmp_path / "w.safetensors")
    assert isinstance(load("lenet5", tmp_path / "w.safetensors"), models.LeNet5)


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("touched"),))  # type: ignore[return-value]


def test_a_file_that_would_run_code_is_refused(tmp_path: Path, module: str) -> None:
    (tmp_path / "w.pt").write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(CorruptFileError, match="state_dict"):
        load(f"{module}:digits", tmp_path / "w.pt")
    assert not (tmp_path / "touched").exists()


def test_what_does_not_fit_is_named(tmp_path: Path, module: str) -> None:
    weights(tmp_path / "w.pt")
    for model, keyword in (
        ("nowhere:digits", "nowhere:digits"),
        (f"{module}:nothing", "module:factory"),
        (f"{module}:not_a_model", "int"),
        (f"{module}:number", "callable"),
        (f"{module}:sized", "width"),
        ("lenet5", "lenet5"),
    ):
        with pytest.raises(InputError, match=keyword):
            load(model, tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"none\.pt"):
        load(f"{module}:digits", tmp_path / "none.pt")


def test_several_radii_make_a_curve(tmp_path: Path, module: str) -> None:
    weights(tmp_path / "w.pt")
    digits = target(f"{module}:digits", tmp_path / "w.pt")
    chosen = named_attacks(("pgd",), {"eps": [0.01, 0.02], "steps": 3})
    evaluation, _ = attack_target(digits, chosen, console=Console(), examples=50)
    assert evaluation.curves["pgd"].eps == (0.01, 0.02)
    assert str(chosen["pgd"]).endswith("also at ε = 0.01")


@pytest.mark.slow
def test_workers_find_a_strangers_module(tmp_path: Path, module: str) -> None:
    weights(tmp_path / "w.pt")
    (tmp_path / f"{module}.py").write_text(
        FACTORY.replace("nn.Sequential(", "Mine(") + "\nclass Mine(nn.Sequential): ..."
    )
    digits = target(f"{module}:digits", tmp_path / "w.pt")
    chosen = named_attacks(("pgd",), {"eps": 0.01, "steps": 3})
    options: dict[str, Any] = {"console": Console(), "examples": 50, "batch_size": 10}
    alone, shared = (attack_target(digits, chosen, shards=Shards(workers), **options)[0] for workers in (1, 2))
    assert np.array_equal(alone.outcomes("pgd"), shared.outcomes("pgd"))


def test_each_attack_keeps_its_verdicts_in_a_file_of_its_own(tmp_path: Path, module: str) -> None:
    weights(tmp_path / "w.pt")
    digits = target(f"{module}:digits", tmp_path / "w.pt")
    for eps, examples in ((0.1, 50), (0.2, 50), (0.1, 40), (0.1, 50)):  # the last is the first once more
        attacks = named_attacks(("pgd",), {"eps": eps, "steps": 3})
        evaluation, file = attack_target(digits, attacks, console=Console(), examples=examples, subset_seed=1)
        assert evaluation.clean.total == Evaluation.load(file).clean.total == examples
    files = sorted(tmp_path.glob("attack-*"))
    assert [file.name[:-13] for file in files] == ["attack-w-pgd-"] * 3
    assert {Evaluation.load(file).clean.total for file in files} == {40, 50}


def test_a_stopped_attack_goes_on_without_being_asked_to(tmp_path: Path, module: str) -> None:
    weights(tmp_path / "w.pt")
    digits = target(f"{module}:digits", tmp_path / "w.pt")
    attacks = named_attacks(("pgd",), {"eps": 0.1, "steps": 3})

    class Stopping(Console):
        @contextlib.contextmanager
        def task(self, title: str) -> Iterator[Callable[[int, int], None]]:
            def stop(done: int, total: int) -> None:
                if done == 2:
                    raise KeyboardInterrupt

            yield stop

    with pytest.raises(KeyboardInterrupt):
        attack_target(digits, attacks, console=Stopping(), examples=100, batch_size=1)
    (journal,) = tmp_path.glob("*.journal")
    state = read_json(journal)["attacks"]["pgd"]
    assert state["n_entered"] - len(state["left"]) == 2
    batches: list[int] = []

    class Noting(Console):
        @contextlib.contextmanager
        def task(self, title: str) -> Iterator[Callable[[int, int], None]]:
            yield lambda done, _: batches.append(done)

    attack_target(digits, attacks, console=Noting(), examples=100, batch_size=1)
    assert min(batches) == 3
    assert not journal.exists()


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model."])
def test_the_prefix_of_a_wrapper_is_taken_off(tmp_path: Path, module: str, prefix: str) -> None:
    expected = weights(tmp_path / "w.pt").state_dict()
    torch.save({f"{prefix}{name}": tensor for name, tensor in expected.items()}, tmp_path / "wrapped.pt")
    model = load(f"{module}:digits", tmp_path / "wrapped.pt")
    assert torch.equal(model.state_dict()["1.weight"], expected["1.weight"])


def test_exported_weights_bring_their_normalization(tmp_path: Path) -> None:
    exported = models.create("lenet5", input_shape=(1, 28, 28), normalize=(0.25, 0.5))
    save_file(exported.state_dict(), tmp_path / "w.safetensors")
    model, x = load("lenet5", tmp_path / "w.safetensors"), torch.rand(2, 1, 28, 28)
    assert torch.equal(model(x), exported.eval()(x))


def test_weights_of_another_network_are_refused_in_one_line(tmp_path: Path) -> None:
    save_file({"far.weight": torch.zeros(3)}, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match="trained with") as refused:
        load("lenet5", tmp_path / "w.safetensors")
    assert "\n" not in str(refused.value)
