"""A stopped training goes on as if it had not stopped."""

import os
import signal
import threading

import pytest

from excite.training.resumable import stop_requests


def test_the_first_signal_waits_and_the_second_does_not() -> None:
    with stop_requests() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGINT)
        assert stop
        assert stop.signal_number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_requests():
        os.kill(os.getpid(), signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_other_threads_are_left_alone() -> None:
    seen: list[bool] = []

    def inside() -> None:
        with stop_requests() as stop:
            seen.append(bool(stop))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [False]
