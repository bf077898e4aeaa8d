"""How much does the scoring of the released code give away? `python docs/study/saved_pictures.py RUNS --out FILE`

It saves the last point of PGD as an 8-bit picture by cutting off, reads it back, and scores that: part of a level up is
lost, part of a level down becomes a whole one. Here each trained arm of the runs is scored so and as it is, on the same
images with the same attack; a line of the CSV per run and arm.
"""

import argparse
import csv
import sys
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from excite import attacks
from excite.console import Console
from excite.evaluation import evaluate
from excite.runs.folder import run_folders_in
from excite.runs.procedure import Run

EPS, STEP, STEPS = 1 / 255, 0.1 / 255, 20  # the paper's Table 1
ROUNDING = 1e-3  # of a level: what float32 may lose where a pixel lies on one
COLUMNS = ("run", "arm", "rate", "images", "clean", "best point", "last point", "last point saved in 8 bits")


def truncated(x: Tensor) -> Tensor:
    """Images in [0, 1] as they come back from a picture whose pixels were cut off to 8 bits, not rounded.

    >>> import torch
    >>> (truncated(torch.tensor([3, 3.5, 2.5, 4]) / 255) * 255).round().tolist()
    [3.0, 3.0, 2.0, 4.0]
    """
    return (x * 255 + ROUNDING).floor() / 255


def last_point(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return attacks.pgd(model, x, y, eps=EPS, step=STEP, steps=STEPS, keep="last")


def saved_last_point(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return truncated(last_point(model, x, y))


def scores(run: Run, arm: str, *, examples: int | None) -> list[object]:
    trained, images = run.files.arm(arm), run.parts.test
    images = images if examples is None else images.subset(examples)
    model = trained.load_into(run.parts.new_model()).eval()
    ways = {
        "best": partial(attacks.pgd, eps=EPS, step=STEP, steps=STEPS),
        "last": last_point,
        "saved": saved_last_point,
    }
    found = evaluate(model, images.floats(), images.labels, ways, checks=False)
    return [
        run.folder.name,
        arm,
        trained.rate,
        len(images),
        found.clean.value,
        *(found.robust[way].value for way in ways),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="a run folder, or a folder of them, with the weights still there")
    parser.add_argument("--out", type=Path, help="a CSV file; the terminal where left out")
    parser.add_argument("--examples", type=int, help="of the experiment's test images; all of them where left out")
    options = parser.parse_args()
    runs = [Run.open(found.path, console=Console()) for found in run_folders_in(options.runs)]
    lines = [
        scores(run, arm.name, examples=options.examples) for run in runs for arm in run.files.arms if not arm.problem
    ]
    with options.out.open("w", encoding="utf-8", newline="") if options.out else sys.stdout as file:
        csv.writer(file).writerows([COLUMNS, *lines])


if __name__ == "__main__":
    main()
