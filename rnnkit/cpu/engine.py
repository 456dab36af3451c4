"""One network on NumPy arrays: forward, a loop over groups of layers that calls a kernel for each group; backward.

`network.engine` checks the arguments. The gradients are in `backward`, inference in `infer`, gradient checkpointing in
`checkpoints`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.forking import new_call
from rnnkit.call.memory import Memory
from rnnkit.call.options import CallOptions
from rnnkit.call.pool import IDLE
from rnnkit.call.steps import Steps
from rnnkit.call.workspace import Workspace, workspace_layout
from rnnkit.cpu import backward as backward_module
from rnnkit.cpu import checkpoints, masked
from rnnkit.cpu import infer as inference
from rnnkit.cpu.infer import PackedNetwork
from rnnkit.cpu.layer import deepest_of, flat, groups_of, layers_of, prepare_packing, with_scratch
from rnnkit.cpu.reduced import warn_of_training
from rnnkit.cpu.route import reads_in_place, route
from rnnkit.cpu.rows import StepRows, rows_of
from rnnkit.cpu.run import PreparedGroup, final_states, forward_arrays, prepare_clearing, prepare_training, train_groups
from rnnkit.cpu.scheduler import Scheduler
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit_kernels.machine import thread_pool

__all__ = ["PackedNetwork", "Memory", "backward", "forward", "infer", "prepare"]


def prepare(desc: RNNDescriptor, w: np.ndarray, precision: str | None = None) -> PackedNetwork:
    """Return the network with its weights packed, and so copied."""
    return PackedNetwork(desc, w, precision)


class Prepared(NamedTuple):
    """The prepared kernel calls of a forward, and its arrays."""

    packing: Sequence[Callable[[np.ndarray], None]]  # pack the flat weights; empty if these are read in place
    arrays: dict[str, Any]  # of the workspace
    groups: Sequence[PreparedGroup]
    clearing: Sequence[Callable[[int], None]]


def prepare_forward(workspace: Workspace, steps: StepRows, threads: int, in_place: bool) -> Prepared:
    """Take the workspace's arrays from its memory, and prepare the kernel calls that fill them."""
    desc, arena, precision = workspace.desc, workspace.memory.arena, workspace.options.precision
    scheduler = Scheduler(steps, desc.np_dtype.itemsize, threads, in_place)
    layers, rows = layers_of(desc, precision, in_place), steps.capacity * steps.batch_size
    packed = arena.take("biases" if in_place else "packed", (int(layers[-1].offsets[-1]),), desc.np_dtype)
    packed = with_scratch(packed, precision, deepest_of(layers), rows, threads, arena.take)
    packing = [] if in_place else prepare_packing(packed, layers)
    workspace.allocate(workspace_layout(desc, steps.capacity, steps.batch_size, resets=steps.with_resets))
    groups = groups_of(desc, desc.dropout > 0, precision, in_place)
    padded = (array for name, array in workspace.arrays.items() if name.startswith(("hidden", "cell")))
    running = prepare_training(groups, scheduler, workspace, packed)
    return Prepared(packing, workspace.arrays, running, prepare_clearing(padded, steps, of_states=True))


def forward(
    desc: RNNDescriptor, w: np.ndarray, x: np.ndarray, hx: Any, cx: Any, workspace: Workspace
) -> tuple[Any, Any, Any]:
    """Run the network on x and fill the workspace; returns y, a view of it unless it has checkpoints or a mask, hy and
    cy."""
    mask, run = workspace.options.mask, _forward if workspace.checkpoint_steps is None else checkpoints.forward
    if workspace.options.precision is not None:
        warn_of_training("forward")
    if mask is not None:
        x = workspace.x = masked.taken(desc, mask, x, workspace.memory.arena.take)
    y, hy, cy = run(desc, w, x, hx, cx, workspace)
    return (y if mask is None else masked.outputs_of_all(desc, mask, y, hx)), hy, cy


def _forward(
    desc: RNNDescriptor, w: np.ndarray, x: np.ndarray, hx: Any, cx: Any, workspace: Workspace
) -> tuple[Any, Any, Any]:
    """Run a network without checkpoints on the steps that run."""
    arena, precision = workspace.memory.arena, workspace.options.precision
    own_route = route(desc, workspace.steps.seq_len, workspace.steps.batch_size, precision)
    steps = rows_of(workspace.steps, arena, own_route.limit, hx, cx)
    threads = thread_pool.wanted_size()
    arguments = workspace, steps, threads, own_route.in_place
    key = desc, precision, steps, threads, own_route.in_place, own_route.is_short
    prepared = (
        arena.cached("forward", key, prepare_forward, *arguments) if steps.is_kept else prepare_forward(*arguments)
    )
    workspace.arrays, (hy, cy) = prepared.arrays, final_states(desc, steps.batch_size)
    arrays = forward_arrays(x, flat(w), hx, cx, hy, cy)
    for pack in prepared.packing:
        pack(arrays.w)
    train_groups(prepared.groups, arrays, workspace, steps)
    for clear in prepared.clearing:
        clear(0)
    steps.reset_to = None, None  # do not keep the caller's hx and cx
    return steps.after(workspace.arrays[f"hidden_l{desc.num_layers - 1}"]), hy, cy


def infer(desc: RNNDescriptor, w: np.ndarray, x: np.ndarray, hx: Any, cx: Any, options: CallOptions) -> tuple:
    """Run the network with these weights once; returns y, hy and cy."""
    precision = options.precision
    if precision is not None:
        warn_of_training("infer")
    elif (result := inference.run_stepwise(desc, w, x, hx, cx, options)) is not None:
        return result
    flat_network, w = FlatNetwork(desc, options.steps, precision), flat(w)
    network = flat_network.take(w)
    results = network.infer(x, hx, cx, options, w, may_be_stepwise=precision is not None)
    flat_network.shelf.give_back(network)  # not after an interrupt, which may have left it in any state
    return results


class FlatNetwork:
    """The packed networks of calls by layer, to which each call gives flat weights."""

    def __init__(self, desc: RNNDescriptor, steps: Steps, precision: str | None = None) -> None:
        self._desc, self._precision = desc, precision
        self._in_place = precision is None and reads_in_place(desc, steps.seq_len, steps.batch_size)
        self.shelf = IDLE.shelf(PackedNetwork, desc, self._in_place, precision)

    def take(self, w: np.ndarray) -> PackedNetwork:
        """Return an idle network with these weights, flat, or a new one."""
        network = self.shelf.take()
        if network is None:
            return PackedNetwork(self._desc, w, self._precision, self._in_place)
        if not self._in_place:
            network.repack(w)
        return network


def backward(
    desc: RNNDescriptor,
    w: np.ndarray,
    workspace: Workspace,
    dy: Any,
    dhy: Any,
    dcy: Any,
    dw: Any,
    wants_dx: bool = True,
) -> tuple[Any, Any, Any, Any]:
    """Compute dx, dhx, dcx and dw from the workspace of a forward. If dw is given, the gradient is added to it. dx may
    be left empty if it is not wanted."""
    call, run = new_call(), _backward if workspace.options.mask is None else _masked_backward
    try:
        return run(desc, w, workspace, workspace.memory.borrow(call), dy, dhy, dcy, dw, wants_dx)
    finally:
        workspace.memory.borrowers.discard(call)


def _backward(
    desc: RNNDescriptor,
    w: np.ndarray,
    workspace: Workspace,
    arena: Arena,
    dy: Any,
    dhy: Any,
    dcy: Any,
    dw: Any,
    wants_dx: bool,
) -> tuple[Any, Any, Any, Any]:
    """Run backward over the steps that ran, with scratch from the arena."""
    if workspace.checkpoint_steps is not None:
        return checkpoints.backward(desc, w, workspace, arena, dy, dhy, dcy, dw)
    return backward_module.backward(desc, w, workspace, arena, dy, dhy, dcy, dw, wants_dx)


def _masked_backward(
    desc: RNNDescriptor,
    w: np.ndarray,
    workspace: Workspace,
    arena: Arena,
    dy: Any,
    dhy: Any,
    dcy: Any,
    dw: Any,
    wants_dx: bool,
) -> tuple[Any, Any, Any, Any]:
    """The same of a batch with a mask: dy and dx are of all steps."""
    mask, of_initial = workspace.options.mask, None
    if dy is not None:
        dy, of_initial = masked.output_gradient(desc, mask, dy, arena.take)
    dx, dhx, dcx, dw = _backward(desc, w, workspace, arena, dy, dhy, dcy, dw, wants_dx)
    if of_initial is not None:
        dhx[-desc.num_directions :] += of_initial
    return masked.put_back(desc, mask, dx) if wants_dx else dx, dhx, dcx, dw
