"""One L for a study: the run of the smallest seed estimates it, the other seeds take it over."""

from dataclasses import replace

from excite.runs.collection import seedless
from excite.runs.folder import RunFolder, StoredEstimate


def leader_of(run: RunFolder) -> RunFolder | None:
    """The run beside this one whose L it takes over, where they share L; none if this one estimates it."""
    beside = [other for path in sorted(run.path.parent.iterdir()) if (other := RunFolder(path)).exists]
    same = [other for other in beside if seedless(other.experiment) == seedless(run.experiment)]
    leader = min(same, key=lambda other: other.experiment.seed, default=run)
    return None if leader.path.name == run.path.name else leader


def share(leader: RunFolder, run: RunFolder, name: str) -> None:
    """Leave the leader's L in the folder, and say whose it is."""
    stored = StoredEstimate.load(leader.estimate_file(name))
    estimate = stored.estimate and replace(
        stored.estimate, basis=f"shared by the study, estimated in {leader.path.name}: {stored.estimate.basis}"
    )
    replace(stored, estimate=estimate, seconds=0.0).save(run.estimate_file(name))
