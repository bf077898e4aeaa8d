"""The package as others get it: a small wheel with everything in it, complete metadata, no repository needed."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import excite

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = [
    line
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
LARGEST_WHEEL = 2_000_000  # bytes
COMPROMISED = {"lightning": ("2.6.2", "2.6.3")}
PERMISSIVE = re.compile(r"\b(MIT|\d?BSD|Apache|PSF|Python Software Foundation|ISC|MPL|Mozilla)\b")
MEANT = {  # in the wheel, besides modules and experiments
    "excite/data/assets/README.md",
    "excite/data/assets/mnist-sample.npz",
    "excite/py.typed",
    "excite/report/published.toml",
    "excite/report/templates/page.css",
    "excite/report/templates/page.html.j2",
    "excite/report/templates/page.js",
    "excite/report/templates/verdict.j2",
    *(
        f"excite-{excite.__version__}.dist-info/{name}"
        for name in (
            *("METADATA", "RECORD", "WHEEL", "entry_points.txt"),
            *("licenses/LICENSE", "licenses/LICENSES/CC-BY-SA-3.0.txt"),
        )
    ),
}


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
    extras = PROJECT["optional-dependencies"].values()
    wanted = names(PROJECT["dependencies"]).union(*map(names, extras)) - {"excite"}
    assert wanted <= names(PINS)
    assert not [line for line in PINS if "+" in line], "no local versions"


def test_compromised_releases_are_excluded() -> None:
    lines = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    for requirement in map(Requirement, PROJECT["dependencies"] + lines):
        for version in COMPROMISED.get(requirement.name, ()):
            assert version not in requirement.specifier
            assert f"{requirement.name}=={version}" not in PINS


def test_every_installed_package_declares_a_permissive_license() -> None:
    for package in names(PINS) - {"docutils"}:  # which names the GPL for one file
        try:
            metadata = importlib.metadata.metadata(package)
        except importlib.metadata.PackageNotFoundError:  # of an extra
            continue
        fields = [
            *metadata.get_all("License-Expression", []),
            *(name_or_text.partition("\n")[0] for name_or_text in metadata.get_all("License", [])),
            *(line for line in metadata.get_all("Classifier", []) if line.startswith("License")),
        ]
        declared = " ".join(fields)
        assert PERMISSIVE.search(declared), package
        assert "GPL" not in declared, package


def test_the_images_keep_their_license() -> None:
    assert PROJECT["license"] == "MIT AND CC-BY-SA-3.0"
    files = [file for pattern in PROJECT["license-files"] for file in ROOT.glob(pattern)]
    texts = [file.read_text(encoding="utf-8") for file in files]
    for title in ("MIT License", "Attribution-ShareAlike 3.0 Unported"):
        assert any(title in text for text in texts), title


def test_the_citation_names_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {excite.__version__}\n" in citation


@pytest.mark.slow
def test_the_wheel_runs_in_an_empty_environment(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "build", "--outdir", tmp_path, ROOT], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < LARGEST_WHEEL
    shipped = zipfile.ZipFile(wheel).namelist()
    others = {name for name in shipped if not re.fullmatch(r"excite/([\w/]+\.py|runs/experiments/[\w-]+\.toml)", name)}
    assert others == MEANT
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    clean |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    python = environment / "bin/python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel)]
    subprocess.run(pip, check=True, env=clean, cwd=tmp_path)

    def in_there(*command: Path | str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, check=True, env=clean, cwd=tmp_path, capture_output=True, text=True)

    small = ["data.train_examples=320", "data.test_examples=40", "training.epochs=2", "lipschitz.steps=20"]
    done = in_there(environment / "bin/excite", "run", *(word for key in small for word in ("--set", key)))
    assert "PoE-motivated, 1/L" in done.stdout
    assert (tmp_path / "runs/quickstart/report.html").stat().st_size > 10_000
    listed = in_there(environment / "bin/excite", "list")
    assert "quickstart" in listed.stdout
    assert listed.stderr == ""
    where = in_there(python, "-c", "import excite; print(excite.__file__)")
    assert Path(where.stdout.strip()).is_relative_to(environment)
