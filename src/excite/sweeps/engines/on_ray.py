"""Do jobs on a Ray cluster: Ray decides where and when, and starts those again whose worker died."""

from collections.abc import Generator, Sequence

from excite.evaluation.shards import UNSHARED, Shards
from excite.evaluation.shards_on_ray import cluster
from excite.sweeps.jobs import RETRIES, Job, JobEnd, blocked, perform

OBJECT_STORE_BYTES = 100_000_000  # outcomes are a line of text each


def run_on_ray(
    jobs: Sequence[Job],
    *,
    address: str | None = None,
    workers: int | None = None,
    shards: int | None = None,
    device: str | None = None,
) -> Generator[tuple[Job, JobEnd], None, None]:
    """Yield each job with its outcome as it ends.

    `address` names a cluster that shares the run folders' file system ("auto" finds the one this machine is part of).
    Without it a Ray of our own is started here, with `workers` CPUs and its home in a temporary folder. A job with
    `shards` has the cluster judge so many batches of its attacks at a time.
    """
    with cluster(address, workers, object_store_memory=OBJECT_STORE_BYTES):
        import ray

        gpus = 1 if device != "cpu" and ray.cluster_resources().get("GPU") else 0
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES, retry_exceptions=True)(_perform)
        promises: dict[Job, ray.ObjectRef[JobEnd]] = {}
        for job in jobs:
            promises[job] = remote.remote(job, device, shards, *(promises[needed] for needed in job.needs))
        waiting = {promise: job for job, promise in promises.items()}
        while waiting:
            (promise,), _ = ray.wait(list(waiting), num_returns=1)
            job = waiting.pop(promise)
            try:
                yield job, ray.get(promise)
            except ray.exceptions.RayError as error:
                yield job, JobEnd("failed", f"{str(error).splitlines()[0]}; see {job.log}")


def _perform(job: Job, device: str | None, shards: int | None, *needed: JobEnd) -> JobEnd:
    return blocked(needed) or perform(job, device, UNSHARED if shards is None else Shards(shards, "ray"))
