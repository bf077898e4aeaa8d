"""What `import excite` promises: every public name is there, is listed, and hides no module."""

import contextlib
import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import excite
from excite.errors import InputError
from excite.integrations import MissingExtraError

MODULES = [
    module.name for module in pkgutil.walk_packages(excite.__path__, "excite.") if not module.name.endswith("__main__")
]
STATIONS = [name for name in excite.__all__ if f"excite.{name}" in MODULES]


def test_dir_lists_everything_public() -> None:
    assert dir(excite) == sorted([*excite.__all__, "__version__"])
    assert {"trace", "lipschitz", "evaluation", "training", "excitation", "objectives"} <= set(STATIONS)


@pytest.mark.parametrize("name", excite.__all__)
def test_a_public_name_is_there_with_a_docstring(name: str) -> None:
    assert getattr(excite, name).__doc__


def test_every_station_is_there_after_importing_excite_alone() -> None:
    code = "import excite\n" + "\n".join(f"assert excite.{name}.__name__ == 'excite.{name}'" for name in STATIONS)
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", MODULES)
def test_no_function_hides_a_module_of_its_name(name: str) -> None:
    parent, _, own = name.rpartition(".")
    with contextlib.suppress(MissingExtraError):
        importlib.import_module(name)
    if name.startswith("excite.integrations.") and not hasattr(excite.integrations, own):
        pytest.skip("the package it needs is not installed")
    assert isinstance(getattr(importlib.import_module(parent), own), ModuleType)


def test_a_wrong_name_suggests_the_right_one() -> None:
    with pytest.raises(AttributeError, match="no attribute 'estimate_lipschit'") as error:
        excite.estimate_lipschit  # noqa: B018
    assert error.value.name == "estimate_lipschit"  # what Python's own "Did you mean" needs
    assert error.value.obj is excite


def modules() -> dict[str, ModuleType]:
    """By dotted name: every station, and what stands in other people's tools, where their packages are installed."""
    found = {station: getattr(excite, station) for station in STATIONS} | {
        "report.figures": importlib.import_module("excite.report.figures")
    }
    for name in (name for name in MODULES if name.startswith("excite.integrations.")):
        with contextlib.suppress(MissingExtraError):
            found[name.removeprefix("excite.")] = importlib.import_module(name)
    return found


def public() -> dict[str, object]:
    """By dotted name: what is public of excite, and of every such module."""
    return {name: getattr(excite, name) for name in excite.__all__} | {
        f"{home}.{name}": getattr(module, name)
        for home, module in modules().items()
        for name in getattr(module, "__all__", ())
    }


def test_every_integration_says_what_is_public() -> None:
    named = {home for home, module in modules().items() if getattr(module, "__all__", ())}
    assert {home for home in modules() if home.startswith("integrations.")} <= named


def test_a_wrong_option_of_an_estimator_is_an_input_error() -> None:
    with pytest.raises(InputError, match='"constant"'):
        excite.estimate_lipschitz(None, "stated", constnat=3.0)
