"""One network on NumPy arrays: forward, a loop over groups of layers that calls a kernel for each, and backward.

Arguments are checked by `engine`; the gradients are in `backward`, inference in `infer`, what runs between checkpoints
in `checkpoints`.
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
from rnnkit.cpu import backward as whole
from rnnkit.cpu import checkpoints
from rnnkit.cpu import infer as inference
from rnnkit.cpu.infer import Inference
from rnnkit.cpu.layer import flat, groups_of, layers_of, ready_to_pack
from rnnkit.cpu.planner import Planner, reads_in_place
from rnnkit.cpu.rows import StepRows, rows_of
from rnnkit.cpu.run import Calls, final_states, given, ready_to_clear, ready_to_train, train_groups
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.kernels.machine import team

__all__ = ["Inference", "Memory", "backward", "forward", "infer", "prepare"]

prepare = Inference  # which packs, and so copies, the weights


class Ready(NamedTuple):
    """What forward has laid out."""

    packing: Sequence[Callable[[np.ndarray], None]]  # on the flat weights; of those that are read in place none
    arrays: dict[str, Any]  # of the workspace
    groups: Sequence[Calls]
    clearing: Sequence[Callable[[], None]]


def laid_out(workspace: Workspace, steps: StepRows, threads: int) -> Ready:
    """Take the workspace's arrays from its memory, and lay out the kernel calls that fill them."""
    desc, arena = workspace.desc, workspace.memory.arena
    planner = Planner(steps, desc.np_dtype.itemsize, threads, reads_in_place(desc, steps))
    layers = layers_of(desc, None, planner.in_place)
    packed = arena.take("packed", (int(layers[-1].offsets[-1]),), desc.np_dtype)
    packing = [] if planner.in_place else ready_to_pack(packed, layers)
    workspace.allocate(workspace_layout(desc, steps.seq_len, steps.batch_size, resets=steps.with_resets))
    groups = groups_of(desc, desc.dropout > 0, None, planner.in_place)
    padded = (array for name, array in workspace.arrays.items() if name.startswith(("hidden", "cell")))
    running = ready_to_train(groups, planner, workspace, packed)
    return Ready(packing, workspace.arrays, running, ready_to_clear(padded, steps, of_states=True))


def forward(
    desc: RNNDescriptor, w: np.ndarray, x: np.ndarray, hx: Any, cx: Any, workspace: Workspace
) -> tuple[Any, Any, Any]:
    """Run the network on x and fill the workspace; returns y, a view of it unless it has checkpoints, hy and cy."""
    if workspace.checkpoint_steps is not None:
        return checkpoints.forward(desc, w, x, hx, cx, workspace)
    arena = workspace.memory.arena
    steps = rows_of(workspace.steps, arena, hx, cx)
    threads = team.wanted_size()
    make, key = partial(laid_out, workspace, steps, threads), (desc, steps, threads)
    ready = arena.cached("forward", key, make) if steps.is_kept else make()
    workspace.arrays, (hy, cy) = ready.arrays, final_states(desc, steps.batch_size)
    own = given(x, flat(w), hx, cx, hy, cy)
    for pack in ready.packing:
        pack(own.w)
    train_groups(ready.groups, own, workspace, steps)
    for clear in ready.clearing:
        clear()
    steps.reset_to = None, None  # the caller's
    y = steps.after(workspace.arrays[f"hidden_l{desc.num_layers - 1}"])
    y.flags.writeable = False  # backward reads it
    return y, hy, cy


def infer(desc: RNNDescriptor, w: np.ndarray, x: np.ndarray, hx: Any, cx: Any, options: CallOptions) -> tuple:
    """Run the network with these weights once; returns y, hy and cy.

    A small call that is too long for the weights to be read in place runs as a training forward, if there was one of
    its size before: its arrays and its kernel calls are there already, which takes 50 us less, and 100 with two
    directions.
    """
    steps = options.steps
    found = inference.run_brief(desc, w, x, hx, cx, steps)
    if found is not None:
        return found
    size = desc.evaluating, steps.seq_len, steps.batch_size
    if steps.resets is not None or not _is_small(*size) or not _is_repeat(size):
        return Inference(desc, w).infer(x, hx, cx, options)
    idle = idle_memories(Memory, *size)
    memory = popped(idle) or Memory()
    workspace = Workspace(size[0], {"x": x, "hx": hx, "cx": cx}, options, memory)
    workspace.lease = Lease(memory, idle)
    y, hy, cy = forward(size[0], w, x, hx, cx, workspace)
    return y.copy(), hy, cy


_sizes: deque[tuple[RNNDescriptor, int, int]] = deque(maxlen=4)  # of the last calls


def _is_repeat(size: tuple[RNNDescriptor, int, int]) -> bool:
    """Whether one of the last calls had this size."""
    if size in tuple(_sizes):  # another thread may add one
        return True
    _sizes.append(size)
    return False


@lru_cache(256)
def _is_small(desc: RNNDescriptor, seq_len: int, batch_size: int) -> bool:
    return workspace_nbytes(desc, seq_len, batch_size) <= SMALL_BYTES


def backward(desc: RNNDescriptor, w: np.ndarray, workspace: Workspace, dy: Any, dhy: Any, dcy: Any, dw: Any) -> tuple:
    """Gradients of what `forward` left in the workspace: dx, dhx, dcx and dw, which is added to where it is given."""
    chosen, call = whole if workspace.checkpoint_steps is None else checkpoints, new_call()
    try:
        return chosen.backward(desc, w, workspace, workspace.memory.borrow(call), dy, dhy, dcy, dw)
    finally:
        workspace.memory.borrowers.discard(call)
