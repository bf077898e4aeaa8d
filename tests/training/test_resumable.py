"""A stopped training goes on as if it had not stopped."""

import os
import signal
import threading

import pytest

from excite.training.resumable import stop_requests


def test_the_first_signal_waits_and_the_second_does_not() -> None:
    with stop_requests() as stop:
        assert stop == []
        os.kill(os.getpid(), signal.SIGINT)
        assert stop == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_requests():
        os.kill(os.getpid(), signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_other_threads_are_left_alone() -> None:
    seen: list[list[int]] = []

    def inside() -> None:
        with stop_requests() as stop:
            seen.append(stop)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [[]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_ignored_stops_nothing(number: signal.Signals) -> None:
    """A shell that runs a script starts what it puts into the background so."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with stop_requests() as stop:
            os.kill(os.getpid(), number)
            assert stop == []
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
