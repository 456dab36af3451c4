"""Compiled kernels: CuPy compiles their CUDA C with NVRTC when they first run, and keeps the machine code on disk."""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy

from rnnkit.cuda.blas import NOTHING, Prepared

THREADS = 128  # of a block
# Functions without a mark are of the device; products and sums are rounded one by one, as on the CPU.
OPTIONS = "-default-device", "-fmad=false"


@cache
def _module(source: str) -> Any:
    return cupy.RawModule(code=source, options=OPTIONS)


@cache
def kernel(source: str, name: str) -> Any:
    """Return a kernel of this CUDA C, which is never freed: its `id` belongs to it alone."""
    return _module(source).get_function(name)


def launch(function: Any, threads: int, arguments: tuple[int, ...]) -> None:
    """Run a kernel with so many threads on CuPy's current stream. Arguments are ints and addresses, of eight bytes."""
    if threads:
        function((-(-threads // THREADS),), (THREADS,), arguments)


def prepared(function: Any, threads: int, rows: int, rows_of_step: int, arguments: tuple[int, ...]) -> Prepared:
    """Prepare a kernel whose first arguments are the first row of a step and the number of rows."""
    if not threads:
        return NOTHING
    blocks = (-(-threads // THREADS),)

    def run(step: int) -> None:
        function(blocks, (THREADS,), (step * rows_of_step, rows, *arguments))

    return Prepared(run, (id(function), threads, rows, rows_of_step, arguments))


def address(array: Any) -> int:
    """Return where an array begins; 0 for None."""
    return 0 if array is None else array.data.ptr
