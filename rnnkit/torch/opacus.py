"""Opacus, where it is imported before modules are accelerated: its validator refuses them, as it refuses PyTorch's.

It finds validators by a module's exact class. Its hooks cannot take the results of a recurrent module, so training
would end in an error of theirs.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn


def register(kind: type[nn.Module]) -> None:
    """Make Opacus' ModuleValidator refuse modules of this class."""
    if "opacus.validators" in sys.modules:
        from opacus.validators import register_module_validator

        register_module_validator(kind)(_errors)


def _errors(module: nn.Module) -> list[Any]:
    from opacus.validators.errors import UnsupportedModuleError

    kind = type(module).__name__
    cure = "call rnnkit.torch.restore, then ModuleValidator.fix, which gives DPLSTM, DPGRU or DPRNN"
    return [UnsupportedModuleError(f"{kind} of rnnkit has no gradients of single samples for Opacus: {cure}")]
