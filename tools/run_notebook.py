"""Run the notebook in examples/ and store its outputs, which the docs show.

python tools/run_notebook.py
"""

from pathlib import Path

import nbclient
import nbformat

NOTEBOOK = Path(__file__).parents[1] / "examples" / "find_rate.ipynb"


def executed(path: Path = NOTEBOOK) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of this run, without what differs from run to run."""
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": path.parent}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    return notebook


if __name__ == "__main__":
    nbformat.write(executed(), NOTEBOOK)
