"""Any network on CuPy arrays, by kernels that are compiled from the equations of its cell: what cuDNN does not have.

`layer` runs a pseudo-layer; here is the loop over layers and directions, and what they read and write.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import cupy
import numpy as np

from rnnkit.call.options import CallOptions
from rnnkit.call.steps import states_shape
from rnnkit.call.workspace import Workspace, workspace_layout
from rnnkit.cpu.layer import Layer, layers_of
from rnnkit.cuda.blas import Blas
from rnnkit.cuda.common import common_source
from rnnkit.cuda.kernels import address, kernel, launch
from rnnkit.cuda.layer import Arrays, LayerCall, pieces_of
from rnnkit.cuda.layer_gradient import Gradients, run_backward
from rnnkit.cuda.marks import Marks, marks_of
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.states import add_state_gradients
from rnnkit_kernels.noise import STREAMS, Draw, bernoulli, dropout_factor, seed_words


class Record(NamedTuple):
    """What backward needs of a training forward, besides the workspace's arrays."""

    marks: Marks
    x: Any  # dense, with zeros where no step runs
    initial: tuple[Any, Any]  # states that resets are to

    def shown(self, states: Any) -> Any:
        """Return the states after each step of an array of `states_shape`, zeros beyond the length of a sequence."""
        return _shown(states, len(self.x), self.marks)


def _dense(array: Any) -> Any:
    return None if array is None else cupy.ascontiguousarray(array)


def _shown(states: Any, seq_len: int, marks: Marks) -> Any:
    found = states[1 : seq_len + 1]
    return found if marks.is_shown is None else cupy.where(marks.is_shown[:, :, None], found, found.dtype.type(0))


def _bits(number: Any) -> int:
    """Return a number as the integer whose bits are those of its double: arguments of kernels are integers."""
    return int(np.float64(number).view(np.int64))


def _biases(desc: RNNDescriptor, layer: Layer, w: Any) -> Any:
    """Return the sum of the biases of each column that products write."""
    pieces = [piece for own in pieces_of(desc)[layer.index] for piece in own]
    total = cupy.zeros((max([piece.column + piece.size for piece in pieces], default=0),), desc.np_dtype)
    for piece in pieces:
        if piece.bias >= 0:
            total[piece.column : piece.column + piece.size] += w[piece.bias : piece.bias + piece.size]
    return total


class _Network:
    """The pseudo-layers of a call, and their arrays."""

    def __init__(self, desc: RNNDescriptor, w: Any, x: Any, marks: Marks, initial: Any, arrays: dict[str, Any]) -> None:
        self.desc, self.w, self.x, self.marks, self.arrays = desc, w, x, marks, arrays
        self.initial, self.layers = initial, layers_of(desc)
        self.blas = Blas(desc.np_dtype, desc.allow_tf32)
        self.seq_len = x.shape[0]

    def call(self, layer: Layer, kind: str) -> LayerCall:
        """Return a pseudo-layer with its arrays."""
        desc, arrays, index = self.desc, self.arrays, layer.index
        inputs = self.x[:, :, desc.input_size :] if desc.inputs_size else None
        initial = tuple(None if one is None else one[index] for one in self.initial)
        own = Arrays(
            self.source(layer.layer), arrays[f"hidden_l{layer.layer}"], arrays.get(f"cell_{index}"), inputs,
            arrays.get(f"noises_{index}"), arrays.get(f"step_noises_{index}"), initial,
        )  # fmt: skip
        return LayerCall(desc, layer, self.blas, self.w, self.marks, own, kind)

    def source(self, layer: int) -> Any:
        """Return the input of a layer."""
        if layer == 0:
            return self.x
        return self.arrays.get(f"input_l{layer}", self.after(self.arrays[f"hidden_l{layer - 1}"]))

    def after(self, states: Any) -> Any:
        """Return the states after each step."""
        return states[1 : self.seq_len + 1]

    def shown(self, states: Any) -> Any:
        """Return the states after each step as callers see them: zeros beyond the length of a sequence."""
        return _shown(states, self.seq_len, self.marks)

    def start(self, hx: Any, cx: Any) -> None:
        """Write the initial states; zeros for sequences without steps, whose states are multiplied by zeros."""
        for layer in self.layers:
            row = self.seq_len + 1 if layer.direction else 0
            hidden, cells = self.arrays[f"hidden_l{layer.layer}"], self.arrays.get(f"cell_{layer.index}")
            hidden[row][:, layer.outputs] = 0 if hx is None else self._of_others(hx[layer.index], None)
            if cells is not None:
                cells[row] = 0 if cx is None else self._of_others(cx[layer.index], None)

    def _of_others(self, states: Any, of_empty: Any) -> Any:
        """Return states (N, ...), with other ones for sequences without steps; None: zeros."""
        if self.marks.is_empty is None:
            return states
        return cupy.where(self.marks.is_empty, states.dtype.type(0) if of_empty is None else of_empty, states)

    def ends(self, hx: Any, cx: Any) -> tuple[Any, Any]:
        """Return copies of the final states, those of before for sequences without steps."""
        desc, batch = self.desc, self.x.shape[1]
        hy = cupy.empty((desc.num_pseudo_layers, batch, desc.output_size), desc.np_dtype)
        cy = None
        if desc.has_cell_state:
            cy = cupy.empty((desc.num_pseudo_layers, batch, desc.states_size), desc.np_dtype)
        for layer in self.layers:
            row = 1 if layer.direction else self.seq_len
            own, h = (
                self.arrays[f"hidden_l{layer.layer}"][row][:, layer.outputs],
                None if hx is None else hx[layer.index],
            )
            hy[layer.index] = self._of_others(own, h)
            if cy is not None:
                c = None if cx is None else cx[layer.index]
                cy[layer.index] = self._of_others(self.arrays[f"cell_{layer.index}"][row], c)
        return hy, cy


def forward(desc: RNNDescriptor, w: Any, x: Any, hx: Any, cx: Any, workspace: Workspace) -> tuple[Any, Any, Any]:
    """Run the network on x and fill the workspace; returns y, hy and cy."""
    with x.device:
        options = workspace.options
        marks, w, x, hx, cx = marks_of(options), _dense(w), _dense(x), _dense(hx), _dense(cx)
        layout = workspace_layout(desc, *x.shape[:2])
        if workspace.checkpoint_steps is not None:
            layout = tuple(block for block in layout if not block.name.startswith("gates_"))
        workspace.allocate(layout)
        resets = options.steps.resets
        initial = (None, None) if resets is None else tuple(map(_copied, resets.to(hx, cx)))
        clean = x if marks.flags is None else cupy.where((marks.flags & 1 > 0)[:, :, None], x, x.dtype.type(0))
        network = _Network(desc, w, clean, marks, initial, workspace.arrays)
        workspace.record = Record(marks, clean, initial)
        network.start(hx, cx)
        _draw_noises(network, workspace)
        for layer in network.layers:
            if layer.layer and layer.direction == 0 and desc.dropout > 0:
                _drop_outputs(network, workspace, layer.layer)
            gates, own = workspace.arrays.get(f"gates_{layer.index}"), network.call(layer, "forward")
            keeps = gates is not None
            own.forward(gates if keeps else _scratch(own), _biases(desc, layer, w), keeps)
        return network.shown(workspace.arrays[f"hidden_l{desc.num_layers - 1}"]), *network.ends(hx, cx)


def _copied(states: Any) -> Any:
    return None if states is None else states.copy()


def _scratch(call: LayerCall) -> Any:
    """Return memory for the gates of a chunk of steps."""
    longest = max(map(len, call.chunks(call.layer.columns)), default=0)
    return cupy.empty((longest, call.batch, call.layer.columns), call.dtype)


def _draw_noises(network: _Network, workspace: Workspace) -> None:
    """Draw the noises of the cell, the numbers that the CPU draws."""
    desc, cell, size, columns = network.desc, network.desc.cell, network.desc.hidden_size, {False: 0, True: 0}
    draw = kernel(common_source(desc.np_dtype), "draw")
    for number, noise in enumerate(cell.declaration.noises if desc.draws_noise else ()):
        what = (bernoulli if noise.choice else dropout_factor)(float(getattr(cell, noise.rate)), desc.np_dtype)
        first = columns[noise.per_step]
        columns[noise.per_step] += size
        for index in range(desc.num_pseudo_layers):
            array = workspace.arrays[f"{'step_' if noise.per_step else ''}noises_{index}"]
            rows, stride = array.size // array.shape[-1], array.shape[-1]
            place = address(array) + first * array.itemsize
            batch = max(network.x.shape[1], 1), workspace.options.first_row, address(network.marks.counts)
            step, stream = 0 if noise.per_step else -1, index * STREAMS + number
            given = rows, size, place, stride, *batch, step, stream, *seed_words(workspace.seed)
            launch(draw, rows * size, (*given, what.below, _bits(what.one), _bits(what.other)))


def _drop_outputs(network: _Network, workspace: Workspace, layer: int) -> None:
    """Draw the dropout mask of a layer's input, and write the input."""
    desc, arrays = network.desc, workspace.arrays
    source, target, mask = network.after(arrays[f"hidden_l{layer - 1}"]), arrays[f"input_l{layer}"], f"mask_l{layer}"
    rows, width = target.size // target.shape[-1], target.shape[-1]
    batch = max(network.x.shape[1], 1), workspace.options.first_row, address(network.marks.counts)
    given = rows, width, address(target), address(source), width, address(arrays[mask]), *batch
    given = *given, layer * STREAMS + STREAMS - 1, *seed_words(workspace.seed), _kept(desc).below
    launch(kernel(common_source(desc.np_dtype), "drop"), rows * width, (*given, _bits(_kept(desc).other)))


def _kept(desc: RNNDescriptor) -> Draw:
    """Return the distribution of what dropout between layers multiplies."""
    return dropout_factor(desc.dropout, desc.np_dtype)


def backward(
    desc: RNNDescriptor, w: Any, workspace: Workspace, dy: Any, dhy: Any, dcy: Any, dw: Any, wants_dx: bool = True
) -> tuple[Any, Any, Any, Any]:
    """Compute dx, dhx, dcx and dw from the workspace of a forward. If dw is given, the gradient is added to it."""
    with workspace.x.device:
        record, arrays, dtype = workspace.record, workspace.arrays, desc.np_dtype
        network = _Network(desc, _dense(w), record.x, record.marks, record.initial, arrays)
        batch, count = record.x.shape[1], desc.num_pseudo_layers
        dw, dy = cupy.zeros(w.shape, dtype) if dw is None else dw, _dense(dy)
        dhx = cupy.zeros((count, batch, desc.output_size), dtype) if dhy is None else dhy.copy(order="C")
        dcx = None
        if desc.has_cell_state:
            shape = count, batch, desc.states_size
            dcx = cupy.zeros(shape, dtype) if dcy is None else dcy.copy(order="C").reshape(shape)
        resets = workspace.steps.resets
        of_resets = (None, None) if resets is None else tuple(map(_zeros_like, (dhx, dcx)))
        dinputs = None
        if desc.inputs_size:
            dinputs = cupy.zeros((*record.x.shape[:2], desc.inputs_size), dtype)
        for number in reversed(range(desc.num_layers)):
            dy = _layer_backward(network, number, dy, dhx, dcx, dw, of_resets, dinputs, wants_dx)
        if resets is not None:
            if resets.from_hx:
                dhx += of_resets[0]
                if dcx is not None:
                    dcx += of_resets[1]
            elif resets.learned[0] is not None:
                add_state_gradients(desc, dw, *of_resets)
        return cupy.empty((0,), dtype) if dy is None else dy, dhx, dcx, dw


def _zeros_like(array: Any) -> Any:
    return None if array is None else cupy.zeros(array.shape, array.dtype)


def _layer_backward(
    network: _Network, number: int, dy: Any, dhx: Any, dcx: Any, dw: Any, of_resets: Any, dinputs: Any, wants_dx: bool
) -> Any:
    """Run both directions of a layer backward; returns the gradient of its input."""
    desc, arrays, source = network.desc, network.arrays, network.source(number)
    dx = cupy.empty(source.shape, desc.np_dtype) if number or wants_dx else None
    for place, layer in enumerate(one for one in network.layers if one.layer == number):
        index = layer.index
        of_own_inputs = None if dinputs is None else cupy.zeros(dinputs.shape, dinputs.dtype)
        own = tuple(None if one is None else one[index] for one in of_resets)
        gradients = Gradients(
            dy, dhx[index], None if dcx is None else dcx[index], dx, dw, of_own_inputs, own, adds_dx=place > 0
        )
        gates, bias = arrays.get(f"gates_{index}"), None
        if gates is None:
            bias = _biases(desc, layer, network.w)
        run_backward(network.call(layer, "forward"), gates, bias, gradients)
        if dinputs is not None:
            dinputs += of_own_inputs
    if number and desc.dropout > 0:
        mask, scale = arrays[f"mask_l{number}"], _bits(_kept(desc).other)
        again = kernel(common_source(desc.np_dtype), "drop_gradient")
        launch(again, dx.size, (dx.size // dx.shape[-1], dx.shape[-1], address(dx), address(mask), scale))
    if number == 0 and dinputs is not None and dx is not None:
        dx[:, :, desc.input_size :] = dinputs
    return dx


def infer(desc: RNNDescriptor, w: Any, x: Any, hx: Any, cx: Any, options: CallOptions) -> tuple[Any, Any, Any]:
    """Run the network over all steps and return y, hy and cy."""
    with x.device:
        marks, w, x, hx, cx = marks_of(options), _dense(w), _dense(x), _dense(hx), _dense(cx)
        resets = options.steps.resets
        initial = (None, None) if resets is None else resets.to(hx, cx)
        network = _Network(desc, w, x, marks, initial, _states(desc, *x.shape[:2]))
        network.start(hx, cx)
        gates = None
        for layer in network.layers:
            own = network.call(layer, "infer")
            gates = _scratch(own) if gates is None else gates
            own.forward(gates, _biases(desc, layer, w), keeps=False)
        return network.shown(network.arrays[f"hidden_l{desc.num_layers - 1}"]), *network.ends(hx, cx)


def _states(desc: RNNDescriptor, seq_len: int, batch: int) -> dict[str, Any]:
    """Return the arrays of states of an inference."""
    shape, width = states_shape(seq_len, batch, desc.num_directions), desc.num_directions * desc.output_size
    empty = partial(cupy.empty, dtype=desc.np_dtype)
    found = {f"hidden_l{layer}": empty((*shape, width)) for layer in range(desc.num_layers)}
    if desc.has_cell_state:
        found |= {f"cell_{index}": empty((*shape, desc.states_size)) for index in range(desc.num_pseudo_layers)}
    return found
