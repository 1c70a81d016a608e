"""Import a package's modules where they are first used, so that imports stand at the top of a file (PEP 562).

`from classify import training` costs nothing; the call `training.run.train(config)` imports `classify.training.run`,
and torch with it. So `--help` and errors of input answer before a heavy library is loaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType


def submodules(package: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package whose modules are imported by their first use as attributes."""

    def import_module(name: str) -> ModuleType:
        module = f"{package}.{name}"
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None

    return import_module
