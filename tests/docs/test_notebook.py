"""The notebook in examples/ runs, and the outputs that it shows are those of a run."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.filterwarnings("ignore")  # of zmq and traitlets
def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    tool = runpy.run_path(str(ROOT / "tools" / "run_notebook.py"))
    now, stored = tool["executed"](), nbformat.read(tool["NOTEBOOK"], as_version=4)

    def kinds(notebook: object) -> list[list[str]]:
        return [[output.output_type for output in cell.get("outputs", [])] for cell in notebook.cells]  # type: ignore[attr-defined]

    assert kinds(now) == kinds(stored)
    printed = "".join(output.text for cell in now.cells for output in cell.get("outputs", []) if "text" in output)
    assert "(1/L)" in printed
    assert "2/L (rate " in printed
    assert sum("image/png" in output.get("data", {}) for cell in now.cells for output in cell.get("outputs", [])) == 2
