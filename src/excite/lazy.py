"""Names of a package that are imported when first asked for: who only reads results should not wait for torch."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The package's `__getattr__`; `homes` names the module of each name, inside the package."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return find
