import random
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from excite.errors import CorruptFileError, ExciteError, InputError
from excite.files import read_json, sha256, write_json
from excite.training import checkpoints


def stepped(
    seed: int = 0, optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = optimizer_class(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def test_what_is_restored_is_what_was_saved(tmp_path: Path) -> None:
    model, optimizer = stepped()
    checkpoints.save(tmp_path / "weights-1.safetensors", model, optimizer, {"note": 1}, {"more": torch.ones(2)})
    expected_draw = torch.rand(3)
    other, other_optimizer = stepped(seed=1)
    saved = checkpoints.restore(tmp_path, other, other_optimizer)
    assert saved is not None
    assert saved[0]["note"] == 1
    assert torch.equal(saved[1]["more"], torch.ones(2))
    assert torch.equal(torch.rand(3), expected_draw)
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
    assert other_optimizer.param_groups[0]["lr"] == 0.1
    assert tuple(other_optimizer.param_groups[0]["betas"]) == (0.9, 0.999)
    torch.testing.assert_close(other_optimizer.state_dict()["state"], optimizer.state_dict()["state"], rtol=0, atol=0)


def test_numpy_and_python_draw_on_too(tmp_path: Path) -> None:
    checkpoints.save(tmp_path / "weights-1.safetensors", *stepped(), {})
    expected = np.random.rand(), random.gauss(0, 1)  # noqa: NPY002
    checkpoints.restore(tmp_path, *stepped(seed=1))
    assert (np.random.rand(), random.gauss(0, 1)) == expected  # noqa: NPY002


def test_an_older_checkpoint_without_their_state_still_loads(tmp_path: Path) -> None:
    weights, facts = tmp_path / "weights-1.safetensors", tmp_path / "checkpoint.json"
    checkpoints.save(weights, *stepped(), {})
    expected = torch.rand(3)
    tensors = safetensors.torch.load_file(weights)
    del tensors["random.numpy"], tensors["random.python"]
    safetensors.torch.save_file(tensors, weights)
    write_json(facts, read_json(facts) | {"weights_sha256": sha256(weights)})
    assert checkpoints.restore(tmp_path, *stepped(seed=1)) is not None
    assert torch.equal(torch.rand(3), expected)


def test_every_process_gets_its_own_state_back(tmp_path: Path) -> None:
    model, optimizer = stepped()
    other, other_optimizer = stepped(seed=1)
    theirs = checkpoints.own_state(other)
    their_draw, their_mean = torch.rand(3), other[1].running_mean.clone()  # type: ignore[index]
    checkpoints.save(tmp_path / "weights-1.safetensors", model, optimizer, {}, others=[theirs])
    checkpoints.restore(tmp_path, other, other_optimizer, rank=1)
    assert torch.equal(torch.rand(3), their_draw)
    assert torch.equal(other[1].running_mean, their_mean)  # type: ignore[index]
    assert torch.equal(other[0].weight, model[0].weight)  # type: ignore[index]


def test_a_process_that_was_not_there_keeps_its_random_state(tmp_path: Path) -> None:
    checkpoints.save(tmp_path / "weights-1.safetensors", *stepped(), {})
    other = stepped(seed=1)
    state = torch.get_rng_state()
    checkpoints.restore(tmp_path, *other, rank=1)
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_saved_restores_nothing(tmp_path: Path) -> None:
    assert checkpoints.restore(tmp_path, *stepped()) is None


def test_only_the_newest_weights_stay(tmp_path: Path) -> None:
    for number in (1, 2):
        checkpoints.save(tmp_path / f"weights-{number}.safetensors", *stepped(number), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", "weights-2.safetensors"]
    (tmp_path / "weights-1.safetensors").touch()  # as of a process that was killed before it removed them
    checkpoints.restore(tmp_path, *stepped(0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", "weights-2.safetensors"]


def test_tied_weights_are_saved(tmp_path: Path) -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    checkpoints.save(tmp_path / "weights-1.safetensors", model, torch.optim.SGD(model.parameters(), lr=0.1), {})
    assert checkpoints.load_model(tmp_path, model) is model


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damaged_weights_are_refused_with_the_cure(tmp_path: Path, damage: str) -> None:
    weights = tmp_path / "weights-1.safetensors"
    checkpoints.save(weights, *stepped(), {})
    content = bytearray(weights.read_bytes())
    if damage == "remove":
        weights.unlink()
    else:
        content[-1] ^= 1
        weights.write_bytes(content if damage == "flip" else content[:-8])
    with pytest.raises(CorruptFileError, match="SHA-256"):
        checkpoints.load_model(tmp_path, stepped()[0])


def test_damaged_facts_are_refused_with_the_cure(tmp_path: Path) -> None:
    checkpoints.save(tmp_path / "weights-1.safetensors", *stepped(), {})
    (tmp_path / "checkpoint.json").write_text('{"weights": ')
    with pytest.raises(CorruptFileError, match="JSON"):
        checkpoints.load_model(tmp_path, stepped()[0])


def test_another_model_is_refused(tmp_path: Path) -> None:
    checkpoints.save(tmp_path / "weights-1.safetensors", *stepped(), {})
    with pytest.raises(InputError, match="model"):
        checkpoints.load_model(tmp_path, nn.Linear(2, 2))


def test_an_empty_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="checkpoint"):
        checkpoints.load_model(tmp_path, nn.Linear(2, 2))


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    model, optimizer = stepped()
    checkpoints.save(tmp_path / "weights-1.safetensors", model, optimizer, {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))  # the system refuses to write more, as a full disk does
    try:
        with pytest.raises(ExciteError, match="space"):
            checkpoints.save(tmp_path / "weights-2.safetensors", *stepped(1), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", "weights-1.safetensors"]
    assert torch.equal(checkpoints.load_model(tmp_path, stepped(2)[0])[0].weight, model[0].weight)  # type: ignore[index]


@pytest.mark.filterwarnings("ignore")  # of files that an interruption left to be closed
def test_an_interruption_while_weights_are_read_is_no_damage(tmp_path: Path) -> None:
    """Who is told that they are corrupt deletes them."""
    model, optimizer = stepped()
    checkpoints.save(tmp_path / "weights-1.safetensors", model, optimizer, {})
    rng, before = random.Random(0), signal.signal(signal.SIGALRM, signal.default_int_handler)  # noqa: S311
    interrupted = 0
    try:
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 1e-3))
                while True:
                    checkpoints.check(tmp_path)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted == 300
