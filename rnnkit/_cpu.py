"""One network on NumPy arrays: forward and infer, a loop over pseudo-layers that calls the kernels.

Arguments are checked by `engine`; `backward` is in `_cpu_backward`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rnnkit._cpu_backward import backward
from rnnkit._cpu_layer import (
    Layer,
    Run,
    arange,
    dense,
    drop,
    input_matrix,
    layers_of,
    pack,
    row_bounds,
    states_of,
    zeros,
)
from rnnkit.descriptor import RNNDescriptor
from rnnkit.kernels import loop, stack, team
from rnnkit.kernels.matrix import Matrix
from rnnkit.steps import Steps, steps_of
from rnnkit.workspace import Memory, Workspace, workspace_layout

__all__ = ["Memory", "Stepper", "backward", "forward", "infer", "pack", "prepare"]

_CHUNK_BYTES = 1 << 20  # gates of a chunk of steps (float32): from their product to their use they stay in L2

_ROWS_OF_A_READ = 2  # a step of fewer rows takes as long as reading the weights does


def _chunk(layer: Layer, batch_size: int) -> int:
    """Steps whose gates are worked on at a time."""
    return max(1, _CHUNK_BYTES // (layer.slots * layer.sizes.hidden * max(batch_size, 1) * 4))


class _Outer(NamedTuple):
    """States of all pseudo-layers: hx and cx, None for zeros, and where hy and cy go; cy is None without cells."""

    directions: int
    hx: Any
    cx: Any
    hy: np.ndarray
    cy: Any


def _outer(desc: RNNDescriptor, hx: Any, cx: Any, batch_size: int) -> _Outer:
    count, dtype = desc.num_pseudo_layers, desc.np_dtype
    hy = np.empty((count, batch_size, desc.output_size), dtype)
    cy = np.empty((count, batch_size, desc.hidden_size), dtype) if desc.has_cell else None
    return _Outer(desc.num_directions, hx, cx, hy, cy)


def _run_layer(
    layer: Layer, packed: np.ndarray, source: Matrix, gates: np.ndarray, run: Run, steps: Steps, states: _Outer
) -> None:
    """Run one pseudo-layer over all steps, from its initial states to its final ones."""
    sizes, direction = layer.sizes, layer.direction
    index = layer.layer * states.directions + direction
    units = slice(direction * sizes.output, (direction + 1) * sizes.output)
    everyone = arange(steps.batch_size)
    run.hidden[steps.initial(direction), :, units] = 0 if states.hx is None else states.hx[index]
    if run.cells.size:
        cells = (steps.kept_cells if run.keeps_cells else steps.passing_cells)[direction]
        run.cells[cells.initial, everyone] = 0 if states.cx is None else states.cx[index]
    work = steps.rows.size * layer.products[0].rows.size * (sizes.input + sizes.output)
    team.run(
        loop.forward, layer.kind, work, layer.cell, sizes, bool(direction), steps.starts,
        row_bounds(layer, steps, gates.itemsize), source, packed, layer.places, zeros(sizes.hidden, gates.dtype),
        Matrix(gates.reshape(-1), steps.rows, 0, layer.columns), _chunk(layer, steps.batch_size), gates.shape[0],
        steps.batch_size, states_of(run, steps, sizes, direction)
    )
    states.hy[index] = run.hidden[steps.final[direction], everyone, units]
    if run.cells.size:
        states.cy[index] = run.cells[cells.final, everyone]


def _clear_padding(array: np.ndarray, steps: Steps, first: int) -> None:
    """Zero what lies beyond each sequence's length; step t of the array stands at t + first."""
    if steps.padded:
        for n in np.flatnonzero(steps.lengths < steps.seq_len):
            array[steps.lengths[n] + first : steps.seq_len + first, n] = 0


def forward(desc: RNNDescriptor, w: np.ndarray, hx: Any, cx: Any, workspace: Workspace) -> tuple[Any, Any, Any]:
    """Run the network on workspace.x and fill the workspace; returns y, a view of it, hy and cy."""
    steps = workspace.steps
    workspace.allocate(workspace_layout(desc, steps.seq_len, steps.batch_size))
    arrays = workspace.arrays
    packed, states = pack(desc, w, workspace.memory), _outer(desc, hx, cx, steps.batch_size)
    source = input_matrix(workspace.x, steps)
    for index, layer in enumerate(layers_of(desc)):
        hidden = arrays[f"hidden_l{layer.layer}"]
        if layer.direction == 0 and layer.layer > 0:
            source = _layer_input(desc, workspace, layer.layer)
        cells = arrays[f"cell_{index}"] if desc.has_cell else zeros(0, w.dtype)
        run = Run(hidden, cells, keeps_cells=True)
        _run_layer(layer, packed, source, arrays[f"gates_{index}"], run, steps, states)
        if desc.has_cell:
            _clear_padding(cells, steps, 1)
        if layer.direction == desc.num_directions - 1:
            _clear_padding(hidden, steps, 1)
    y = hidden[1 : steps.seq_len + 1]
    y.flags.writeable = False  # backward reads it
    return y, states.hy, states.cy


def _layer_input(desc: RNNDescriptor, workspace: Workspace, layer: int) -> Matrix:
    """The outputs of the layer below, some of them dropped."""
    below = workspace.arrays[f"hidden_l{layer - 1}"]
    if desc.dropout == 0:
        return Matrix(below.reshape(-1), workspace.steps.states, 0, below.shape[2])
    kept, dropped = workspace.arrays[f"kept_l{layer}"], workspace.arrays[f"input_l{layer}"]
    # One Philox stream a layer: NumPy's counter-based generator, so that the seed alone decides about every bit.
    stream = np.random.Generator(np.random.Philox(key=workspace.seed, counter=[0, 0, 0, layer]))
    draws = workspace.memory.take("draws", kept.shape, np.dtype(np.float32))
    stream.random(dtype=np.float32, out=draws)
    np.greater_equal(draws, desc.dropout, out=kept)
    rows, width = workspace.steps.rows, below.shape[2]
    source = Matrix(below.reshape(-1), workspace.steps.states, 0, width)
    return drop(source, Matrix(dropped.reshape(-1), rows, 0, width), Matrix(kept.reshape(-1), rows, 0, width), desc)


def prepare(desc: RNNDescriptor, w: np.ndarray) -> np.ndarray:
    """Pack the weights into memory of their own."""
    return pack(desc, w, Memory())


def infer(desc: RNNDescriptor, packed: np.ndarray, x: np.ndarray, hx: Any, cx: Any, steps: Steps) -> tuple:
    """Run the network and keep nothing but y, hy and cy.

    The gates of a few steps at a time are held. Stacked layers of one direction also go through the sequence a span of
    steps at a time, so that of the lower layers' outputs, too, no more is held.
    """
    directions, memory = desc.num_directions, Memory()
    width = directions * desc.output_size
    span = max(steps.seq_len, 1)
    if directions == 1 and desc.num_layers > 1:
        layer = layers_of(desc)[0]
        span = min(span, layer.slots * _chunk(layer, steps.batch_size))  # its outputs take the room of a chunk's gates
    hidden = np.empty((steps.seq_len + directions, steps.batch_size, width), x.dtype)
    for first in range(0, max(steps.seq_len, 1), span):
        last = min(first + span, steps.seq_len)
        part = steps if span >= steps.seq_len else _part(steps, first, last)
        states = _outer(desc, hx, cx, steps.batch_size)
        _infer_span(desc, packed, x[first:last], part, states, hidden[first : last + directions], memory)
        hx, cx = states.hy, states.cy
    _clear_padding(hidden, steps, 1)
    return hidden[1 : steps.seq_len + 1], hx, cx


def _part(steps: Steps, first: int, last: int) -> Steps:
    count = last - first
    return steps_of(count, steps.batch_size, np.clip(steps.lengths - first, 0, count) if steps.padded else None)


def _infer_span(
    desc: RNNDescriptor, packed: np.ndarray, x: np.ndarray, steps: Steps, states: _Outer, out: np.ndarray,
    memory: Memory
) -> None:
    source = input_matrix(x, steps)
    for layer in layers_of(desc):
        top = layer.layer == desc.num_layers - 1
        hidden = out if top else memory.take(f"hidden_{layer.layer % 2}", out.shape, out.dtype)
        held = min(_chunk(layer, steps.batch_size), max(steps.seq_len, 1))
        gates = memory.take("gates", (held, steps.batch_size, layer.columns), out.dtype)
        cells = memory.take("cells", (2, steps.batch_size, desc.hidden_size) if desc.has_cell else (0,), out.dtype)
        _run_layer(layer, packed, source, gates, Run(hidden, cells, keeps_cells=False), steps, states)
        if layer.direction == desc.num_directions - 1:
            source = Matrix(hidden.reshape(-1), steps.states, 0, hidden.shape[2])


class Stepper:
    """Runs all layers over one time step, in one call of a kernel; safe to use from any number of threads."""

    def __init__(self, desc: RNNDescriptor, packed: np.ndarray) -> None:
        layers = layers_of(desc)
        self._dtype, self._has_cell, self._weights = packed.dtype, desc.has_cell, packed.size
        self._kind = layers[0].kind
        self._hidden = desc.num_layers, desc.output_size
        self._cells = (desc.num_layers, desc.hidden_size) if desc.has_cell else (0, 0)
        self._columns = layers[0].columns
        table = np.stack([layer.places for layer in layers])
        self._fixed = layers[0].cell, layers[0].sizes, table, packed, zeros(desc.hidden_size, packed.dtype)

    def __call__(self, x: np.ndarray, hx: Any, cx: Any) -> tuple[Any, Any, Any]:
        dtype, batch, (layers, outputs), (cell_layers, units) = self._dtype, len(x), self._hidden, self._cells
        hx = np.zeros((layers, batch, outputs), dtype) if hx is None else dense(hx)
        cx = np.zeros((cell_layers, batch, units), dtype) if cx is None else dense(cx)
        hy, cy = np.empty((layers, batch, outputs), dtype), np.empty((cell_layers, batch, units), dtype)
        gates = np.empty(batch * self._columns, dtype)
        team.run(
            stack.step_stack, self._kind, self._weights * max(batch, _ROWS_OF_A_READ), *self._fixed, dense(x), hx, cx,
            hy, cy, gates, arange(batch)
        )
        return hy[-1], hy, cy if self._has_cell else None
