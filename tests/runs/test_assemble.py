from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from excite.console import Console
from excite.data.batches import Mixture, epoch_batches
from excite.errors import InputError
from excite.integrations.robustbench import benchmark
from excite.objectives import AWP, PGDAT, RST, Objective, Standard, Trades
from excite.runs import load
from excite.runs.assemble import assemble, check_settings, look_up
from excite.runs.procedure import Run

SMALL = ["data.train_examples=256", "data.test_examples=50", "training.batch_size=64"]


def test_every_model_starts_from_the_same_weights_and_leaves_the_global_generator_alone() -> None:
    parts = assemble(load("mnist-sample", overrides=SMALL))
    before = torch.get_rng_state()
    first, second = parts.new_model(), parts.new_model()
    assert torch.equal(torch.get_rng_state(), before)
    for mine, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_short_trainings_repeat_and_cross_epochs() -> None:
    parts = assemble(load("mnist-sample", overrides=SMALL))  # 4 batches an epoch
    first = list(islice(parts.losses_at(0.1), 6))
    assert len(first) == 6
    assert first == list(islice(parts.losses_at(0.1), 6))
    assert first[0] == next(parts.losses_at(0.5))
    assert first[1] != list(islice(parts.losses_at(0.5), 6))[1]
    assert first[0] != next(parts.losses_at(0.1, draw=1))


@pytest.mark.parametrize("objective", ["trades", "pgd_at", "awp"])
def test_short_adversarial_trainings_repeat_whatever_drew_in_between(objective: str) -> None:
    options = "steps=1" + (",random_start=true" if objective == "pgd_at" else "")
    parts = assemble(load("mnist-sample", overrides=[*SMALL, f'training.objective={{kind="{objective}",{options}}}']))
    first = list(islice(parts.losses_at(0.1), 3))
    torch.rand(7)
    assert first == list(islice(parts.losses_at(0.1), 3))


def test_sizes_normalisation_and_fractions_are_honoured() -> None:
    parts = assemble(
        load(
            "mnist-sample",
            overrides=[*SMALL, "model.normalize=true", 'attacks.f={kind="pgd",eps="8/255",step="1/255"}'],
        )
    )
    assert (len(parts.train), len(parts.test)) == (256, 50)
    normalised = parts.new_model()[0](parts.train.floats())  # type: ignore[index]
    assert normalised.mean().abs() < 1e-4
    assert "8/255" in str(parts.attacks["f"])


@pytest.mark.parametrize(
    ("asked", "built"),
    [
        ("standard", Standard()),
        ("trades", Trades()),
        ('{kind="trades",beta=3.0,eps="4/255",steps=2}', Trades(beta=3.0, eps=4 / 255, steps=2)),
        ('{kind="pgd_at",step="2/255",random_start=true}', PGDAT(step=2 / 255, random_start=True)),
        ('{kind="rst",unlabelled_weight=0.5}', RST(unlabelled_weight=0.5)),
        ('{kind="awp",on="pgd_at",gamma=0.01}', AWP(on="pgd_at", gamma=0.01)),
    ],
)
def test_an_objective_is_a_name_or_a_table(asked: str, built: Objective) -> None:
    assert look_up(load("mnist-sample", overrides=[f"training.objective={asked}"])).objective == built


@pytest.mark.parametrize(
    ("asked", "cure"),
    [
        ("tardes", "trades"),
        ("{beta=3.0}", "kind"),
        ('{kind="trades",bta=3.0}', "beta"),
        ('{kind="trades",beta="much"}', "beta"),
        ('{kind="awp",on="mart"}', "pgd_at"),
    ],
)
def test_an_objective_that_cannot_be_built_is_refused(asked: str, cure: str) -> None:
    with pytest.raises(InputError, match=cure):
        look_up(load("mnist-sample", overrides=[f"training.objective={asked}"]))


@pytest.mark.parametrize("device", ["warp", "cuda", "cuda:3", "cuda:99"])
def test_an_unusable_device_is_named(device: str, tmp_path: Path) -> None:
    if torch.cuda.is_available() and device in ("cuda", f"cuda:{torch.cuda.device_count() - 1}"):
        pytest.skip("this machine has it")
    with pytest.raises(InputError, match="--device"):
        assemble(load("mnist-sample"), device=device)
    with pytest.raises(InputError, match=device):
        Run(tmp_path / "run", load("mnist-sample"), console=Console(quiet=True), device=device)
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match=device):
        benchmark(torch.nn.Linear(2, 2), 4, "mnist-sample", eps=0.1, device=device)


def test_a_data_set_is_loaded_once_until_its_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"

    def test_images() -> Tensor:
        return assemble(load("mnist-sample", overrides=[f"data.name={file}"]), device="cpu").test.images

    def store(grey: int) -> None:
        images, labels = np.full((10, 28, 28), grey, np.uint8), np.arange(10)
        np.savez(file, x_train=images, y_train=labels, x_test=images, y_test=labels)

    store(1)
    first = test_images()
    assert test_images() is first
    store(2)
    assert int(test_images().max()) == 2


def test_images_for_the_noise_are_drawn_anew_in_batches_of_their_own_order() -> None:
    parts = assemble(load("mnist-sample", overrides=[*SMALL, "record.noise_examples=200"]))
    first, again, second = (parts.drawn_anew(moment) for moment in (1, 1, 2))
    assert len(first[0]) == 192  # three batches of 64
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], second[0])
    trained = next(epoch_batches(parts.training_set, batch_size=64, seed=parts.experiment.seed, epoch=1))
    assert not torch.equal(first[0][:64], trained[0])


@pytest.mark.parametrize(("asked", "drawn"), [(10, 10), (300, 256), (10_000, 256)])
def test_small_and_large_draws_make_two_batches_at_least(asked: int, drawn: int) -> None:
    """Of 256 images in batches of 256, as many as there are."""
    parts = assemble(
        load("mnist-sample", overrides=[*SMALL, "training.batch_size=256", f"record.noise_examples={asked}"])
    )
    assert len(parts.drawn_anew(1)[0]) == drawn


def test_every_batch_for_the_noise_is_mixed_as_in_training() -> None:
    parts = assemble(load("mnist-sample", overrides=[*SMALL, "record.noise_examples=128", "training.batch_size=32"]))
    pseudo = replace(parts.train, labels=torch.full_like(parts.train.labels, 77))
    vars(parts)["training_set"] = Mixture(parts.train, pseudo, 256)
    _, labels = parts.drawn_anew(1)
    assert (labels.view(4, 32) == 77).sum(1).tolist() == [16] * 4


def test_too_few_images_for_the_noise_are_refused() -> None:
    with pytest.raises(InputError, match="noise_examples = 3"):
        check_settings(load("mnist-sample", overrides=[*SMALL, "record.noise_examples=3"]))
