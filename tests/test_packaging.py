"""The package as others get it: a small wheel with everything in it, complete metadata, no repository needed."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import excite

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LARGEST_WHEEL = 2_000_000  # bytes


def names(requirements: list[str]) -> set[str]:
    """As packages are looked up: case and the kind of dash do not matter."""
    return {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~;\s]", line)[0]).lower() for line in requirements}


def test_the_metadata_are_complete() -> None:
    for field in ("description", "readme", "license", "requires-python", "keywords", "classifiers", "authors", "urls"):
        assert PROJECT[field], field
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert (Path(excite.__file__).parent / "py.typed").exists()


def test_running_needs_no_tools_of_development() -> None:
    extras = PROJECT["optional-dependencies"]
    tools = names([item for extra in ("dev", "integrations", "docs", "bench", "ray") for item in extras[extra]])
    assert names(PROJECT["dependencies"]).isdisjoint(tools)


def test_every_dependency_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = names([line for line in pins if line and not line.startswith("#")])
    extras = PROJECT["optional-dependencies"].values()
    wanted = names(PROJECT["dependencies"]).union(*map(names, extras)) - {"excite"}
    assert wanted <= pinned
    assert not [line for line in pins if "+" in line and not line.startswith("#")], "no local versions"


def test_the_citation_names_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {excite.__version__}\n" in citation


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "build", "--outdir", tmp_path, ROOT], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < LARGEST_WHEEL
    shipped = zipfile.ZipFile(wheel).namelist()
    assert "excite/py.typed" in shipped
    assert not [name for name in shipped if name.startswith("tests/")]
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    clean |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    python = environment / "bin/python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel)]
    subprocess.run(pip, check=True, env=clean, cwd=tmp_path)
    small = ["data.train_examples=320", "data.test_examples=40", "training.epochs=2", "lipschitz.steps=20"]
    done = subprocess.run(
        [environment / "bin/excite", "run", *(word for key in small for word in ("--set", key))],
        check=True,
        env=clean,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "PoE-motivated, 1/L" in done.stdout
    assert (tmp_path / "runs/mnist-sample/report.html").stat().st_size > 10_000
    where = subprocess.run(
        [python, "-c", "import excite; print(excite.__file__)"],
        check=True, env=clean, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert Path(where.stdout.strip()).is_relative_to(environment)
