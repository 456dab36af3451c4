"""One network on NumPy arrays: forward and infer, a loop over pseudo-layers that calls the kernels.

Arguments are checked by `engine`; `backward` is in `_cpu_backward`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnkit._cpu_backward import backward
from rnnkit._cpu_layer import (
    Layer,
    Packed,
    Prepared,
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
from rnnkit.kernels import cell as protocol
from rnnkit.kernels import loop, stack, team
from rnnkit.kernels.matrix import Matrix
from rnnkit.steps import Steps, steps_of
from rnnkit.workspace import Memory, Workspace, gate_slots

__all__ = ["backward", "forward", "infer", "pack", "step"]

_CHUNK_BYTES = 1 << 20  # gates of a chunk of inference steps: from their product to their use they stay in L2

_ROWS_OF_A_READ = 2  # a step of fewer rows takes as long as reading the weights does


def _run_layer(
    layer: Layer, packed: Packed, source: Matrix, gates: np.ndarray, chunk: int, run: Run, steps: Steps,
    initial: tuple[Any, Any]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Run one pseudo-layer over all steps; returns its final hidden state and cell."""
    cell, sizes, slots, _, _, direction = layer
    columns = slice(direction * sizes.output, (direction + 1) * sizes.output)
    run.hidden[steps.initial(direction), :, columns] = 0 if initial[0] is None else initial[0]
    everyone = np.arange(steps.batch_size)
    if run.cells.size:
        cells = steps.cells(direction, run.keeps_cells)
        run.cells[cells.initial, everyone] = 0 if initial[1] is None else initial[1]
    width = slots * sizes.hidden
    work = steps.rows.size * sizes.hidden * len(protocol.input_slots(cell)) * (sizes.input + sizes.output)
    team.run(
        loop.forward, work, cell, sizes, bool(direction), steps.starts, row_bounds(layer, steps, gates.itemsize),
        source, packed.panels, packed.bias, zeros(sizes.hidden, gates.dtype),
        Matrix(gates.reshape(-1), steps.rows, 0, width), chunk, steps.batch_size,
        states_of(run, steps, sizes, direction)
    )
    hy = run.hidden[steps.final(direction), everyone, columns]
    return hy, run.cells[cells.final, everyone] if run.cells.size else None


def _clear_padding(array: np.ndarray, steps: Steps, first: int) -> None:
    """Zero what lies beyond each sequence's length; step t of the array stands at t + first."""
    if steps.padded:
        for n in np.flatnonzero(steps.lengths < steps.seq_len):
            array[steps.lengths[n] + first : steps.seq_len + first, n] = 0


def forward(desc: RNNDescriptor, w: np.ndarray, hx: Any, cx: Any, workspace: Workspace) -> tuple[Any, Any, Any]:
    """Run the network on workspace.x and fill the workspace; returns y, a view of it, hy and cy."""
    steps, arrays = workspace.steps, workspace.arrays
    packed, finals = pack(desc, w, workspace.memory), []
    source = input_matrix(workspace.x, steps)
    for index, layer in enumerate(layers_of(desc)):
        hidden = arrays[f"hidden_l{layer.layer}"]
        if layer.direction == 0 and layer.layer > 0:
            source = _layer_input(desc, workspace, layer.layer)
        cells = arrays[f"cell_{index}"] if desc.has_cell else np.empty((0,), w.dtype)
        initial = (None if hx is None else hx[index], None if cx is None else cx[index])
        run = Run(hidden, cells, keeps_cells=True)
        gates, chunk = arrays[f"gates_{index}"], max(steps.seq_len, 1)
        finals.append(_run_layer(layer, packed.layer(index), source, gates, chunk, run, steps, initial))
        if desc.has_cell:
            _clear_padding(cells, steps, 1)
        if layer.direction == desc.num_directions - 1:
            _clear_padding(hidden, steps, 1)
    return _outputs(desc, hidden, steps, finals)


def _outputs(desc: RNNDescriptor, hidden: np.ndarray, steps: Steps, finals: list) -> tuple[Any, Any, Any]:
    hy = np.stack([final[0] for final in finals])
    cy = np.stack([final[1] for final in finals]) if desc.has_cell else None
    return hidden[1 : steps.seq_len + 1], hy, cy


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


def infer(desc: RNNDescriptor, packed: Prepared, x: np.ndarray, hx: Any, cx: Any, steps: Steps) -> tuple:
    """Run the network and keep nothing but y, hy and cy.

    The gates of a few steps at a time are held. Stacked layers of one direction also go through the sequence a span of
    steps at a time, so that of the lower layers' outputs, too, no more is held.
    """
    directions, memory = desc.num_directions, Memory()
    width = directions * desc.output_size
    step_bytes = gate_slots(desc) * desc.hidden_size * max(steps.batch_size, 1) * x.itemsize
    chunk = max(1, _CHUNK_BYTES // step_bytes)
    span = chunk if directions == 1 and desc.num_layers > 1 else max(steps.seq_len, 1)
    hidden = np.empty((steps.seq_len + directions, steps.batch_size, width), x.dtype)
    for first in range(0, max(steps.seq_len, 1), span):
        last = min(first + span, steps.seq_len)
        part = steps if span >= steps.seq_len else _part(steps, first, last)
        out = hidden[first : last + directions]
        hx, cx = _infer_span(desc, packed, x[first:last], hx, cx, part, chunk, out, memory)
    _clear_padding(hidden, steps, 1)
    return hidden[1 : steps.seq_len + 1], hx, cx


def _part(steps: Steps, first: int, last: int) -> Steps:
    count = last - first
    return steps_of(count, steps.batch_size, np.clip(steps.lengths - first, 0, count) if steps.padded else None)


def _infer_span(
    desc: RNNDescriptor, packed: Prepared, x: np.ndarray, hx: Any, cx: Any, steps: Steps, chunk: int,
    out: np.ndarray, memory: Memory
) -> tuple[Any, Any]:
    source, finals = input_matrix(x, steps), []
    for index, layer in enumerate(layers_of(desc)):
        top = layer.layer == desc.num_layers - 1
        hidden = out if top else memory.take(f"hidden_{layer.layer % 2}", out.shape, out.dtype)
        gate_shape = (min(chunk, max(steps.seq_len, 1)), steps.batch_size, layer.slots, layer.sizes.hidden)
        gates = memory.take("gates", gate_shape, out.dtype)
        cells = memory.take("cells", (2, steps.batch_size, desc.hidden_size) if desc.has_cell else (0,), out.dtype)
        initial = (None if hx is None else hx[index], None if cx is None else cx[index])
        run = Run(hidden, cells, keeps_cells=False)
        finals.append(_run_layer(layer, packed.layer(index), source, gates, chunk, run, steps, initial))
        if layer.direction == desc.num_directions - 1:
            source = Matrix(hidden.reshape(-1), steps.states, 0, hidden.shape[2])
    _, hy, cy = _outputs(desc, out, steps, finals)
    return hy, cy


def step(desc: RNNDescriptor, packed: Prepared, x: np.ndarray, hx: Any, cx: Any) -> tuple[Any, Any, Any]:
    """Run all layers over one time step, in one call of a kernel."""
    layer, batch = layers_of(desc)[0], x.shape[0]
    hidden = (desc.num_layers, batch, desc.output_size)
    cells = (desc.num_layers, batch, desc.hidden_size) if desc.has_cell else (0, 0, 0)
    hx = np.zeros(hidden, x.dtype) if hx is None else dense(hx)
    cx = np.zeros(cells, x.dtype) if cx is None else dense(cx)
    hy, cy = np.empty(hidden, x.dtype), np.empty(cells, x.dtype)
    gates = np.empty(batch * layer.slots * desc.hidden_size, x.dtype)
    work = packed.buffer.size * max(batch, _ROWS_OF_A_READ)
    team.run(
        stack.step_stack, work, layer.cell, layer.sizes, packed.table, packed.buffer, zeros(desc.hidden_size, x.dtype),
        dense(x), hx, cx, hy, cy, gates, arange(batch)
    )
    return hy[-1], hy, cy if desc.has_cell else None
