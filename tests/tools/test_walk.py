"""The walk of a toy package, whose steps back are known."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools/walk.py"
FILES = {
    "home/data/load.py": "def load(then=None):\n    return then() if then else None\n",
    "home/data/more.py": "def more():\n    pass\n",
    "home/models/net.py": "def net(then=None):\n    return then() if then else None\n",
    "home/errors.py": "def unknown():\n    pass\n",
}


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("calls", "steps_back"),
    [
        ("load(); net(); more()", ["data/more.py"]),  # back to a station that was left
        ("load(); more(); net()", []),
        ("load(lambda: (net(), more()))", []),  # data called models and goes on: it was not left
        ("load(); unknown(); more()", []),  # what every station may use is no station
        ("load(); net(); load()", []),  # a file that is known is no news
    ],
)
def test_a_step_back_enters_a_new_file_of_a_station_that_was_left(
    tmp_path: Path, calls: str, steps_back: list[str]
) -> None:
    walk = loaded(TOOL)
    functions: dict[str, object] = {}
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        functions |= {key: value for key, value in vars(loaded(path)).items() if callable(value)}
    footprints = walk.Footprints(tmp_path / "home")
    before = sys.getprofile()
    sys.setprofile(footprints)
    try:
        exec(calls, functions)  # noqa: S102
    finally:
        sys.setprofile(before)
    assert list(footprints.walk().steps_back) == steps_back
