"""Starting up stays fast: heavy packages wait until they are needed."""

import subprocess
import sys

import pytest

HEAVY = ["matplotlib", "scipy.stats", "lightning", "ray", "jinja2", "torchvision"]


def imported(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules, sep='\\n')"
    return set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")
    )


def test_help_does_not_import_torch() -> None:
    modules = imported("from excite.cli import cli\ntry: cli(['--help'])\nexcept SystemExit: pass")
    assert "excite.cli" in modules
    assert modules.isdisjoint([*HEAVY, "torch", "numpy", "rich"])


@pytest.mark.parametrize(
    "statement", ["import excite", "from excite import *\nimport excite.lipschitz, excite.trace, excite.excitation"]
)
def test_the_library_does_not_import_what_only_reports_need(statement: str) -> None:
    assert imported(statement).isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "statement", ["from excite.report.figures import FIGURES", "import excite.report.page, excite.runs.folder"]
)
def test_who_only_reads_results_does_not_wait_for_torch(statement: str) -> None:
    assert "torch" not in imported(statement)


def test_every_public_name_is_there() -> None:
    import excite

    for name in excite.__all__:
        assert getattr(excite, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        excite.nothing  # noqa: B018
