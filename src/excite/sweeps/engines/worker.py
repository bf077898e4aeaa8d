"""One process of a local sweep: does the job its arguments name and prints the outcome as JSON."""

import json
import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from excite.errors import InterruptedRunError
from excite.evaluation.shards import Shards
from excite.sweeps.jobs import Job, perform


def main() -> None:
    folder, task, device, shards = sys.argv[1:]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        outcome = perform(Job(Path(folder), task), device or None, Shards(int(shards)))
    except InterruptedRunError as error:
        sys.exit(error.exit_code)
    print(json.dumps(asdict(outcome)))


def _end_with_parent() -> None:
    """Nothing is ever written to our standard input; it ends when the sweep's process does."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
