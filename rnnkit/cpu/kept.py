"""A workspace as one array of bytes, for programs that hold on to arrays only.

Its arrays lie as in `PreparedCall.ws_memory`.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from rnnkit.call.arena import side_by_side
from rnnkit.call.memory import Memory
from rnnkit.call.options import CallOptions
from rnnkit.call.pool import Lease
from rnnkit.call.workspace import Workspace, workspace_layout
from rnnkit.cpu.masked import taken
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.states import learned_states


def kept_nbytes(desc: RNNDescriptor, seq_len: int, batch_size: int, resets: bool) -> int:
    """Return the bytes of `store`, for calls with or without resets; a mask that skips steps needs no more."""
    return side_by_side(workspace_layout(desc, seq_len, batch_size, resets=resets))[1]


def _views(desc: RNNDescriptor, options: CallOptions, resets: bool, memory: np.ndarray) -> dict[str, np.ndarray]:
    steps = options.steps
    places, _ = side_by_side(workspace_layout(desc, options.seq_len, steps.batch_size, resets=resets))
    blocks = workspace_layout(desc, steps.seq_len, steps.batch_size, resets=steps.resets is not None)
    return {
        name: memory[places[name]][: prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
        for name, shape, dtype in blocks
    }


def store(workspace: Workspace, resets: bool, memory: np.ndarray) -> None:
    """Copy what backward reads to `memory`, (kept_nbytes,) uint8."""
    for name, view in _views(workspace.desc, workspace.options, resets, memory).items():
        view[...] = workspace.arrays[name][: len(view)]


def restored(
    desc: RNNDescriptor, w: Any, x: Any, hx: Any, cx: Any, options: CallOptions, resets: bool, memory: np.ndarray
) -> Workspace:
    """Return the workspace that `store` wrote, of a call with these arguments, in memory of the pool."""
    batch_size, given = options.steps.batch_size, (hx is not None, cx is not None)
    shelf = Memory.shelf(desc, batch_size)
    own = shelf.take() or Memory()
    hx, cx = options.steps.start_from(learned_states(desc, w, batch_size), hx, cx)
    workspace = Workspace(desc, {"x": x, "hx": hx, "cx": cx}, options, own)
    workspace.lease, workspace.given_states = Lease(own, shelf), given
    if options.mask is not None:
        workspace.x = taken(desc, options.mask, x, own.arena.take)
    for name, view in _views(desc, options, resets, memory).items():
        workspace.arrays[name] = own.arena.take(name, view.shape, view.dtype)  # which prepared calls read
        workspace.arrays[name][...] = view
    return workspace
