"""The tests are the same tree as src/excite: a module has a test file of its name, or a reason stands here."""

from pathlib import Path

import pytest

import excite

PACKAGE, TESTS = Path(excite.__file__).parent, Path(__file__).parent

# By the file that tests it: why there and not in a file of its name.
ELSEWHERE = {
    "test_bad_input.py": ("what parses a command line is seen at the command line", "cli/attacks cli/data"),
    "test_cli.py": ("what commands print is seen in whole runs", "cli/shared cli/runs cli/reports"),
    "cli/test_estimates.py": ("seen by the commands that need it", "runs/missing"),
    "integrations/test_robustbench.py": ("the command hands over to it", "cli/export"),
    "faults": ("damage is what it is for", "cli/verify data/sources/kinds"),
    "test_public_names.py": ("lazy names are public names", "lazy"),
    "data/self_training/test_labelling.py": (
        "labels are made before they are kept",
        "data/self_training/pseudo_labels",
    ),
    "data/sources/test_obtain.py": (
        "places and descriptions are what it obtains from",
        "data/sources/places data/sources/description",
    ),
    "evaluation/test_robustness.py": ("what an evaluation returns", "evaluation/result"),
    "execution/test_engine.py": ("both engines pass the same tests", "execution/processes execution/on_ray"),
    "lipschitz/extremes/test_reverse_weibull.py": (
        "the fit's own likelihood",
        "lipschitz/extremes/profile_likelihood",
    ),
    "models/test_models.py": ("every model's first weights, in one table", "models/initialize"),
    "report/figures/test_figures.py": (
        "every figure in one table",
        "report/figures/gains report/figures/lipschitz report/figures/theory",
    ),
    "report/test_formats.py": ("records are one of the formats", "report/records"),
    "test_extensions.py": ("every stage, from the command to the page", "runs/stages/estimate"),
}
TESTED_ELSEWHERE = {module for _, modules in ELSEWHERE.values() for module in modules.split()}
MODULES = [
    path.relative_to(PACKAGE).with_suffix("").as_posix()
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")  # what they hold is tested under the names they give it
]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_a_test_file_of_its_name_or_else_a_reason(module: str) -> None:
    path = Path(module)
    assert (TESTS / path.parent / f"test_{path.name}.py").exists() != (module in TESTED_ELSEWHERE)


@pytest.mark.parametrize("file", ELSEWHERE)
def test_the_file_that_tests_others_is_there(file: str) -> None:
    assert (TESTS / file).exists()


def test_every_reason_is_of_a_module_that_is_there() -> None:
    assert set(MODULES) >= TESTED_ELSEWHERE
