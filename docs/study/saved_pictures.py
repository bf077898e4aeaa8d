"""How much accuracy does the scoring of the released code add? `python docs/study/saved_pictures.py RUNS --out FILE`

The released code saves the last point of PGD as an 8-bit picture by truncation, reads it back, and scores that. Here
each trained arm of the runs is scored both ways, on the same images with the same attack. FILE gets a line per run and
arm, and a figure of the same name. Arms that are already in FILE are not scored again.
"""

import argparse
import csv
import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from excite import attacks
from excite.console import Console
from excite.evaluation import evaluate
from excite.files import write_text
from excite.report.figures import style
from excite.runs.arms import arm_named, in_order
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


def scores(run: Run, arm: str, *, examples: int | None) -> list[str]:
    trained, images = run.files.arm(arm), run.parts.test
    images = images if examples is None else images.subset(examples)
    model = trained.load_into(run.parts.new_model()).eval()
    ways = {
        "best": partial(attacks.pgd, eps=EPS, step=STEP, steps=STEPS),
        "last": last_point,
        "saved": saved_last_point,
    }
    evaluation = evaluate(model, images.floats(), images.labels, ways, checks=False)
    measured = [trained.rate, len(images), evaluation.clean.value, *(evaluation.robust[way].value for way in ways)]
    return [run.folder.name, arm, *map(str, measured)]


def draw(lines: Sequence[Sequence[str]], name: str) -> str:
    """Per network the true accuracy, filled, and that of the saved pictures, hollow."""
    figure, (axes,) = style.panels(1, 1, width=6.4, height=0.8 + 0.24 * len(lines))
    for row, (_, arm, *_, true, saved) in enumerate(lines):
        colour, marker = style.look(arm)
        points = [100 * float(true), 100 * float(saved)]
        axes.plot(points, [row, row], color=colour, linewidth=1.2)
        title = arm_named(arm).short_title
        for point, filling, scored in zip(points, (colour, "none"), ("as they are", "saved in 8 bits"), strict=True):
            axes.plot(point, row, marker, color=colour, markerfacecolor=filling, label=f"{title}, {scored}")
    axes.set_yticks(range(len(lines)), [run for run, *_ in lines])
    axes.invert_yaxis()
    style.label(axes, "accuracy under PGD-20, last point (%)", "network (run)")
    style.legend_below(figure, [axes], columns=2)
    return style.svg(figure, name, "Accuracy on adversarial images as they are, and saved as 8-bit pictures")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="a run folder, or a folder of them, with the weights still there")
    parser.add_argument("--out", type=Path, required=True, help="a CSV file")
    parser.add_argument("--examples", type=int, help="of the experiment's test images; all of them where left out")
    options = parser.parse_args()
    lines = _read(options.out) if options.out.exists() else []
    for folder in run_folders_in(options.runs):
        run = Run.open(folder.path, console=Console())
        for arm in (arm for arm in folder.arms if not arm.problem):
            number = str(options.examples or len(run.parts.test))
            if not any((line[0], line[1], line[3]) == (folder.path.name, arm.name, number) for line in lines):
                lines = [line for line in lines if line[:2] != [folder.path.name, arm.name]]  # of other images
                lines.append(scores(run, arm.name, examples=options.examples))
                order = in_order({name for _, name, *_ in lines})
                lines.sort(key=lambda line: (line[0], order.index(line[1])))
                write_text(options.out, _as_csv(lines))
    with style.settings():
        write_text(options.out.with_suffix(".svg"), draw(lines, options.out.stem))


def _read(file: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(file.read_text(encoding="utf-8"))))[1:]


def _as_csv(lines: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *lines])
    return text.getvalue()


if __name__ == "__main__":
    main()
