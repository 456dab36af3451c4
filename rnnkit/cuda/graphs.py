"""Loops over steps as CUDA graphs: a step then costs its kernels, and not the Python that starts them.

With RNNKIT_CUDA_GRAPHS=1 in the environment. A graph has fixed addresses. Training loops, and inference of one size
again and again, get the same memory from CuPy's pool in every round, so a loop is captured when it comes with the same
addresses for the second time.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from rnnkit.cuda.blas import Blas, Prepared

enabled = os.environ.get("RNNKIT_CUDA_GRAPHS", "") not in ("", "0")
_LEAST_STEPS, _MOST_STEPS = 4, 512  # of a graph
_KEPT = 64  # graphs of a thread
_WORKSPACE_BYTES = 1 << 22  # of cuBLAS: a graph has its own, as it may run beside others


class _Graphs(threading.local):
    def __init__(self) -> None:
        self.found: OrderedDict[Any, Any] = OrderedDict()  # None: seen once
        self.streams: dict[int, Any] = {}  # by device


_graphs = _Graphs()


def run_steps(program: Sequence[Prepared], steps: range, blas: Blas) -> None:
    """Run a program for each of the steps, on CuPy's current stream."""
    if not enabled or len(steps) < _LEAST_STEPS or cupy.cuda.get_current_stream().is_capturing():
        _run(program, steps)
        return
    device, known = cupy.cuda.runtime.getDevice(), _graphs.found
    kind = device, *(one.key for one in program)
    for start in range(0, len(steps), _MOST_STEPS):
        part = steps[start : start + _MOST_STEPS]
        key = part, kind
        if key not in known:  # kernels are loaded now, which a capture cannot do
            known[key] = None
            _run(program, part)
        else:
            if known[key] is None:
                known[key] = _captured(program, part, blas, device)
            known.move_to_end(key)
            known[key][0].launch()
        while len(known) > _KEPT:
            known.popitem(last=False)


def _run(program: Sequence[Prepared], steps: range) -> None:
    runs = [one.run for one in program]
    for step in steps:
        for run in runs:
            run(step)


def _captured(program: Sequence[Prepared], steps: range, blas: Blas, device: int) -> tuple[Any, Any]:
    """Return the graph of these steps, and the memory that it needs."""
    current = cupy.cuda.get_current_stream()
    if device not in _graphs.streams:  # the default stream cannot be captured
        _graphs.streams[device] = cupy.cuda.Stream(non_blocking=True)
    stream, workspace = _graphs.streams[device], cupy.empty((_WORKSPACE_BYTES,), np.uint8)
    try:
        with stream:
            blas.use(stream.ptr, workspace)
            stream.begin_capture()
            try:
                _run(program, steps)
            finally:
                graph = stream.end_capture()
    finally:
        blas.use(current.ptr)
    return graph, workspace
