"""The gradients of one network on NumPy arrays, pseudo-layer by pseudo-layer from the last to the first."""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnkit._cpu_layer import (
    Run,
    arange,
    bias_places,
    drop,
    flat,
    input_matrix,
    layers_of,
    row_bounds,
    states_of,
    zeros,
)
from rnnkit.descriptor import RNNDescriptor
from rnnkit.kernels import cell as protocol
from rnnkit.kernels import gemm, loop, loop_gradient, team
from rnnkit.kernels.matrix import Matrix
from rnnkit.steps import Steps
from rnnkit.workspace import Memory, Workspace


def backward(desc: RNNDescriptor, w: np.ndarray, workspace: Workspace, dy: Any, dhy: Any, dcy: Any, dw: Any) -> tuple:
    """Gradients of what `forward` left in the workspace: dx, dhx, dcx and dw, which is added to where it is given."""
    with workspace.memory.lend() as memory:
        return _backward(desc, w, workspace, memory, dy, dhy, dcy, dw)


def _backward(
    desc: RNNDescriptor, w: np.ndarray, workspace: Workspace, memory: Memory, dy: Any, dhy: Any, dcy: Any, dw: Any
) -> tuple:
    steps, batch = workspace.steps, workspace.steps.batch_size
    dw = np.zeros(w.shape, w.dtype) if dw is None else dw
    dhx = _start((desc.num_pseudo_layers, batch, desc.output_size), w.dtype, dhy)
    dcx = _start((desc.num_pseudo_layers, batch, desc.hidden_size), w.dtype, dcy) if desc.has_cell else None
    weights = flat(w)
    upper = Matrix(
        np.empty(0, w.dtype) if dy is None else flat(dy), steps.rows, 0, desc.num_directions * desc.output_size
    )
    for layer in reversed(range(desc.num_layers)):
        shape = (steps.seq_len, batch, desc.layer_input_size(layer))
        dx = memory.take(f"dinput_{layer % 2}", shape, w.dtype) if layer else _dx(shape, w.dtype, steps)
        lower = Matrix(dx.reshape(-1), steps.rows, 0, shape[2])
        for direction in range(desc.num_directions):
            index = layer * desc.num_directions + direction
            dcells = (
                Matrix(dcx.reshape(-1), steps.batch, index * batch * desc.hidden_size, desc.hidden_size)
                if desc.has_cell
                else Matrix(upper.data, steps.batch, 0, 0)
            )
            carry = Matrix(dhx.reshape(-1), steps.batch, index * batch * desc.output_size, desc.output_size)
            _LayerGradient(desc, weights, workspace, memory, index, dw).run(upper, lower, carry, dcells)
        if layer and desc.dropout > 0:
            kept = workspace.arrays[f"kept_l{layer}"].reshape(-1)
            drop(lower, lower, Matrix(kept, steps.rows, 0, shape[2]), desc)
        upper = lower
    return dx, dhx, dcx, dw


def _start(shape: tuple[int, ...], dtype: np.dtype, given: Any) -> np.ndarray:
    """A new array that the gradient of a state begins from and is carried back in."""
    return np.zeros(shape, dtype) if given is None else np.array(given, order="C").reshape(shape)


def _dx(shape: tuple[int, ...], dtype: np.dtype, steps: Steps) -> np.ndarray:
    return np.zeros(shape, dtype) if steps.padded else np.empty(shape, dtype)


class _LayerGradient:
    """The backward of one pseudo-layer: the time loop, then a product each for dx and the weights."""

    def __init__(
        self, desc: RNNDescriptor, weights: np.ndarray, workspace: Workspace, memory: Memory, index: int,
        dw: np.ndarray
    ) -> None:
        self.desc, self.weights, self.dw, self.index = desc, weights, dw, index
        self.workspace, self.steps, self.memory = workspace, workspace.steps, memory
        self.layer = layers_of(desc)[index]
        self.cell, self.sizes, slots, self.blocks, _, self.direction = self.layer
        self.zeros = zeros(max(self.sizes), weights.dtype)
        self.width = (slots - desc.projected) * self.sizes.hidden
        gates = workspace.arrays[f"gates_{index}"].reshape(-1)
        self.gates = Matrix(gates, self.steps.rows, 0, slots * self.sizes.hidden)
        self.dgates = Matrix(self.take("dgates", self.steps.rows_in_all * self.width), self.steps.rows, 0, self.width)

    def take(self, name: str, size: int) -> np.ndarray:
        return self.memory.take(name, (size,), self.weights.dtype)

    def run(self, dy: Matrix, dx: Matrix, carry: Matrix, dcells: Matrix) -> None:
        """From dy, and the final states' gradients in carry and dcells, to dx, the initial states' and dw."""
        states, source = self._states(), self._source()
        hidden, output, gates = self.sizes.hidden, self.sizes.output, len(protocol.input_slots(self.cell))
        projection = Matrix(
            self.take("dprojection", self.steps.rows_in_all * output * self.desc.projected), self.steps.rows, 0, output
        )
        doutput = Matrix(self.take("doutput", self.steps.batch_size * hidden), self.steps.batch, 0, hidden)
        dy = dy._replace(start=self.direction * output)
        team.run(
            loop_gradient.backward, self.steps.rows.size * hidden * gates * output, self.cell, self.sizes,
            bool(self.direction), self.steps.starts, row_bounds(self.layer, self.steps, self.weights.itemsize),
            self._panels(), self.zeros, self.gates, states,
            loop_gradient.Gradients(dy, self.dgates, projection, doutput, carry, dcells)
        )
        self._input_gradient(dx)
        if "weight_ih" in self.blocks:
            self._weight_gradient("weight_ih", 0, protocol.input_slots(self.cell), source)
        self._weight_gradient("weight_hh", 0, protocol.recurrent_slots(self.cell), states.hidden)
        if second := protocol.second_slots(self.cell):
            self._weight_gradient("weight_hh", gates - 1, second[:1], self.gates._replace(start=second[1]))
        if self.desc.projected:
            projected = self.gates._replace(start=self.gates.stride - hidden)
            self._product_over_rows("weight_hr", 0, projection, output, projected)
        self._bias_gradient()

    def _states(self) -> loop.States:
        desc, arrays = self.desc, self.workspace.arrays
        cells = arrays[f"cell_{self.index}"] if desc.has_cell else np.empty((0,), self.dw.dtype)
        run = Run(arrays[f"hidden_l{self.layer.layer}"], cells, keeps_cells=True)
        return states_of(run, self.steps, self.sizes, self.direction)

    def _source(self) -> Matrix:
        """What the layer's forward read."""
        layer, arrays = self.layer.layer, self.workspace.arrays
        if layer == 0:
            return input_matrix(self.workspace.x, self.steps)
        if self.desc.dropout > 0:
            return input_matrix(arrays[f"input_l{layer}"], self.steps)
        return Matrix(arrays[f"hidden_l{layer - 1}"].reshape(-1), self.steps.states, 0, self.sizes.input)

    def _pack_rows(self, name: str, block: str, rows: np.ndarray, units: int) -> np.ndarray:
        panels = self.take(f"panels_{name}", gemm.panel_size(rows.size, units, 1, self.weights.itemsize))
        matrix = Matrix(self.weights, rows, self.blocks[block][1], units)
        team.run(gemm.pack_weight_rows, panels.size, panels, matrix, rows.size, units)
        return panels

    def _panels(self) -> loop.Panels:
        """Recurrent weights and projection, packed by rows."""
        hidden, output = self.sizes.hidden, self.sizes.output
        first = len(protocol.recurrent_slots(self.cell)) * hidden
        empty = np.empty(0, self.weights.dtype)
        rows = arange(self.blocks["weight_hh"][0][0])
        second = self._pack_rows("dsecond", "weight_hh", rows[first:], output) if first < rows.size else empty
        projection = (
            self._pack_rows("dprojection", "weight_hr", arange(output), hidden) if self.desc.projected else empty
        )
        return loop.Panels(empty, self._pack_rows("drecurrent", "weight_hh", rows[:first], output), second, projection)

    def _input_gradient(self, dx: Matrix) -> None:
        hidden, inputs, count = self.sizes.hidden, self.sizes.input, self.steps.rows.size
        slots = protocol.input_slots(self.cell)
        fresh = self.direction == 0
        if not inputs:
            team.run(
                loop_gradient.skip_gradient, count * len(slots) * hidden, self.cell, dx, self.dgates, count, hidden,
                fresh
            )
            return
        rows = (np.argsort(slots)[:, None] * hidden + np.arange(hidden)).reshape(-1)  # W's rows as dgates has columns
        panels = self._pack_rows("dinput", "weight_ih", rows, inputs)
        team.run(
            gemm.rows_product, count * rows.size * inputs, dx, self.dgates, count, rows.size, panels, inputs,
            self.zeros, fresh
        )

    def _weight_gradient(self, block: str, gate: int, slots: tuple[int, ...], source: Matrix) -> None:
        """Add to the rows of the gates from `gate` on; gates whose columns are neighbours go into one product."""
        hidden = self.sizes.hidden
        while slots:
            run = 1
            while run < len(slots) and slots[run] == slots[run - 1] + hidden:
                run += 1
            self._product_over_rows(block, gate * hidden, self.dgates._replace(start=slots[0]), run * hidden, source)
            gate, slots = gate + run, slots[run:]

    def _product_over_rows(self, block: str, first: int, a: Matrix, columns: int, b: Matrix) -> None:
        (_, units), start = self.blocks[block]
        size = self.dw.itemsize
        panels = self.take("panels_rows", gemm.panel_size(gemm.depth_block(size), units, 1, size))
        transposed = self.take("transposed", gemm.transposed_size(columns, size))
        count = self.steps.rows.size
        team.run(
            gemm.product_over_rows, count * columns * units,
            Matrix(self.dw, arange(columns), start + first * units, units), columns, a, b, count, units, panels,
            transposed
        )

    def _bias_gradient(self) -> None:
        places = bias_places(self.cell, self.blocks)
        if not places:
            return
        hidden = self.sizes.hidden
        total = self.take("dbias", self.width)
        total[:] = 0
        team.run(
            gemm.sum_rows, self.steps.rows.size * self.width, total, 0, self.dgates, self.steps.rows.size, self.width
        )
        with np.errstate(all="ignore"):  # as in the kernels: what overflows is inf, without a warning
            for name, slots in places:
                start = self.blocks[name][1]
                for gate, slot in enumerate(slots):
                    self.dw[start + gate * hidden : start + (gate + 1) * hidden] += total[slot : slot + hidden]
