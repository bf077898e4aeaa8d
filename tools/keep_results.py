"""Keep what runs found, without their weights: small files that `excite report` and `excite figure` still read.

    python tools/keep_results.py [RUNS…] --out results/NAME [--figure figure-2 …] [--traces]

Copies every run's JSON files and epoch metrics (and traces, for the figure theorem-1 and for estimators to come), and
writes table.md, table.csv and the figures beside them; without RUNS it writes those anew, of what is kept already.
"""

import argparse
import shutil
from pathlib import Path

from excite.files import write_text
from excite.report.figures import draw
from excite.report.rows import tidy
from excite.report.tables import StudyTable
from excite.runs.folder import collect

KEPT = (
    *("experiment.json", "stages.json", "estimate.json", "outcome.json", "evaluation.json", "search.json"),
    *("certificate.json", "metrics.jsonl"),
)
OF_PRESETS = "estimates"  # L by others than the run's own, for arms such as poe@stated
TRACE = "trace.safetensors"


def keep(source: Path, target: Path, *, traces: bool) -> None:
    names = (*KEPT, TRACE) if traces else KEPT
    for path in sorted(source.rglob("*")):
        wanted = path.name in names or (path.parent.name == OF_PRESETS and path.suffix == ".json")
        if wanted and "teacher" not in path.relative_to(source).parts:
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figure", action="append", default=[])
    parser.add_argument("--traces", action="store_true")
    arguments = parser.parse_args()
    if len({run.name for run in arguments.runs}) < len(arguments.runs):
        parser.error("two of the runs have one name, and would be kept in one folder")
    for run in arguments.runs:
        keep(run, arguments.out / run.name, traces=arguments.traces)
    results = collect([arguments.out])
    table = StudyTable(tidy(results))
    write_text(arguments.out / "table.md", table.markdown() + "\n")
    write_text(arguments.out / "table.csv", table.csv())
    for name in arguments.figure:
        draw(name, results, arguments.out)
