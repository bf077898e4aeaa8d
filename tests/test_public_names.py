"""What `import excite` promises: every public name is there, is listed, and hides no module."""

import contextlib
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from inspect import isfunction, signature
from types import ModuleType

import pytest

import excite
from excite.errors import InputError
from excite.integrations.extras import MissingExtraError

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
    found = {station: getattr(excite, station) for station in STATIONS} | {"report.figures": excite.report.figures}
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


FORWARDING = ("estimate_lipschitz", "estimator", "create")  # whose options are those of what they name
FUNCTIONS = {
    name: function
    for name, function in public().items()
    if isfunction(function)
    and name.rpartition(".")[2] not in FORWARDING
    and any(each.kind is not each.VAR_POSITIONAL for each in signature(function).parameters.values())
}
CLASSES = [
    *(excite.OnlineRate, excite.Recorder, excite.attacks.PGD, excite.attacks.AutoAttack, excite.trace.Probe),
    *(excite.data.Split, excite.data.Dataset, excite.data.Mixture, excite.data.Unlabelled),
    *(excite.lipschitz.ShortTrainings, excite.lipschitz.Recording, excite.evaluation.Shards),
    *(excite.Trace, excite.LipschitzEstimate, excite.Evaluation, excite.evaluation.AttackResult),
    *(excite.models.LeNet5, excite.models.ResNet, excite.models.DenseNet, excite.models.WideResNet),
    *excite.objectives.OBJECTIVES.values(),
    *excite.lipschitz.ESTIMATORS.values(),
    *(
        kind
        for name, kind in public().items()
        if name.startswith("integrations.") and isinstance(kind, type) and not issubclass(kind, Exception)
    ),
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_refuses_an_unknown_option(name: str) -> None:
    with pytest.raises((InputError, TypeError), match="nonsense_option"):
        FUNCTIONS[name](nonsense_option=1)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_public_class_refuses_an_unknown_option(kind: type) -> None:
    with pytest.raises((InputError, TypeError), match="nonsense_option"):
        kind(nonsense_option=1)


@pytest.mark.parametrize("function", [excite.estimate_lipschitz, excite.lipschitz.estimator, excite.models.create])
def test_what_is_missing_beside_options_that_are_handed_on_is_named(function: Callable[..., object]) -> None:
    with pytest.raises((InputError, TypeError), match="missing"):
        function(trace=None)


def test_so_is_a_wrong_option_of_an_estimator() -> None:
    with pytest.raises(InputError, match='option of the estimator stated "constnat"; did you mean "constant"'):
        excite.estimate_lipschitz(None, "stated", constnat=3.0)
