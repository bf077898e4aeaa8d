"""The tests are the same tree as src/excite: a module has a test file of its name, or a reason stands here."""

from pathlib import Path

import pytest

import excite

PACKAGE, TESTS = Path(excite.__file__).parent, Path(__file__).parent

# By the file that tests it: why there and not in a file of its name.
ELSEWHERE = {
    "attacks/test_auto_attack.py": ("members are compared with the package's in one table", "attacks/packaged"),
    "evaluation/test_accuracy.py": ("a ladder is only ever a curve's", "attacks/ladder"),
    "test_bad_input.py": ("what parses a command line is seen at the command line", "cli/attacks cli/data"),
    "test_cli.py": ("what commands print is seen in whole runs", "cli/shared cli/runs cli/reports"),
    "cli/test_estimates.py": ("seen by the commands that need it", "runs/missing"),
    "integrations/test_robustbench.py": ("the command hands over to it", "cli/export"),
    "integrations/test_tensorboard.py": ("they are what its events hold", "integrations/scalars"),
    "faults": ("damage is what it is for", "cli/verify"),
    "test_public_names.py": ("lazy names are public names", "lazy"),
    "evaluation/test_judge.py": ("parts that only an evaluation calls", "evaluation/result evaluation/batch"),
    "evaluation/test_shards.py": ("how an evaluation is cut up, and Ray as one way", "evaluation/shards_on_ray"),
    "finder/test_one_call.py": ("parts of the one call", "finder/batch_loss finder/same_optimizer"),
    "lipschitz/extremes/test_reverse_weibull.py": (
        "the fit's own likelihood",
        "lipschitz/extremes/profile_likelihood",
    ),
    "report/figures/test_figures.py": (
        "every figure in one table",
        "report/figures/estimators report/figures/figure_1 report/figures/figure_2 report/figures/figure_3 "
        "report/figures/figure_4 report/figures/gains report/figures/heat_maps report/figures/summary "
        "report/figures/theorem_1",
    ),
    "report/tables/test_run_tables.py": (
        "how its cells are written",
        "report/tables/records report/tables/study_columns",
    ),
    "test_extensions.py": ("every stage, from the command to the page", "runs/stages/estimate"),
    "sweeps/engines/test_engines.py": (
        "every engine gives the same: one table",
        "sweeps/engines/on_processes sweeps/engines/on_ray sweeps/engines/worker",
    ),
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
