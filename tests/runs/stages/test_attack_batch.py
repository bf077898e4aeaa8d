"""The experiment says how many images are attacked together, and in which precision attacks search."""

from dataclasses import replace
from pathlib import Path

from torch import nn

from excite.console import Console
from excite.runs import load
from excite.runs.procedure import Run
from excite.runs.stages.attack import attack_arm, attack_target, target_of
from excite.runs.stages.train import measure


def test_images_are_attacked_in_batches_of_the_experiment(tiny: Path, tmp_path: Path) -> None:
    changes = ["attack_batch=16", "training.epochs=1", "training.steps=1"]
    run = Run(tmp_path / "run", load(str(tiny), overrides=changes), console=Console(quiet=True))
    run.train("baseline")
    parts, sizes = run.parts, list[int]()

    def watched() -> nn.Module:
        model = parts.new_model()
        model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
        return model

    measure(run.parts, watched(), run.parts.test, attacked=True)
    assert max(sizes) == 16
    sizes.clear()
    vars(run)["parts"] = replace(parts, new_model=watched)
    attack_arm(run, run.files.arm("baseline"))
    assert max(sizes) == 16


def test_an_experiment_says_in_which_precision_its_attacks_search(tiny: Path, tmp_path: Path) -> None:
    changes = ["attack_precision=bf16", "training.epochs=1", "training.steps=1"]
    run = Run(tmp_path / "run", load(str(tiny), overrides=changes), console=Console(quiet=True))
    run.train("baseline")
    found = run.attack("baseline")
    assert all("searched in bf16" in result.description for result in found.attacks.values())
    target = target_of(run.parts, run.files.arm("baseline"))
    files = {
        attack_target(target, run.parts.attacks, console=run.console, examples=8, precision=precision)[1]
        for precision in ("float32", "bf16")
    }
    assert len(files) == 2  # beside each other
