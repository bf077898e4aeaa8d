from hypothesis import given
from hypothesis import strategies as st

from excite.data import derive_seed


def test_the_values_never_change() -> None:
    """They are part of every checkpoint: another hash would make runs that were interrupted end differently."""
    assert derive_seed(0) == 4246866556266386882
    assert derive_seed(0, 7, 123) == 4383233775743811115
    assert derive_seed(-1, 2**70) == 6572748011854261770


@given(st.lists(st.tuples(st.integers(), st.integers()), unique=True, min_size=2))
def test_addresses_get_different_seeds_that_fit_a_generator(addresses: list[tuple[int, int]]) -> None:
    seeds = [derive_seed(*address) for address in addresses]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_numbers_are_kept_apart() -> None:
    assert len({derive_seed(1, 23), derive_seed(12, 3), derive_seed(123), derive_seed(23, 1)}) == 4
