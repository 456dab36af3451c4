"""One network on CuPy arrays: the functions of `rnnkit.cpu.engine`, run by cuDNN. `network.engine` checks the
arguments.

cuDNN receives dense batches: empty sequences are left out and, if lengths differ, the valid rows are gathered, the
longest sequence first, and the results scattered. So padding is ignored, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

import cupy
import numpy as np

from rnnkit.call.arena import Arena as HostArena
from rnnkit.call.memory import Memory as HostMemory
from rnnkit.call.options import CallOptions
from rnnkit.call.steps import Steps
from rnnkit.call.workspace import Block, Workspace
from rnnkit.cuda import cudnn
from rnnkit.cuda.context import Setup, Shape, context
from rnnkit.descriptor.descriptor import RNNDescriptor

__all__ = ["Memory", "backward", "forward", "infer"]

_ALIGNMENT = 16  # bytes: the widest load of a GPU's thread


class Arena(HostArena):
    """Named arrays on a GPU."""

    def _new_buffer(self, nbytes: int) -> Any:
        return cupy.empty(nbytes, np.uint8)  # CuPy's pool aligns to 512 bytes


class Memory(HostMemory):
    """The memory that successive workspaces on a GPU share."""

    new_arena = Arena

    @classmethod
    def shelf(cls, desc: RNNDescriptor, batch_size: int) -> None:
        """Return None: CuPy has a pool of its own, which knows of streams."""


class _Batch(NamedTuple):
    """A dense batch, and the rows to gather it from a padded one."""

    shape: Shape
    rows: Any = None  # (number of valid steps,) rows of arrays (T*N, ...) on the GPU; None: all in order
    order: Any = None  # (number of non-empty sequences,) on the GPU, the longest first; None: all in order

    def gather(self, array: Any) -> Any:
        """Gather the valid steps of an array (T, N, ...), dense."""
        return _dense(array if self.rows is None else array.reshape(-1, array.shape[2])[self.rows])

    def gather_states(self, *states: Any) -> Iterator[Any]:
        """Gather the states (L*D, N, ...) of the non-empty sequences, dense; None stays None."""
        for array in states:
            yield array if array is None else _dense(array if self.order is None else array[:, self.order])

    def outputs(self, sequences: Any, *states: Any) -> tuple[Any, ...]:
        """Return output arrays for cuDNN: the arrays themselves, or new dense ones to scatter from."""
        if self.rows is None:
            return sequences, *states
        shapes = [(self.rows.size, sequences.shape[2])]
        shapes += [a if a is None else (a.shape[0], self.order.size, a.shape[2]) for a in states]
        return tuple(shape and cupy.empty(shape, sequences.dtype) for shape in shapes)

    def scatter(self, results: tuple[Any, ...], sequences: Any, *states: Any) -> None:
        """Scatter cuDNN's results into the arrays: zeros in padding, and states of the non-empty sequences."""
        if self.rows is None:
            return
        sequences[...] = 0
        sequences.reshape(-1, sequences.shape[2])[self.rows] = results[0]
        for values, array in zip(results[1:], states, strict=True):
            if array is not None:
                array[:, self.order] = values


def _batch_of(steps: Steps) -> _Batch | None:
    """Return the dense batch of the steps; None if there is no step."""
    if not steps.lengths.any():
        return None
    if not steps.padded:
        return _Batch(Shape(cudnn.SEQ_MAJOR_UNPACKED, steps.seq_len, (steps.seq_len,) * steps.batch_size))
    order = steps.longest_first[: np.count_nonzero(steps.lengths)]
    lengths = steps.lengths[order]
    t, position = np.nonzero(np.arange(lengths[0])[:, None] < lengths)
    rows, lengths = t * steps.batch_size + order[position], tuple(lengths.tolist())
    return _Batch(Shape(cudnn.SEQ_MAJOR_PACKED, lengths[0], lengths), cupy.asarray(rows), cupy.asarray(order))


def _dense(array: Any) -> Any:
    """Return the array, or a copy, C-contiguous and aligned."""
    array = cupy.ascontiguousarray(array)
    return array if array.data.ptr % _ALIGNMENT == 0 else array.copy()


def _pointer(array: Any) -> int | None:
    return None if array is None else array.data.ptr


@dataclass
class _Record:
    """What backward needs of a training forward, besides the workspace's arrays."""

    batch: _Batch
    setup: Setup
    x: Any  # dense, as y, hx and cx are
    y: Any
    hx: Any
    cx: Any
    outside: Any  # where the final cell states were clipped; None without a clip
    reserve: Any
    spent: bool = False  # backward overwrites the reserve space, which can be used once
    lock: Lock = field(default_factory=Lock)


def _run(
    desc: RNNDescriptor, w: Any, mode: int, seed: int | None, shape: Shape, inputs: Any, outputs: Any, arena: Arena
) -> tuple[Setup, Any]:
    """Call cudnnRNNForward from dense x, hx, cx to y, hy, cy; returns the setup and the reserve space, in the arena."""
    here, (x, hx, cx), (y, hy, cy) = context(), inputs, outputs

    def call(setup: Setup) -> tuple[Setup, Any]:
        work = cupy.empty(setup.work_nbytes, np.uint8)
        # Inference needs no reserve space; to take an empty array costs as much as a tenth of a short call.
        size = setup.reserve_nbytes
        reserve = arena.take("reserve", (size,), np.dtype(np.uint8)) if size else None
        here.call(
            "cudnnRNNForward",
            setup.network.rnn,
            mode,
            None,
            setup.x,
            x.data.ptr,
            setup.y,
            y.data.ptr,
            setup.hidden,
            _pointer(hx),
            _pointer(hy),
            setup.cell,
            _pointer(cx),
            _pointer(cy),
            w.nbytes,
            w.data.ptr,
            work.nbytes,
            work.data.ptr,
            size,
            _pointer(reserve),
        )
        return setup, reserve

    return here.run(desc, shape, mode, seed, call)


def _final_states(desc: RNNDescriptor, batch_size: int, batch: _Batch | None, hx: Any, cx: Any) -> tuple[Any, Any]:
    """Return new arrays for hy and cy, which hold the final states of empty sequences, hx and cx; None means zeros."""

    def start(size: int, states: Any) -> Any:
        shape = desc.num_pseudo_layers, batch_size, size
        if batch is not None and batch.order is None:
            return cupy.empty(shape, desc.np_dtype)
        return cupy.zeros(shape, desc.np_dtype) if states is None else states.copy(order="C")

    return start(desc.output_size, hx), start(desc.hidden_size, cx) if desc.has_cell_state else None


def forward(desc: RNNDescriptor, w: Any, x: Any, hx: Any, cx: Any, workspace: Workspace) -> tuple[Any, Any, Any]:
    """Run the network on x and fill the workspace; returns y, its array, hy and cy."""
    arena, steps, seed = workspace.memory.arena, workspace.steps, _seed(desc, workspace)
    with x.device:
        # Only the last layer's states, which are y, are accessible: the others are in cuDNN's reserve space.
        width, name = desc.num_directions * desc.output_size, f"hidden_l{desc.num_layers - 1}"
        workspace.allocate((Block(name, (*x.shape[:2], width), desc.np_dtype),))
        y = workspace.arrays[name]
        hy, cy, workspace.record = _fill(desc, w, cudnn.TRAINING, seed, steps, x, hx, cx, y, arena)
        return y, hy, cy


def _fill(
    desc: RNNDescriptor,
    w: Any,
    mode: int,
    seed: int | None,
    steps: Steps,
    x: Any,
    hx: Any,
    cx: Any,
    y: Any,
    arena: Arena,
) -> tuple[Any, Any, _Record | None]:
    """Write y; returns hy, cy and what backward needs (None if there is no step)."""
    batch = _batch_of(steps)
    hy, cy = _final_states(desc, steps.batch_size, batch, hx, cx)
    if batch is None:
        y[...] = 0
        return hy, cy, None
    hx, cx = batch.gather_states(hx, cx)
    if mode == cudnn.TRAINING:
        hx, cx = _copied(arena, "hx", hx), _copied(arena, "cx", cx)
    x, outputs = batch.gather(x), batch.outputs(y, hy, cy)
    setup, reserve = _run(desc, _dense(w), mode, seed, batch.shape, (x, hx, cx), outputs, arena)
    outside = _clip(desc, outputs[2])
    batch.scatter(outputs, y, hy, cy)
    return hy, cy, _Record(batch, setup, x, outputs[0], hx, cx, outside, reserve)


def _clip(desc: RNNDescriptor, cy: Any) -> Any:
    """Clip the final cell states; returns where they were not strictly inside: no gradient passes there.

    cuDNN clips a cell state when it reads it, cx too, but returns it unclipped. Its bounds are float32 in every dtype.
    """
    if desc.cell_clip is None:
        return None
    low, high = map(np.float32, desc.cell_clip)
    raw = cy.astype(np.float32) if cy.dtype.itemsize == 2 else cy  # CuPy has few functions of bfloat16
    outside = (raw <= low) | (raw >= high)
    cy[...] = cupy.clip(raw, low, high)
    return outside


def _copied(arena: Arena, name: str, states: Any) -> Any:
    """Copy the initial states, which the caller may change before backward, into the arena."""
    if states is None:
        return None
    copy = arena.take(name, states.shape, states.dtype)
    copy[...] = states
    return copy


def _seed(desc: RNNDescriptor, workspace: Workspace) -> int | None:
    return workspace.seed if desc.num_layers > 1 else None  # dropout is between layers


def backward(
    desc: RNNDescriptor, w: Any, workspace: Workspace, dy: Any, dhy: Any, dcy: Any, dw: Any, wants_dx: bool = True
) -> tuple[Any, Any, Any, Any]:
    """Compute dx, dhx, dcx and dw from the workspace of a forward. If dw is given, the gradient is added to it. cuDNN
    computes dx whether it is wanted or not."""
    with workspace.x.device:
        record, dtype, batch_size = workspace.record, desc.np_dtype, workspace.steps.batch_size
        batch = record.batch if record else None
        dhx, dcx = _final_states(desc, batch_size, batch, dhy, dcy)
        total = cupy.zeros(w.shape, dtype) if dw is None else dw
        if record is None:
            return cupy.zeros(workspace.x.shape, dtype), dhx, dcx, total
        dx, sums = cupy.empty(workspace.x.shape, dtype), _dense(total)
        dense_dy = cupy.zeros(record.y.shape, dtype) if dy is None else batch.gather(dy)
        results = batch.outputs(dx, dhx, dcx)
        dhy, dcy = batch.gather_states(dhy, dcy)
        if dcy is not None and record.outside is not None:
            dcy = dcy.copy()  # it may be the caller's
            dcy[record.outside] = 0
        _gradients(desc, _dense(w), workspace, dense_dy, dhy, dcy, *results, sums)
        batch.scatter(results, dx, dhx, dcx)
        if sums is not total:  # dw was not aligned
            total[...] = sums
        return dx, dhx, dcx, total


def _gradients(
    desc: RNNDescriptor, w: Any, workspace: Workspace, dy: Any, dhy: Any, dcy: Any, dx: Any, dhx: Any, dcx: Any, dw: Any
) -> None:
    """Call cudnnRNNBackwardData and cudnnRNNBackwardWeights on dense arrays."""
    here, record = context(), workspace.record

    def call(setup: Setup, y: Any, reserve: Any) -> None:
        work = cupy.empty(setup.work_nbytes, np.uint8)
        scratch = work.nbytes, work.data.ptr, reserve.nbytes, reserve.data.ptr
        here.call(
            "cudnnRNNBackwardData_v8",
            setup.network.rnn,
            None,
            setup.y,
            y.data.ptr,
            dy.data.ptr,
            setup.x,
            dx.data.ptr,
            setup.hidden,
            _pointer(record.hx),
            _pointer(dhy),
            dhx.data.ptr,
            setup.cell,
            _pointer(record.cx),
            _pointer(dcy),
            _pointer(dcx),
            w.nbytes,
            w.data.ptr,
            *scratch,
        )
        here.call(
            "cudnnRNNBackwardWeights_v8",
            setup.network.rnn,
            cudnn.WGRAD_ADD,
            None,
            setup.x,
            record.x.data.ptr,
            setup.hidden,
            _pointer(record.hx),
            setup.y,
            y.data.ptr,
            dw.nbytes,
            dw.data.ptr,
            *scratch,
        )

    with record.lock:
        spent, record.spent = record.spent, True
    # To copy the reserve space for a second backward would double its memory in each training step, which uses it once.
    done = _again(desc, w, workspace) if spent else (record.setup, record.y, record.reserve)
    try:
        call(*done)
    except cudnn.NotSupportedError:
        if done[0].algorithm == cudnn.STANDARD:
            raise
        here.refuse(desc, record.batch.shape, cudnn.TRAINING)
        call(*_again(desc, w, workspace))


def _again(desc: RNNDescriptor, w: Any, workspace: Workspace) -> tuple[Setup, Any, Any]:
    """Run the training forward once more; returns its setup, y and reserve space."""
    record, y = workspace.record, cupy.empty_like(workspace.record.y)
    inputs, outputs = (record.x, record.hx, record.cx), (y, None, None)
    seed, shape = _seed(desc, workspace), record.batch.shape
    setup, reserve = _run(desc, w, cudnn.TRAINING, seed, shape, inputs, outputs, Arena())
    return setup, y, reserve


def infer(desc: RNNDescriptor, w: Any, x: Any, hx: Any, cx: Any, options: CallOptions) -> tuple[Any, Any, Any]:
    """Run the network over all steps and return y, hy and cy."""
    with x.device:
        y = cupy.empty((*x.shape[:2], desc.num_directions * desc.output_size), x.dtype)
        hy, cy, _ = _fill(desc, w, cudnn.INFERENCE, None, options.steps, x, hx, cx, y, Arena())
        return y, hy, cy
