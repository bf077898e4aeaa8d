"""What a trained arm is worth: what the theorem says of its path, and how many images withstand each attack."""

import math

from excite.console import Speaker
from excite.evaluation import Shards, evaluate
from excite.evaluation.shards import UNSHARED
from excite.excitation import certify as certify_path
from excite.excitation.along_path import FEWEST_MOMENTS, smoothness
from excite.files import write_json
from excite.randomness import device_of
from excite.runs.assemble import Parts
from excite.runs.folder import ArmFolder
from excite.runs.stored import Certified


def certify(arm: ArmFolder) -> None:
    """Leave it in the arm's folder; a training that diverged, or of fewer than three epochs, has none."""
    trace = arm.trace()
    if trace is None or len(trace) < FEWEST_MOMENTS:
        return
    path = certify_path(trace)
    slopes = smoothness(trace, math.inf)
    found = path.excitation
    certified = Certified(
        steps=len(path.spans),
        certified=int(path.certified.sum()),
        acute=int(path.angles.holds.sum()),
        slopes=slopes.slopes,
        largest_slope=slopes.largest if slopes.slopes else None,
        slowest=found.smallest if found else None,
        fastest=found.largest if found else None,
        mean_rate=found.mean_rate if found else None,
        conclusion=str(path),
    )
    write_json(arm.certificate_file, certified.to_json())


def attack(parts: Parts, arm: ArmFolder, console: Speaker, shards: Shards = UNSHARED) -> None:
    """Leave the evaluation in the arm's folder; one that was stopped goes on from its journal, shared or not."""
    model = arm.load_into(parts.new_model()).eval()
    device = device_of(model)
    with console.task(f"{arm.name}: {', '.join(parts.attacks)}") as progress:
        evaluation = evaluate(
            model,
            parts.test.floats().to(device),
            parts.test.labels.to(device),
            parts.attacks,
            seed=parts.experiment.seed,
            journal=arm.journal_file,
            on_progress=progress,
            **vars(shards),
        )
    evaluation.save(arm.evaluation_file)
    arm.journal_file.unlink(missing_ok=True)
