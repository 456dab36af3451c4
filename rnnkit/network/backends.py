"""The engines of the CPU and of the GPU, imported on first use."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from rnnkit.call import forking
from rnnkit.call.options import CUPY, NUMPY, REDUCED, CallOptions, check
from rnnkit.descriptor.descriptor import RNNDescriptor


def backend(function: str, call: str, desc: RNNDescriptor, array: Any, options: CallOptions) -> ModuleType:
    """Return the backend module for the array's device. Imports numba or cupy on first use.

    Raises if this call, by its name in the table of options, does not support an option on this backend.
    """
    if isinstance(array, np.ndarray):  # subclasses have been rejected before
        check(function, desc, options, call, REDUCED if options.precision else NUMPY)
        return cpu_module("engine")
    check(function, desc, options, call, CUPY)
    return forking.imported("rnnkit.cuda.engine")


@cache
def cpu_module(name: str) -> ModuleType:
    """Return a module of the CPU engine for checked arguments: "prepared" calls, "kept" workspaces, and others."""
    return forking.imported(f"rnnkit.cpu.{name}")
