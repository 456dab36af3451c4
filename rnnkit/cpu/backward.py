"""Backward of one network on NumPy arrays, from the last layer to the first."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.steps import Steps, row_numbers
from rnnkit.call.workspace import Workspace
from rnnkit.cpu.layer import (
    DESCRIPTORS,
    Layer,
    contiguous,
    filled,
    groups_of,
    is_stack,
    layers_of,
    with_scratch,
)
from rnnkit.cpu.route import route
from rnnkit.cpu.rows import Part, StepRows, rows_of
from rnnkit.cpu.run import Run, drop, training_runs
from rnnkit.cpu.scheduler import Scheduler
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.states import add_state_gradients
from rnnkit.descriptor.weights import start_of_initial_states
from rnnkit_kernels import loop_gradient, weight_gradient
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.formats import OF_GRADIENTS, ROWS_AT_ONCE
from rnnkit_kernels.machine.gemm import depth_block
from rnnkit_kernels.operands import BackwardArrays, Gradients, LayerPassBackward


def backward(
    desc: RNNDescriptor,
    w: np.ndarray,
    workspace: Workspace,
    arena: Arena,
    dy: Any,
    dhy: Any,
    dcy: Any,
    dw: Any,
    wants_dx: bool,
) -> tuple:
    """Compute dx (empty unless wanted), dhx, dcx and dw, with scratch from the arena. If dw is given, the gradient is
    added to it."""
    given, precision = workspace.steps, workspace.options.precision
    own_route = route(desc, given.seq_len, given.batch_size, precision)
    steps = rows_of(given, arena, own_route.limit)
    is_new = dw is None and not given.listed and given.seq_len * given.batch_size > 0
    dw, threads = np.empty(w.shape, w.dtype) if is_new else dw, thread_pool.wanted_size()
    result = begin(desc, w, steps, dhy, dcy, dw, wants_dx, arena if workspace.options.mask is not None else None)
    arguments = desc, workspace.arrays, steps, threads, own_route.in_place_back, arena, precision
    key = desc, precision, steps, threads, own_route.in_place_back, own_route.is_short
    gradient = (
        arena.cached("backward", key, prepare_backward, *arguments) if steps.is_kept else prepare_backward(*arguments)
    )
    _, dhx, dcx, dw = result
    of_resets = (None, None) if given.resets is None else reset_gradients(given, dhx, dcx)
    if is_new and desc.learned_initial_state:  # the kernel writes what stands before them
        dw[start_of_initial_states(desc) :] = 0
    gradient.run(backward_arrays(w, workspace.x, dy, *result, of_resets, is_new), result[0])
    if given.resets is not None:
        finish_states(desc, given, dhx, dcx, dw, of_resets)
    return result


def prepare_backward(
    desc: RNNDescriptor,
    arrays: dict[str, Any],
    steps: StepRows,
    threads: int,
    in_place: bool,
    arena: Arena,
    precision: str | None = None,
) -> PreparedBackward:
    """Prepare the backward of a network from the arrays of its workspace, with scratch from the arena."""
    scheduler = Scheduler(steps, desc.np_dtype.itemsize, threads, in_place)
    return PreparedBackward(desc, arrays, scheduler, arena, groups_of(desc, desc.dropout > 0, precision))


def backward_arrays(
    w: np.ndarray,
    x: np.ndarray,
    dy: Any,
    dx: np.ndarray,
    dhx: np.ndarray,
    dcx: Any,
    dw: np.ndarray,
    of_resets: tuple[Any, Any] = (None, None),
    dw_is_new: bool = False,
    wants_dhx: bool = True,
) -> BackwardArrays:
    """Return the arrays of a call as the kernel takes them; dy, dcx and `of_resets` may be None."""
    w, x, of_h, of_c = contiguous(w), contiguous(x), *of_resets
    dy, dcx = 0 if dy is None else contiguous(dy), 0 if dcx is None else contiguous(dcx)
    of_h, of_c = 0 if of_h is None else contiguous(of_h), 0 if of_c is None else contiguous(of_c)
    return BackwardArrays(w, x, dy, dx, dhx, dcx, dw, of_h, of_c, dw_is_new, wants_dhx, True)


def reset_gradients(steps: Steps, dhx: np.ndarray, dcx: Any) -> tuple[Any, Any]:
    """Return zeros to which resets to other states add their gradients; None if states are reset to zeros or never."""
    if steps.resets is None or steps.resets.is_to_zeros:
        return None, None
    return np.zeros_like(dhx), None if dcx is None else np.zeros_like(dcx)


def finish_states(
    desc: RNNDescriptor, steps: Steps, dhx: np.ndarray, dcx: Any, dw: np.ndarray, of_resets: tuple[Any, Any]
) -> None:
    """Finish dhx and dcx of a batch with resets, which end as the gradients of hx and cx; dw gets that of states which
    belong to the network."""
    if steps.resets is None:
        return
    anew = steps.resets.marks[0, 0] > 0  # their hx and cx were never read
    for carried, other in zip((dhx, dcx), of_resets, strict=True):
        if carried is None:
            continue
        forward = carried[:: desc.num_directions]
        if steps.resets.from_hx:
            carried += other
        else:
            if other is not None:
                other[:: desc.num_directions, anew] += forward[:, anew]
            forward[:, anew] = 0
    if not steps.resets.from_hx and of_resets[0] is not None:
        add_state_gradients(desc, dw, *of_resets)


def begin(
    desc: RNNDescriptor,
    w: np.ndarray,
    steps: Steps,
    dhy: Any,
    dcy: Any,
    dw: Any,
    wants_dx: bool,
    scratch: Arena | None = None,
) -> tuple:
    """Return dx (empty if not wanted), dhx, dcx and dw; the last three start as dhy, dcy and the given dw. dx is taken
    from `scratch`, if given; its padding is then undefined."""
    batch = steps.batch_size
    dw = np.zeros(w.shape, w.dtype) if dw is None else dw
    dhx = _start((desc.num_pseudo_layers, batch, desc.output_size), w.dtype, dhy)
    dcx = _start((desc.num_pseudo_layers, batch, desc.states_size), w.dtype, dcy) if desc.has_cell_state else None
    shape = (steps.seq_len, batch, desc.row_size) if wants_dx else (0,)
    if scratch is not None and wants_dx:
        dx = scratch.take("masked_dx", shape, w.dtype)
    else:
        dx = (np.zeros if steps.padded else np.empty)(shape, w.dtype)
    if desc.inputs_size and wants_dx:
        dx[:, :, desc.input_size :] = 0  # `PreparedBackward.run` adds to them
    return dx, dhx, dcx, dw


def _start(shape: tuple[int, ...], dtype: np.dtype, given: Any) -> np.ndarray:
    """Return a new array for the gradient of a state, which starts as `given`."""
    return np.zeros(shape, dtype) if given is None else np.array(given, order="C").reshape(shape)


class CheckpointedLayers(NamedTuple):
    """Layers from `lowest` on that run backward segment by segment. Their weights are packed in the first segment that
    runs, the last of the sequence, and stay packed for the others."""

    lowest: int
    packs: bool  # whether this segment packs


class BackwardGroup(NamedTuple):
    """The kernel calls of a group of pseudo-layers in backward, as `run.PreparedGroup` in forward."""

    layers: tuple[Layer, ...]  # in the order of the passes; in a stack the upper layer is first
    calls: list[Callable[[BackwardArrays], None]]  # the last steps first
    dx: Any  # of its input (T, N, I); None means the call's


class PreparedBackward:
    """The prepared backward of a network, or of a segment of some of its layers: all that the kernel calls need,
    except for the `BackwardArrays` of a call.

    Attributes
    ----------
    dx : ndarray (T, N, I) or None
        The gradient of the input, with two directions that of the reverse one; None means the call's.
    groups : list of BackwardGroup
        From the highest to the lowest.
    dgates : ndarray (rows of a chunk, columns)
        The gates' gradients of the pseudo-layer that was prepared last; `dgates_address` is their address.
    """

    def __init__(
        self,
        desc: RNNDescriptor,
        arrays: dict[str, Any],
        scheduler: Scheduler,
        arena: Arena,
        groups: tuple[tuple[Layer, ...], ...],
        checkpointed: CheckpointedLayers | None = None,
    ) -> None:
        self._desc, self._arrays, self._steps, self._planner = desc, arrays, scheduler.steps, scheduler
        self._checkpointed, self._lowest, self._packs = checkpointed, *(checkpointed or (0, True))
        self._dtype, self.groups, self._of_inputs, dy = desc.np_dtype, [], [], None
        for group in reversed(groups):
            self.groups.append(self._prepare(group, dy, arena))
            dy = self.groups[-1].dx

    def _prepare(self, group: tuple[Layer, ...], dy: np.ndarray | None, arena: Arena) -> BackwardGroup:
        """Prepare a group: dy is the buffer of its output gradient, scratch is from the arena."""
        steps, layer, backs, calls = self._steps, group[0], [], []
        schedule = self._planner.backward(group)
        spans = self._planner.calls(group, schedule)
        runs = training_runs(self._desc, self._arrays, steps, group)
        for number, run in enumerate(reversed(runs) if is_stack(group) else runs):
            # Passes that do not run at once share a buffer, unless packed weights must last for several calls.
            place = number if schedule.split or len(spans) > 1 else 0
            buffer = run.layer.layer - self._lowest if self._checkpointed else place
            backs.append(self._back(run, place, buffer, dy, self._planner.chunk_rows(schedule), arena))
            if is_stack(group):
                dy = backs[-1].dx
        zeros, numbers = np.zeros(max(layer.sizes), self._dtype), row_numbers(layer.gradient_columns)
        like = no_arrays(self._dtype)
        for start, stop in spans:  # counted from the end
            parts = [back.run.part(steps, steps.capacity - stop, steps.capacity - start) for back in backs]
            work = sum(2 * back.run.layer.work for back in backs) * (stop - start) * steps.batch_size
            passes = [back.layer_pass(part) for back, part in zip(backs, parts, strict=True)]
            ends = self._packs and not calls, stop == steps.capacity
            arguments = layer.cell, filled(passes, layer), schedule, *ends, zeros, numbers
            calls.append(thread_pool.bound(loop_gradient.backward, work, like, *arguments, code_cache=layer.code_cache))
        if len(backs) == 2 and not is_stack(group):
            calls.extend(prepare_adding(backs[0].dx, backs[1].dx, steps, layer.code_cache))
        self.dx = backs[-1].dx
        return BackwardGroup(tuple(back.run.layer for back in backs), calls, backs[-1 if is_stack(group) else 0].dx)

    def run(self, arrays: BackwardArrays, dx_of_network: np.ndarray) -> None:
        """Run all groups, from the highest to the lowest. The gradients of side inputs are added to the last columns of
        the network's dx (T, N, ...), unless it is empty."""
        for gradient in self._of_inputs:
            gradient[...] = 0  # also the padding, and the extra columns of the reverse direction's dx
        for group in self.groups:
            for call in group.calls:
                call(arrays)
            lowest = group.layers[-1].layer
            if lowest > self._lowest:
                self.drop(group.dx, lowest)
        for gradient in self._of_inputs if dx_of_network.size > 0 else ():
            dx_of_network[:, :, self._desc.input_size :] += gradient[: len(dx_of_network)]

    def drop(self, dx: np.ndarray, layer: int) -> None:
        """Apply the dropout mask to the gradient of a layer's input, if the network has dropout."""
        if self._desc.dropout > 0:
            drop(dx, dx, self._arrays[f"mask_l{layer}"], self._steps, self._desc)

    def _input_gradient(self, layer: Layer, arena: Arena) -> np.ndarray | None:
        """Return the dx buffer of a pseudo-layer, distinct from those of the layers below and above."""
        if layer.direction == 0 and layer.layer == self._lowest:
            return None
        name = "dinput_reverse" if layer.direction == 1 else f"dinput_{layer.layer % 3}"
        of_inputs = layer.layer == 0 and layer.inputs_size > 0
        name += "_with_inputs" if of_inputs else ""  # separate memory, since no other kernel writes these columns
        dx = arena.take(name, (self._steps.capacity, self._steps.batch_size, layer.input_size), self._dtype)
        if of_inputs:
            self._of_inputs.append(dx[:, :, -layer.inputs_size :])
        return dx

    def _back(self, run: Run, number: int, buffer: int, dy: np.ndarray | None, rows: int, arena: Arena) -> BackwardRun:
        """Build the `BackwardRun` of a pseudo-layer: `number` selects its scratch, `buffer` that of its packed weights,
        and `rows` is the number of rows of a chunk of gates."""
        layer, dtype = run.layer, self._dtype
        threads = self._planner.threads
        offsets = _offsets(self._desc, layer.index, threads, rows, self._planner.in_place, layer.precision)
        dgates = arena.take(f"dgates_{number}", (rows, layer.gradient_columns), dtype)
        self.dgates, self.dgates_address = dgates, dgates.ctypes.data
        dunits = arena.take(f"dunits_{number}", (self._steps.batch_size, layer.sizes.hidden), dtype)
        # Few steps read the weights in place, many read packed ones. Each way has memory of its own: one array that
        # changes its size would drop all prepared calls.
        name = f"buffer_{buffer}_in_place" if self._planner.in_place else f"buffer_{buffer}"
        work, dx = arena.take(name, (int(offsets[-1]),), dtype), self._input_gradient(layer, arena)
        deepest = max(layer.columns, min(rows, depth_block(dtype.itemsize)))  # a step's gates, or a column of dgates
        work = with_scratch(work, OF_GRADIENTS[layer.precision], deepest, ROWS_AT_ONCE, threads, arena.take)
        dinputs = None
        if layer.inputs_size:
            shape = self._steps.capacity, self._steps.batch_size, layer.inputs_size
            dinputs = arena.take(f"dinputs_{layer.index}", shape, dtype)
            self._of_inputs.append(dinputs)
        dvectors, vectors = None, len(layer.cell.declaration.vectors) * layer.sizes.hidden
        if vectors:
            dvectors = arena.take(f"dvectors_{number}", (self._steps.batch_size, vectors), dtype)
        return BackwardRun(run, dy, dx, dgates, dunits, work, offsets, dinputs, dvectors)


class BackwardRun(NamedTuple):
    """A pseudo-layer with the gradients that flow through it, and its scratch."""

    run: Run
    dy: np.ndarray | None  # of its output, (T, N, ...); None means the call's
    dx: np.ndarray | None  # of its input, (T, N, ...); None means the call's
    gates: np.ndarray  # of a chunk of steps
    units: np.ndarray  # of a step
    buffer: Any  # scratch, and packed weights
    offsets: np.ndarray  # of the parts of the buffer
    inputs: np.ndarray | None  # of its side inputs
    vectors: np.ndarray | None  # of its vectors, for each sequence

    def layer_pass(self, part: Part) -> LayerPassBackward:
        """Return the operands of a kernel for some of the steps."""
        layer, dtype, cells = self.run.layer, self.run.hidden.dtype, self.run.cells.shape[-1]
        batch = part.batch._replace(shift=layer.index * len(self.units))
        gradients = Gradients(
            y=part.rows.or_call_data(self.dy, self.run.hidden.shape[-1], dtype, layer.outputs.start),
            x=part.rows.or_call_data(self.dx, layer.input_size, dtype), gates=part.listed.of(self.gates),
            units=part.batch.of(self.units), hidden=batch.or_call_data(None, layer.sizes.output, dtype),
            states=batch.or_call_data(None, cells, dtype), reset_marks=part.reset_marks[layer.direction],
            reset_hidden=batch.or_call_data(None, layer.sizes.output, dtype),
            reset_states=batch.or_call_data(None, cells, dtype),
            inputs=None if self.inputs is None else part.rows.of(self.inputs),
            vectors=None if self.vectors is None else part.batch.of(self.vectors),
        )  # fmt: skip
        forward = self.run.layer_pass(part, keeps_gates=True)
        return LayerPassBackward(forward, gradients, self.buffer, self.offsets)


def no_arrays(dtype: np.dtype) -> BackwardArrays:
    """Return the empty arrays of a call, of this dtype."""
    return BackwardArrays(*[np.empty(0, dtype)] * (len(BackwardArrays._fields) - 3), False, True, True)


def prepare_adding(
    target: np.ndarray | None, addend: np.ndarray, steps: StepRows, code_cache: dict[Any, Any] | None = None
) -> list[Callable[[BackwardArrays], None]]:
    """Prepare the kernel calls that add the valid rows of one array (T, N, ...) to another: for None to the call's
    dx."""
    calls, width, like = [], addend.shape[-1], no_arrays(addend.dtype)
    for part in steps.parts():
        work = (part.stop - part.start) * steps.batch_size * width
        rows = part.rows.or_call_data(target, width, addend.dtype), part.rows.of(addend)
        calls.append(thread_pool.bound(loop_gradient.add_rows, work, like, *rows, part.starts, code_cache=code_cache))
    return calls


@lru_cache(4 * DESCRIPTORS)
def _offsets(
    desc: RNNDescriptor, index: int, threads: int, rows: int, in_place: bool, precision: str | None
) -> np.ndarray:
    layer = layers_of(desc)[index]
    facts = layer.gradient_columns, threads, desc.np_dtype.itemsize, rows, in_place, precision
    return weight_gradient.offsets_of(layer.products, *facts)
