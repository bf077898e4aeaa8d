"""The experiment says how many images are attacked together, after every epoch and at the end."""

from dataclasses import replace
from pathlib import Path

from torch import nn

from excite.console import Console
from excite.runs import load
from excite.runs.procedure import Run
from excite.runs.stages.attack import attack_arm
from excite.runs.stages.train import measure


def test_images_are_attacked_in_batches_of_the_experiment(tiny: Path, tmp_path: Path) -> None:
    changes = ["attack_batch=16", "training.epochs=1", "training.steps=1"]
    run = Run(tmp_path / "run", load(str(tiny), overrides=changes), console=Console(quiet=True))
    run.train("baseline")
    sizes: list[int] = []

    def watched() -> nn.Module:
        model = run.parts.new_model()
        model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
        return model

    measure(run.parts, watched(), run.parts.test, attacked=True)
    assert max(sizes) == 16
    sizes.clear()
    attack_arm(replace(run.parts, new_model=watched), run.files.arm("baseline"), run.console)
    assert max(sizes) == 16
