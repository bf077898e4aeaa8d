"""Every recorded training of three epochs or more keeps its certificate."""

from pathlib import Path

from excite.console import Console
from excite.excitation import certify
from excite.runs import load
from excite.runs.procedure import Run


def test_every_arm_that_was_recorded_keeps_its_certificate(tiny: Path, tmp_path: Path) -> None:
    changes = ["training.epochs=4", "data.train_examples=64", 'lipschitz={method="stated",constant=8.0}']
    run = Run(tmp_path / "run", load(str(tiny), overrides=changes), console=Console())
    run.train("poe")
    arm = run.files.arm("poe")
    trace, stored = arm.trace(), arm.certified
    assert trace is not None
    assert stored is not None
    path = certify(trace, 8.0)
    assert path.smoothness
    assert (stored.steps, stored.certified) == (2, path.certified.sum())
    assert stored.acute == path.angles.holds.sum()
    assert (stored.slopes, stored.largest_slope) == (path.smoothness.slopes, path.smoothness.largest)
    assert (stored.slowest is None) == (path.excitation is None)
    if path.excitation:
        assert (stored.slowest, stored.fastest) == (path.excitation.smallest, path.excitation.largest)
    arm.certificate_file.unlink()
    run.train("poe")  # a folder of before there were any gets it without another training
    assert run.files.arm("poe").certified == stored


def test_two_epochs_are_too_few(tiny: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run", load(str(tiny), overrides=["data.train_examples=64"]), console=Console())
    run.train("baseline")
    assert run.files.arm("baseline").certified is None
