"""One wrong bit, or a missing end, in any file of a run: noticed, or provably harmless; it never changes a result."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import outcome

Tell = Callable[[Path], str]


def files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file() and not path.name.endswith(".lock"))


def flip(run: Path, told: Tell, rng: random.Random, *, aimed: bool) -> bool:
    """Flip one bit of one file, look, and put it back; whether it was noticed."""
    path = rng.choice(files(run))
    whole = path.read_bytes()
    places = [match.start() for match in re.finditer(rb"[0-9]", whole)] if aimed else []
    place = rng.choice(places) if places else rng.randrange(len(whole))
    bit = 1 if aimed else 1 << rng.randrange(8)  # of a digit the last bit: another digit
    path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
    found = outcome(told, run)
    path.write_bytes(whole)
    assert found is None or found == told(run), f"bit {bit} at {place} of {path} changes a result"
    return found is None


def truncate(run: Path, told: Tell, rng: random.Random) -> bool:
    path = rng.choice(files(run))
    whole = path.read_bytes()
    path.write_bytes(whole[: rng.randrange(len(whole))])
    found = outcome(told, run)
    path.write_bytes(whole)
    assert found is None or found == told(run), f"{path} cut short changes a result"
    return found is None


def try_all(run: Path, told: Tell, *, flips: int, cuts: int) -> None:
    rng = random.Random(0)  # noqa: S311
    noticed = sum(flip(run, told, rng, aimed=number % 2 == 0) for number in range(flips))
    refused = sum(truncate(run, told, rng) for _ in range(cuts))
    print(f"{noticed} of {flips} flips noticed, {refused} of {cuts} truncations; the others harmless, 0 wrong results")
    assert noticed > flips / 2


def test_a_few_wrong_bits_and_missing_ends(run: Path, told: Tell) -> None:
    try_all(run, told, flips=30, cuts=10)


@pytest.mark.slow
def test_many_wrong_bits_and_missing_ends(run: Path, told: Tell) -> None:
    try_all(run, told, flips=2000, cuts=300)
