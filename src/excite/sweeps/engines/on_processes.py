"""Do jobs in processes of this machine, so many at a time, each with one thread and one GPU if there are any."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Sequence

from excite.files import being_made
from excite.sweeps.jobs import RETRIES, Job, JobEnd, blocked

SECONDS_BETWEEN_LOOKS = 0.05
WORKER = "excite.sweeps.engines.worker"


def run_locally(
    jobs: Sequence[Job], *, workers: int | None = None, shards: int | None = None, device: str | None = None
) -> Generator[tuple[Job, JobEnd], None, None]:
    """Yield each job with its outcome as it ends; one whose process was killed is started again, at most twice.

    `workers` is by default the number of GPUs, or of cores where there is none; each shares its attacks among `shards`
    processes. A stopped sweep stops its processes,
    which save what they have.
    """
    gpus = _gpus(device)
    places = range(workers or len(gpus) or _cores())
    waiting, running, finished = list(jobs), dict[subprocess.Popen[str], tuple[Job, int]](), dict[Job, JobEnd]()
    killed: Counter[Job] = Counter()
    try:
        while waiting or running:
            free = [place for place in places if place not in {taken for _, taken in running.values()}]
            ready = [job for job in waiting if free and all(needed in finished for needed in job.needs)]
            for place, job in zip(free, sorted(ready, key=_by_someone_else), strict=False):
                waiting.remove(job)
                if outcome := blocked(finished[needed] for needed in job.needs):
                    finished[job] = outcome
                    yield job, outcome
                else:
                    running[_start(job, device, shards, gpus[place % len(gpus)] if gpus else None)] = (job, place)
            time.sleep(SECONDS_BETWEEN_LOOKS)
            for process in [process for process in running if process.poll() is not None]:
                job, _ = running.pop(process)
                said, _ = process.communicate()
                killed[job] += process.returncode != 0
                if process.returncode != 0 and killed[job] <= RETRIES:
                    waiting.insert(0, job)
                    continue
                finished[job] = JobEnd(**json.loads(said)) if process.returncode == 0 else _given_up(job, process)
                yield job, finished[job]
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.communicate()


def _start(job: Job, device: str | None, shards: int | None, gpu: str | None) -> subprocess.Popen[str]:
    """A process that ends when this one does: it watches its standard input. Ctrl-C reaches it through us only."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
    return subprocess.Popen(
        [sys.executable, "-m", WORKER, str(job.folder), job.task, device or "", str(shards or 1)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def _given_up(job: Job, process: subprocess.Popen[str]) -> JobEnd:
    return JobEnd(
        "failed", f"its process ended {RETRIES + 1} times, the last time with code {process.returncode}; see {job.log}"
    )


def _by_someone_else(job: Job) -> bool:
    """Another runner in the same folder is at it: first do what nobody does."""
    return any(being_made(file) for file in job.files)


def _gpus(device: str | None) -> list[str]:
    import torch

    if device not in (None, "cuda") or not torch.cuda.is_available():
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
