"""An integration whose package is missing names the command that installs it."""

import importlib
import sys

import pytest

from excite.integrations import MissingExtraError

NEEDS = {
    "lightning": ("lightning", "lightning"),
    "transformers": ("transformers", "transformers"),
}


@pytest.mark.parametrize("module", NEEDS)
def test_the_error_names_the_command(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, extra = NEEDS[module]
    for name in [name for name in sys.modules if name.partition(".")[0] == package or name == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # an import of it now fails
    monkeypatch.delitem(sys.modules, f"excite.integrations.{module}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"excite\[{extra}\]"):
        importlib.import_module(f"excite.integrations.{module}")
