"""The former names of modules, which pickles contain: until 0.19 `rnnkit_kernels` was `rnnkit.kernels`."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_FORMER, _NOW = "rnnkit.kernels", "rnnkit_kernels"


class FormerNames(MetaPathFinder, Loader):
    """Finds a module by its former name: the module itself, not a copy, whose classes would be others."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if f"{name}.".startswith(f"{_FORMER}.") else None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(module.__name__.replace(_FORMER, _NOW))


sys.meta_path.insert(0, FormerNames())  # first, because a module's own finder would load it again under this name
