import pytest
import torch

from excite.errors import InputError
from excite.experiments import load
from excite.experiments.parts import assemble

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
    first = list(parts.losses_at(0.1, 6))
    assert len(first) == 6
    assert first == list(parts.losses_at(0.1, 6))
    assert first[0] == next(parts.losses_at(0.5, 6))
    assert first[1] != list(parts.losses_at(0.5, 6))[1]
    assert first[0] != next(parts.losses_at(0.1, 6, draw=1))


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


def test_an_unusable_device_is_named() -> None:
    with pytest.raises(InputError, match='device "warp" cannot be used here'):
        assemble(load("mnist-sample"), device="warp")
