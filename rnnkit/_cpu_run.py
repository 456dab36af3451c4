"""Running pseudo-layers on NumPy arrays: what they read, what they write, and the call of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rnnkit._cpu_layer import Layer, filled, flat, stacked, zeros
from rnnkit._cpu_sharing import Sharing, chunk_of
from rnnkit.descriptor import RNNDescriptor
from rnnkit.kernels import dropout, loop, team
from rnnkit.kernels.matrix import Matrix
from rnnkit.steps import CellRows, Steps
from rnnkit.workspace import Workspace


class Run(NamedTuple):
    """A pseudo-layer with what it reads and what it writes: hidden states (T + D, N, D*P), gates (steps that are held,
    N, columns) and cells, whose rows are (T + D, N, H), or (2, N, H) where they are not kept."""

    layer: Layer
    source: Matrix
    hidden: np.ndarray
    gates: np.ndarray
    cells: np.ndarray
    cell_rows: CellRows

    @property
    def units(self) -> slice:
        """Its columns of the hidden states."""
        size = self.layer.sizes.output
        return slice(self.layer.direction * size, (self.layer.direction + 1) * size)


def kept_runs(desc: RNNDescriptor, workspace: Workspace, group: tuple[Layer, ...]) -> list[Run]:
    """A group of pseudo-layers in training: the places in the workspace, which backward reads again."""
    arrays, steps, runs = workspace.arrays, workspace.steps, []
    for layer in group:
        if layer.direction == 0:  # both directions read one source: an input that is to be copied is copied once
            source = _kept_source(desc, workspace, layer.layer)
        cells = arrays[f"cell_{layer.index}"] if desc.has_cell else zeros(0, desc.np_dtype)
        hidden, gates = arrays[f"hidden_l{layer.layer}"], arrays[f"gates_{layer.index}"]
        runs.append(Run(layer, source, hidden, gates, cells, steps.kept_cells[layer.direction]))
    return runs


def _kept_source(desc: RNNDescriptor, workspace: Workspace, layer: int) -> Matrix:
    """What W of a layer multiplies: the input, or the outputs of the layer below as dropout left them."""
    if layer == 0:
        return input_matrix(workspace.x, workspace.steps)
    if desc.dropout > 0:
        return input_matrix(workspace.arrays[f"input_l{layer}"], workspace.steps)
    return outputs_of(workspace.arrays[f"hidden_l{layer - 1}"], workspace.steps)


def states_of(run: Run, steps: Steps) -> loop.States:
    start, stride = run.units.start, run.hidden.shape[2]
    hidden, cells, size = run.hidden.ravel(), run.cells.ravel(), run.cells.shape[-1]
    return loop.States(
        Matrix(hidden, steps.previous[run.layer.direction], start, stride), Matrix(hidden, steps.states, start, stride),
        Matrix(cells, run.cell_rows.before, 0, size), Matrix(cells, run.cell_rows.after, 0, size)
    )


class Outer(NamedTuple):
    """States of all pseudo-layers: hx and cx, None for zeros, and where hy and cy go; cy is None without cells."""

    hx: Any
    cx: Any
    hy: np.ndarray
    cy: Any


def outer(desc: RNNDescriptor, hx: Any, cx: Any, batch_size: int) -> Outer:
    count, dtype = desc.num_pseudo_layers, desc.np_dtype
    hy = np.empty((count, batch_size, desc.output_size), dtype)
    cy = np.empty((count, batch_size, desc.hidden_size), dtype) if desc.has_cell else None
    return Outer(hx, cx, hy, cy)


def run_group(runs: Sequence[Run], packed: np.ndarray, steps: Steps, sharing: Sharing, states: Outer) -> None:
    """Run a group of pseudo-layers over all steps, from their initial to their final states."""
    work, strands, group = 0, [], [run.layer for run in runs]
    for run in runs:
        layer, initial = run.layer, steps.initial[run.layer.direction]
        run.hidden[(*initial, run.units)] = 0 if states.hx is None else states.hx[layer.index]
        if states.cy is not None:
            run.cells[run.cell_rows.initial] = 0 if states.cx is None else states.cx[layer.index]
        gates = Matrix(run.gates.ravel(), steps.rows, 0, layer.columns)
        own = states_of(run, steps)
        strands.append(loop.Strand(layer.direction == 1, layer.sizes, run.source, layer.places, gates, own))
        work += layer.work * steps.rows.size
    team.run(
        loop.forward, layer.kind, work, layer.cell, filled(strands, layer), len(strands), stacked(group), steps.starts,
        *sharing, chunk_of(group, steps.batch_size), packed, zeros(layer.sizes.hidden, packed.dtype),
        len(run.gates), steps.batch_size
    )
    for run in runs:
        index, final = run.layer.index, steps.final[run.layer.direction]
        states.hy[index] = run.hidden[(*final, run.units)]
        if states.cy is not None:
            states.cy[index] = run.cells[run.cell_rows.final]


def clear_padding(array: np.ndarray, steps: Steps, first: int) -> None:
    """Zero what lies beyond each sequence's length; step t of the array stands at t + first."""
    if steps.padded:
        for n in np.flatnonzero(steps.lengths < steps.seq_len):
            array[steps.lengths[n] + first : steps.seq_len + first, n] = 0


def input_matrix(x: np.ndarray, steps: Steps) -> Matrix:
    return Matrix(flat(x), steps.rows, 0, x.shape[-1])


def outputs_of(hidden: np.ndarray, steps: Steps) -> Matrix:
    """What a layer puts out, (T + D, N, D*P), for the layer above to read."""
    return Matrix(hidden.reshape(-1), steps.states, 0, hidden.shape[2])


def drop(source: Matrix, target: Matrix, kept: Matrix, desc: RNNDescriptor) -> Matrix:
    """Write `source`, or its gradient, with dropout applied into `target`, and return that."""
    scale = desc.np_dtype.type(0 if desc.dropout == 1 else 1 / (1 - desc.dropout))
    count, width = target.rows.size, target.stride
    team.run(dropout.drop, desc.dtype, count * width, target, source, kept, scale, count, width)
    return target
