"""Write one self-contained HTML page: the verdict first, then everything it rests on."""

import json
import shlex
from pathlib import Path

from excite.experiments.results import Results
from excite.files import write_text
from excite.report.figures import accuracies, learning_curves
from excite.report.table import columns, row
from excite.report.verdict import verdict

PAGE = "report.html"


def write_page(results: Results) -> Path:
    """Write report.html into the run folder and return its path."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("excite", "report"), autoescape=True, trim_blocks=True)
    experiment = results.experiment
    page = environment.get_template("page.html.j2").render(
        title=experiment.name,
        summary=experiment.summary,
        verdict=verdict(results),
        columns=columns(results),
        rows=[row(results, arm) for arm in results.arms],
        problems=[f"{arm.title}: {arm.problem}" for arm in results.arms if arm.problem],
        flags=[f"{arm.title}: {flag}" for arm in results.arms if arm.evaluation for flag in arm.evaluation.flags],
        estimate=results.estimate,
        estimate_seconds=results.estimate_seconds,
        learning_curves=learning_curves(results),
        accuracies=accuracies(results),
        configuration=json.dumps(experiment.to_json(), indent=2, ensure_ascii=False),
        command=shlex.join(["excite", "run", experiment.name, "--out", str(results.folder)]),
    )
    path = results.folder / PAGE
    write_text(path, page)
    return path
