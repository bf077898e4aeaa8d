"""Import the names of a package on first use, so that `excite --help` and reading results do not wait for torch."""

import importlib
import sys
from collections.abc import Callable, Container, Mapping
from typing import Any


def lazily(package: str, homes: Mapping[str, str], *, modules: Container[str] = ()) -> Callable[[str], Any]:
    """Return a `__getattr__` for the package; `homes` maps each name to its module, `modules` are names themselves."""

    def find(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return find
