"""The gradients of one network on NumPy arrays, from its last layers to the first."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from rnnkit.call.arena import Arena
from rnnkit.call.steps import Steps, row_numbers
from rnnkit.call.workspace import Workspace
from rnnkit.cpu.layer import DESCRIPTORS, Layer, dense, filled, groups_of, is_stack, layers_of
from rnnkit.cpu.planner import Planner, reads_in_place
from rnnkit.cpu.rows import Part, StepRows, rows_of
from rnnkit.cpu.run import Run, drop, kept_runs
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.kernels import loop_gradient, weight_gradient
from rnnkit.kernels.machine import team
from rnnkit.kernels.operands import BackwardArrays, Gradients, LayerPassBackward


def backward(
    desc: RNNDescriptor, w: np.ndarray, workspace: Workspace, arena: Arena, dy: Any, dhy: Any, dcy: Any, dw: Any
) -> tuple:
    """The gradients, computed in the arena: dx, dhx, dcx and dw, which is added to where it is given."""
    steps = rows_of(workspace.steps, arena)
    is_new = dw is None and not steps.listed and steps.seq_len * steps.batch_size > 0
    dw, threads = np.empty(w.shape, w.dtype) if is_new else dw, team.wanted_size()
    result = begin(desc, w, steps, dhy, dcy, dw, workspace.wants_dx)
    make, key = partial(gradient_of, desc, workspace.arrays, steps, threads, arena), (desc, steps, threads)
    gradient = arena.cached("backward", key, make) if steps.is_kept else make()
    dhx, dcx = result[1:3]
    of_resets = reset_gradients(workspace.steps, dhx, dcx)
    gradient.run(arrays_of(w, workspace.x, dy, *result, of_resets, is_new), result[0])
    finish_states(desc, workspace.steps, dhx, dcx, of_resets)
    return result


def gradient_of(desc: RNNDescriptor, arrays: dict[str, Any], steps: StepRows, threads: int, arena: Arena) -> Gradient:
    """The backward of a network, from the arrays of its workspace, ready to run in the arena."""
    planner = Planner(steps, desc.np_dtype.itemsize, threads, reads_in_place(desc, steps, backward=True))
    return Gradient(desc, arrays, planner, arena, groups_of(desc, desc.dropout > 0))


def arrays_of(
    w: np.ndarray, x: np.ndarray, dy: Any, dx: np.ndarray, dhx: np.ndarray, dcx: Any, dw: np.ndarray,
    of_resets: tuple[Any, Any] = (None, None), dw_is_new: bool = False, wants_dhx: bool = True,
) -> BackwardArrays:
    """The arrays of a call, as the kernel takes them; dy, dcx and those of `reset_gradients` may be None."""
    dy, dcx, *of_resets = (0 if one is None else dense(one) for one in (dy, dcx, *of_resets))
    return BackwardArrays(dense(w), dense(x), dy, dx, dhx, dcx, dw, *of_resets, dw_is_new, wants_dhx, True)


def reset_gradients(steps: Steps, dhx: np.ndarray, dcx: Any) -> tuple[Any, Any]:
    """Zeros to which the gradients of hx and cx are added where states are reset to them; else None."""
    if steps.resets is None or not steps.resets.from_hx:
        return None, None
    return np.zeros_like(dhx), None if dcx is None else np.zeros_like(dcx)


def finish_states(desc: RNNDescriptor, steps: Steps, dhx: np.ndarray, dcx: Any, of_resets: tuple[Any, Any]) -> None:
    """Complete the gradients of hx and cx where states are reset."""
    if steps.resets is None:
        return
    for carried, other in zip((dhx, dcx), of_resets, strict=True):
        if other is not None:
            carried += other
        elif carried is not None:  # nobody read those that were reset before the first step
            carried[:: desc.num_directions, steps.resets.marks[0, 0] > 0] = 0


def begin(
    desc: RNNDescriptor, w: np.ndarray, steps: Steps, dhy: Any, dcy: Any, dw: Any, wants_dx: bool = True
) -> tuple:
    """Where the gradients go, the last three with what they begin from: dx (empty if not wanted), dhx, dcx and dw."""
    batch = steps.batch_size
    dw = np.zeros(w.shape, w.dtype) if dw is None else dw
    dhx = _start((desc.num_pseudo_layers, batch, desc.output_size), w.dtype, dhy)
    dcx = _start((desc.num_pseudo_layers, batch, desc.states_size), w.dtype, dcy) if desc.has_cell_state else None
    shape = (steps.seq_len, batch, desc.row_size) if wants_dx else (0,)
    dx = (np.zeros if steps.padded else np.empty)(shape, w.dtype)
    if desc.inputs_size and wants_dx:
        dx[:, :, desc.input_size :] = 0  # `Gradient.run` adds to them
    return dx, dhx, dcx, dw


def _start(shape: tuple[int, ...], dtype: np.dtype, given: Any) -> np.ndarray:
    """A new array that the gradient of a state begins from and is carried back in."""
    return np.zeros(shape, dtype) if given is None else np.array(given, order="C").reshape(shape)


class Chain(NamedTuple):
    """The layers from `lowest` on, whose gradient is taken segment by segment of the sequence: all of them keep their
    packed weights, which the one that is worked on first, the last, packs."""

    lowest: int
    packs: bool


class ReadyGradient(NamedTuple):
    """A group of pseudo-layers that is ready to run backward, as `run.ReadyGroup` is forward."""

    layers: tuple[Layer, ...]  # in the order of the passes: of a stack the upper first
    calls: list[Callable[[BackwardArrays], None]]  # of the kernel, the last steps first
    dx: list[np.ndarray | None]  # of each pass, (T, N, I): None is that of the call


class Gradient:
    """The backward of a network, or of a segment of a chain of its layers, ready to run: all that the kernel calls need
    but the `BackwardArrays` of the call.

    Attributes
    ----------
    dx : ndarray (T, N, I) or None
        The gradient of its input, of two directions the reverse one's; None is that of the call.
    dgates : ndarray (rows of a chunk, columns)
        The gates' gradients of the first pseudo-layer, and its address `dgates_address`.
    """

    def __init__(
        self, desc: RNNDescriptor, arrays: dict[str, Any], planner: Planner, arena: Arena,
        groups: tuple[tuple[Layer, ...], ...], chain: Chain | None = None,
    ) -> None:
        self._desc, self._arrays, self._steps, self._planner = desc, arrays, planner.steps, planner
        self._chain, self._lowest, self._packs = chain, *(chain or (0, True))
        self._dtype, self._groups, self._of_inputs, dy = desc.np_dtype, [], [], None
        for group in reversed(groups):
            self._groups.append(self._ready(group, dy, arena))
            dy = self._groups[-1].dx[-1 if is_stack(group) else 0]
        self.dx = self._groups[-1].dx[-1]

    def _ready(self, group: tuple[Layer, ...], dy: np.ndarray | None, arena: Arena) -> ReadyGradient:
        """Lay out a group: dy is where the gradient of its output will stand. It works in the arena."""
        steps, layer, backs, calls = self._steps, group[0], [], []
        schedule = self._planner.backward(group)
        spans = self._planner.calls(group, schedule)
        runs = kept_runs(self._desc, self._arrays, steps, group)
        for number, run in enumerate(reversed(runs) if is_stack(group) else runs):
            # Passes that do not run at once share a buffer; but packed weights are there for all calls.
            place = number if schedule.split or len(spans) > 1 else 0
            buffer = run.layer.layer - self._lowest if self._chain else place
            backs.append(self._back(run, place, buffer, dy, self._planner.chunk_rows(schedule), arena))
            if is_stack(group):
                dy = backs[-1].dx
        zeros, numbers = np.zeros(max(layer.sizes), self._dtype), row_numbers(layer.gradient_columns)
        like = BackwardArrays(*[np.empty(0, self._dtype)] * (len(BackwardArrays._fields) - 3), False, True, True)
        for start, stop in spans:  # counted from the end
            parts = [back.run.part(steps, steps.seq_len - stop, steps.seq_len - start) for back in backs]
            work = sum(2 * back.run.layer.work for back in backs) * (stop - start) * steps.batch_size
            passes = [back.layer_pass(part) for back, part in zip(backs, parts, strict=True)]
            ends = self._packs and not calls, stop == steps.seq_len
            arguments = layer.cell, filled(passes, layer), schedule, *ends, zeros, numbers
            calls.append(team.bound(loop_gradient.backward, work, like, *arguments, site=layer.site))
        return ReadyGradient(tuple(back.run.layer for back in backs), calls, [back.dx for back in backs])

    def run(self, arrays: BackwardArrays, dx_of_network: np.ndarray) -> None:
        """Through all groups, from the highest to the lowest; the gradients of side inputs are added to the last
        columns of the network's dx (T, N, ...), unless that is empty."""
        for own in self._of_inputs:
            own[...] = 0  # the padding too, and what the reverse direction's dx has beside that of x
        for ready in self._groups:
            for call in ready.calls:
                call(arrays)
            lowest, dx = ready.layers[-1].layer, ready.dx
            # The gradient of the network's input may not be wanted: `arrays.dx` is empty then.
            if len(dx) == 2 and not is_stack(ready.layers) and (lowest > 0 or arrays.dx.size > 0):
                shape = self._steps.seq_len, self._steps.batch_size, ready.layers[-1].input_size
                dx = [arrays.dx.reshape(shape) if one is None else one for one in dx]
                add(*dx, self._steps)
                dx = dx[:1]
            if lowest > self._lowest:
                self.drop(dx[-1], lowest)
        for own in self._of_inputs if dx_of_network.size > 0 else ():
            dx_of_network[:, :, self._desc.input_size :] += own

    def drop(self, dx: np.ndarray, layer: int) -> None:
        """Take the gradient of a layer's input through dropout, where there is any."""
        if self._desc.dropout > 0:
            drop(dx, dx, self._arrays[f"mask_l{layer}"], self._steps, self._desc)

    def _input_gradient(self, layer: Layer, arena: Arena) -> np.ndarray | None:
        """Where a pseudo-layer writes the gradient of its input; the two below and above it write elsewhere."""
        if layer.direction == 0 and layer.layer == self._lowest:
            return None
        name = "dinput_reverse" if layer.direction == 1 else f"dinput_{layer.layer % 3}"
        of_inputs = layer.layer == 0 and layer.inputs_size > 0
        name += "_with_inputs" if of_inputs else ""  # memory of its own: nobody else writes those columns
        dx = arena.take(name, (self._steps.seq_len, self._steps.batch_size, layer.input_size), self._dtype)
        if of_inputs:
            self._of_inputs.append(dx[:, :, -layer.inputs_size :])
        return dx

    def _back(self, run: Run, number: int, buffer: int, dy: np.ndarray | None, rows: int, arena: Arena) -> RunBack:
        """A pseudo-layer with what flows back through it, by the number of what it works in and of the buffer that has
        its packed weights; `rows` are those of the gates of a chunk."""
        layer, dtype = run.layer, self._dtype
        offsets = _offsets(self._desc, layer.index, self._planner.threads, rows, self._planner.in_place)
        dgates = arena.take(f"dgates_{number}", (rows, layer.gradient_columns), dtype)
        self.dgates, self.dgates_address = dgates, dgates.ctypes.data
        dunits = arena.take(f"dunits_{number}", (self._steps.batch_size, layer.sizes.hidden), dtype)
        work, dx = arena.take(f"buffer_{buffer}", (int(offsets[-1]),), dtype), self._input_gradient(layer, arena)
        dinputs = None
        if layer.inputs_size:
            shape = self._steps.seq_len, self._steps.batch_size, layer.inputs_size
            dinputs = arena.take(f"dinputs_{layer.index}", shape, dtype)
            self._of_inputs.append(dinputs)
        dvectors, vectors = None, len(layer.cell.declaration.vectors) * layer.sizes.hidden
        if vectors:
            dvectors = arena.take(f"dvectors_{number}", (self._steps.batch_size, vectors), dtype)
        return RunBack(run, dy, dx, dgates, dunits, work, offsets, dinputs, dvectors)


class RunBack(NamedTuple):
    """A pseudo-layer with what flows back through it: the gradients of its output and input (T, N, ...; None is that of
    the call), of its gates (of a chunk of steps), and of a step's units; the rows of each pseudo-layer in dhx and dcx;
    and a buffer to work in."""

    run: Run
    dy: np.ndarray | None
    dx: np.ndarray | None
    gates: np.ndarray
    units: np.ndarray
    buffer: np.ndarray
    offsets: np.ndarray
    inputs: np.ndarray | None  # of its side inputs
    vectors: np.ndarray | None  # of those of each sequence

    def layer_pass(self, part: Part) -> LayerPassBackward:
        """A part of the steps, for a kernel."""
        layer, dtype, cells = self.run.layer, self.run.hidden.dtype, self.run.cells.shape[-1]
        batch = part.batch._replace(shift=layer.index * len(self.units))
        gradients = Gradients(
            y=part.rows.or_call_data(self.dy, self.run.hidden.shape[-1], dtype, layer.outputs.start),
            x=part.rows.or_call_data(self.dx, layer.input_size, dtype), gates=part.listed.of(self.gates),
            units=part.batch.of(self.units), hidden=batch.or_call_data(None, layer.sizes.output, dtype),
            states=batch.or_call_data(None, cells, dtype), reset_marks=part.cuts[layer.direction],
            reset_hidden=batch.or_call_data(None, layer.sizes.output, dtype),
            reset_states=batch.or_call_data(None, cells, dtype),
            inputs=None if self.inputs is None else part.rows.of(self.inputs),
            vectors=None if self.vectors is None else part.batch.of(self.vectors),
        )  # fmt: skip
        forward = self.run.layer_pass(part, keeps_gates=True)
        return LayerPassBackward(forward, gradients, self.buffer, self.offsets)


def add(target: np.ndarray, addend: np.ndarray, steps: StepRows) -> None:
    """target += addend, the valid rows of two arrays (T, N, ...)."""
    for part in steps.parts():
        work = part.count * target.shape[-1]
        matrices = map(part.rows.of, (target, addend))
        team.run(loop_gradient.add_rows, work, *matrices, part.count)


@lru_cache(4 * DESCRIPTORS)
def _offsets(desc: RNNDescriptor, index: int, threads: int, rows: int, in_place: bool) -> np.ndarray:
    layer = layers_of(desc)[index]
    facts = layer.gradient_columns, threads, desc.np_dtype.itemsize, rows, in_place
    return weight_gradient.offsets_of(layer.products, *facts)
