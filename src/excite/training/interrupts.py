"""Ctrl-C and SIGTERM wait for the step under way; a second one does not."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class StopRequest:
    """Remembers the first stop signal that arrived."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a flag while the block runs. Outside the main thread, do nothing."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def remember(signal_number: int, _frame: FrameType | None) -> None:
        request.signal_number = signal_number
        signal.signal(signal_number, previous[signal_number])

    previous = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in previous:
            signal.signal(number, remember)
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
