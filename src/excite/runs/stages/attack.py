"""Clean and robust accuracy of one trained arm, on all test images of the experiment."""

from excite.console import Speaker
from excite.evaluation import Shards, evaluate
from excite.evaluation.shards import UNSHARED
from excite.randomness import device_of
from excite.runs.assemble import Parts
from excite.runs.folder import ArmFolder


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
