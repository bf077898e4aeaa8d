import random
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from excite.randomness import (
    derive_seed,
    drawing_from,
    drawn_from,
    restore_tensors,
    seed_all,
    seeded,
    state_tensors,
    step_generators,
    undisturbed,
)

CPU = torch.device("cpu")


def test_the_values_never_change() -> None:
    """They are part of every checkpoint: another hash would make runs that were interrupted end differently."""
    assert derive_seed(0) == 4246866556266386882
    assert derive_seed(0, 7, 123) == 4383233775743811115
    assert derive_seed(-1, 2**70) == 6572748011854261770


def test_draws_of_a_named_address_never_change() -> None:
    assert torch.rand((), generator=seeded(0, "PGD ε=0.1", 3)).item() == 0.5400464534759521


@given(st.lists(st.tuples(st.integers(), st.integers()), unique=True, min_size=2))
def test_addresses_get_different_seeds_that_fit_a_generator(addresses: list[tuple[int, int]]) -> None:
    seeds = [derive_seed(*address) for address in addresses]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_numbers_are_kept_apart() -> None:
    assert len({derive_seed(1, 23), derive_seed(12, 3), derive_seed(123), derive_seed(23, 1)}) == 4


def draws() -> tuple[object, ...]:
    """Of every generator something that the next draw depends on, Gaussians among them: they come in pairs."""
    return torch.rand(2).tolist(), np.random.normal(), np.random.rand(), random.gauss(0, 1)  # noqa: NPY002


def test_what_a_checkpoint_keeps_gives_every_draw_again() -> None:
    seed_all(7, CPU)
    draws()  # one of each pair of Gaussians is left
    kept = state_tensors(CPU)
    expected = draws()
    seed_all(8, CPU)
    restore_tensors(kept, CPU)
    assert draws() == expected


def test_a_generator_that_a_checkpoint_does_not_have_stays_as_it_is() -> None:
    older = {"cpu": state_tensors(CPU)["cpu"]}
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.rand()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    restore_tensors(older, CPU)
    assert np.random.rand() == expected  # noqa: NPY002


def test_draws_inside_depend_on_the_seed_and_leave_no_sign() -> None:
    def drawn(seed: int) -> tuple[object, ...]:
        with drawing_from(seed, CPU):
            return draws()

    seed_all(1, CPU)
    expected = draws()
    seed_all(1, CPU)
    assert drawn(5) == drawn(5) != drawn(6)
    assert draws() == expected


def test_items_draw_on_where_the_last_one_stopped_whatever_happens_in_between() -> None:
    def items() -> Iterator[float]:
        return (float(torch.rand(())) for _ in range(3))

    seed_all(4, CPU)
    expected = list(items())
    found = []
    seed_all(9, CPU)
    outside = torch.rand(4).tolist()
    seed_all(9, CPU)
    drawn_outside = []
    for item in drawn_from(4, CPU, items()):
        found.append(item)
        drawn_outside.append(float(torch.rand(())))
    assert found == expected
    assert drawn_outside == outside[:3]


def test_every_step_and_process_has_a_generator_of_its_own() -> None:
    def numbers(**where: int) -> list[float]:
        return [float(torch.rand((), generator=own)) for own in islice(step_generators(0, 1, **where), 4)]

    assert numbers(start=2)[:2] == numbers()[2:]
    assert len({*numbers(), *numbers(rank=1)}) == 8


class Average(nn.Module):
    """A buffer that each pass replaces, and one that it writes into."""

    mean: Tensor
    passes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.passes += 1
        return x - self.mean


def test_a_buffer_is_put_back_also_where_a_pass_replaces_it() -> None:
    model = Average()
    before = dict(model.named_buffers())
    with undisturbed(model, CPU):
        model(torch.ones(3, 2))
        assert model.mean.any()
    assert all(buffer is before[name] and not buffer.any() for name, buffer in model.named_buffers())


def test_random_examples_are_the_same_every_time_unless_exploring(pytestconfig: pytest.Config) -> None:
    exploring = pytestconfig.getoption("--hypothesis-profile") == "explore"
    assert settings().derandomize is not exploring
