"""One network on NumPy arrays: forward, a loop over groups of layers that calls a kernel for each group; backward.

`network.engine` checks the arguments. The gradients are in `backward`, inference in `infer`, gradient checkpointing in
`checkpoints`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.forking import new_call
from rnnkit.call.memory import SMALL_BYTES, Lease, Memory, idle_memories, popped
from rnnkit.call.options import CallOptions
from rnnkit.call.workspace import Workspace, workspace_layout, workspace_nbytes
from rnnkit.cpu import backward as backward_module
from rnnkit.cpu import checkpoints
from rnnkit.cpu import infer as inference
from rnnkit.cpu.infer import PackedNetwork
from rnnkit.cpu.layer import flat, groups_of, layers_of, prepare_packing
from rnnkit.cpu.rows import StepRows, rows_of
from rnnkit.cpu.run import PreparedGroup, final_states, forward_arrays, prepare_clearing, prepare_training, train_groups
from rnnkit.cpu.scheduler import Scheduler, reads_in_place
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit_kernels.machine import thread_pool

__all__ = ["PackedNetwork", "Memory", "backward", "forward", "infer", "prepare"]

prepare = PackedNetwork  # which packs, and so copies, the weights


class Prepared(NamedTuple):
    """The prepared kernel calls of a forward, and its arrays."""

    packing: Sequence[Callable[[np.ndarray], None]]  # pack the flat weights; empty if these are read in place
    arrays: dict[str, Any]  # of the workspace
    groups: Sequence[PreparedGroup]
    clearing: Sequence[Callable[[], None]]


def prepare_forward(workspace: Workspace, steps: StepRows, threads: int, in_place: bool) -> Prepared:
    """Take the workspace's arrays from its memory, and prepare the kernel calls that fill them."""
    desc, arena = workspace.desc, workspace.memory.arena
    scheduler = Scheduler(steps, desc.np_dtype.itemsize, threads, in_place)
    layers = layers_of(desc, None, in_place)
    packed = arena.take("biases" if in_place else "packed", (int(layers[-1].offsets[-1]),), desc.np_dtype)
    packing = [] if in_place else prepare_packing(packed, layers)
    workspace.allocate(workspace_layout(desc, steps.capacity, steps.batch_size, resets=steps.with_resets))
    groups = groups_of(desc, desc.dropout > 0, None, in_place)
    padded = (array for name, array in workspace.arrays.items() if name.startswith(("hidden", "cell")))
    running = prepare_training(groups, scheduler, workspace, packed)
    return Prepared(packing, workspace.arrays, running, prepare_clearing(padded, steps, of_states=True))


def forward(
    desc: RNNDescriptor, w: np.ndarray, x: np.ndarray, hx: Any, cx: Any, workspace: Workspace
) -> tuple[Any, Any, Any]:
    """Run the network on x and fill the workspace; returns y, a view of it unless it has checkpoints, hy and cy."""
    if workspace.checkpoint_steps is not None:
        return checkpoints.forward(desc, w, x, hx, cx, workspace)
    arena = workspace.memory.arena
    steps = rows_of(workspace.steps, arena, hx, cx)
    threads = thread_pool.wanted_size()
    in_place = reads_in_place(desc, steps)
    make, key = partial(prepare_forward, workspace, steps, threads, in_place), (desc, steps, threads, in_place)
    prepared = arena.cached("forward", key, make) if steps.is_kept else make()
    workspace.arrays, (hy, cy) = prepared.arrays, final_states(desc, steps.batch_size)
    arrays = forward_arrays(x, flat(w), hx, cx, hy, cy)
    for pack in prepared.packing:
        pack(arrays.w)
    train_groups(prepared.groups, arrays, workspace, steps)
    for clear in prepared.clearing:
        clear()
    steps.reset_to = None, None  # do not keep the caller's hx and cx
    y = steps.after(workspace.arrays[f"hidden_l{desc.num_layers - 1}"])
    y.flags.writeable = False  # backward reads it
    return y, hy, cy


def infer(desc: RNNDescriptor, w: np.ndarray, x: np.ndarray, hx: Any, cx: Any, options: CallOptions) -> tuple:
    """Run the network with these weights once; returns y, hy and cy.

    A small call that needs packed weights runs as a training forward if a recent call had its size: its arrays and
    kernel calls are prepared already, which saves 50 us, or 100 us with two directions.
    """
    steps = options.steps
    result = inference.run_stepwise(desc, w, x, hx, cx, steps)
    if result is not None:
        return result
    key = desc.evaluating, steps.seq_len, steps.batch_size
    if steps.resets is not None or not _is_small(*key) or not _is_repeat(key):
        return PackedNetwork(desc, w).infer(x, hx, cx, options)
    idle = idle_memories(Memory, key[0], steps.batch_size)
    memory = popped(idle) or Memory()
    workspace = Workspace(key[0], {"x": x, "hx": hx, "cx": cx}, options, memory)
    workspace.lease = Lease(memory, idle)
    y, hy, cy = forward(key[0], w, x, hx, cx, workspace)
    return y.copy(), hy, cy


_recent: deque[tuple[RNNDescriptor, int, int]] = deque(maxlen=4)  # keys of the last calls


def _is_repeat(key: tuple[RNNDescriptor, int, int]) -> bool:
    """Return whether one of the last calls had this key."""
    if key in tuple(_recent):  # another thread may add one
        return True
    _recent.append(key)
    return False


@lru_cache(256)
def _is_small(desc: RNNDescriptor, seq_len: int, batch_size: int) -> bool:
    return workspace_nbytes(desc, seq_len, batch_size) <= SMALL_BYTES


def backward(desc: RNNDescriptor, w: np.ndarray, workspace: Workspace, dy: Any, dhy: Any, dcy: Any, dw: Any) -> tuple:
    """Compute dx, dhx, dcx and dw from the workspace of a forward. If dw is given, the gradient is added to it."""
    module, call = backward_module if workspace.checkpoint_steps is None else checkpoints, new_call()
    try:
        return module.backward(desc, w, workspace, workspace.memory.borrow(call), dy, dhy, dcy, dw)
    finally:
        workspace.memory.borrowers.discard(call)
