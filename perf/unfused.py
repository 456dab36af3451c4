"""The same networks step by step: NumPy's products for each cell, and one compiled elementwise kernel.

In float64 it is the reference that every engine is compared with before it is timed; it is also the non-fused row of
the tables. It shares the cells' equations with the engine, but not its products, time loop or layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import rnnkit
from rnnkit.errors import message
from rnnkit_kernels.machine.jit import kernel
from rnnkit_kernels.machine.matrix import Matrix, Range
from rnnkit_kernels.operands import Gradients, Operands
from rnnkit_kernels.stages import runner

_activate_rows = runner(lambda declaration: declaration.phases[0].forward)
_differentiate_rows = runner(lambda declaration: declaration.phases[0].gradient)


@kernel
def _activate(cell, operands, units):
    _activate_rows(cell, operands, None, units, Range(0, operands.gates.rows.size), Range(0, units))


@kernel
def _differentiate(cell, operands, gradients, units):
    _differentiate_rows(cell, operands, gradients, units, Range(0, operands.gates.rows.size), Range(0, units))


_NO_VECTORS = np.empty((1, 0))  # no mode's cell has any


def _rows(array: np.ndarray) -> Matrix:
    """The rows of an array (N, ...), for a kernel."""
    return Matrix(array.reshape(-1), np.arange(len(array)), 0, array[:1].size)


def _operands(gates, h, m, c, c_next) -> Operands:
    h, gates, m, c, c_next, vectors = map(_rows, (h, gates, m, c, c_next, _NO_VECTORS.astype(h.dtype)))
    return Operands(
        gates=gates, hidden_prev=h, hidden=m, units=m, states_prev=c, states=c_next, vectors=vectors
    )  # fmt: skip


class _Step(NamedTuple):
    """Saved values of one step of one pseudo-layer, for backward."""

    x: np.ndarray
    h: np.ndarray
    c: np.ndarray
    c_next: np.ndarray
    gates: np.ndarray  # (N, slots, H)
    m: np.ndarray  # the output before the projection
    active: np.ndarray | None  # (N, 1), which sequences have this step; None: all


def _blocks(desc: rnnkit.RNNDescriptor, w: np.ndarray) -> list[dict[str, np.ndarray]]:
    """The views of each pseudo-layer by kind, "weight_ih" for example."""
    blocks = [{} for _ in range(desc.num_pseudo_layers)]
    for name, view in rnnkit.weight_views(desc, w).items():
        kind, place = name.rsplit("_l", 1)
        layer, _, reverse = place.partition("_")
        blocks[int(layer) * desc.num_directions + bool(reverse)][kind] = view
    return blocks


def _times(count: int, direction: int) -> range:
    return range(count)[::-1] if direction else range(count)


class Unfused:
    """One network without options beyond the cases': no skip input, clip or dropout, both biases, reset after."""

    def __init__(self, desc: rnnkit.RNNDescriptor, w: np.ndarray) -> None:
        self.cell = desc.cell
        plain = replace(desc, bias="both", input_mode="linear", dropout=0.0, cell_clip=None, reset_after=True)
        if desc != plain:
            expected = "have the default of bias, input_mode, dropout, cell_clip and reset_after"
            raise ValueError(message("unfused", "desc", expected, repr(desc)))
        self.desc, self.size = desc, w.size
        self.blocks = _blocks(desc, w)

    def forward(self, x: np.ndarray, hx: Any = None, cx: Any = None, lengths: Any = None, tape: list | None = None):
        """Return y, hy and cy (None but for the LSTM); the steps go to the tape, if there is one."""
        desc, finals = self.desc, []
        sizes = desc.output_size, desc.hidden_size
        for _ in range(desc.num_layers):
            halves = []
            for _ in range(desc.num_directions):
                index = len(finals)
                h, c = (
                    np.zeros((x.shape[1], size), x.dtype) if states is None else states[index]
                    for states, size in zip((hx, cx), sizes, strict=True)
                )
                y, h, c = self._sequence(x, h, c, lengths, index, tape)
                halves.append(y)
                finals.append((h, c))
            x = halves[0] if len(halves) == 1 else np.concatenate(halves, axis=2)
        hy, cy = (np.stack(states) for states in zip(*finals, strict=True))
        return x, hy, cy if desc.has_cell_state else None

    def _sequence(self, x, h, c, lengths, index, tape):
        y = np.zeros((*x.shape[:2], self.desc.output_size), x.dtype)
        steps = []
        for t in _times(len(x), index % self.desc.num_directions):
            active = None if lengths is None else (t < lengths)[:, None]
            step, h_next, c_next = self._step(x[t], h, c, active, self.blocks[index])
            h = h_next if active is None else np.where(active, h_next, h)
            c = c_next if active is None else np.where(active, c_next, c)
            y[t] = h if active is None else np.where(active, h, 0)
            if tape is not None:
                steps.append(step)
        if tape is not None:
            tape.append(steps)
        return y, h, c

    def _step(self, x, h, c, active, block):
        desc, declaration = self.desc, self.cell.declaration
        shape = len(x), -1, desc.hidden_size
        ax = (x @ block["weight_ih"].T + block["bias_ih"]).reshape(shape)
        ah = (h @ block["weight_hh"].T + block["bias_hh"]).reshape(shape)
        gates = np.zeros((len(x), len(declaration.slots), desc.hidden_size), x.dtype)
        for product, sums in zip(declaration.products, (ax, ah), strict=True):
            gates[:, product.slots] += sums[:, declaration.rows_of(product.slots)]
        m, c_next = np.empty((len(x), desc.hidden_size), x.dtype), np.empty_like(c)
        _activate(self.cell, _operands(gates, h, m, c, c_next), desc.hidden_size)
        return _Step(x, h, c, c_next, gates, m, active), m @ block["weight_hr"].T if desc.projected else m, c_next

    def backward(self, tape: list, dy: np.ndarray):
        """Return dx and dw, given dy alone."""
        desc, dw = self.desc, np.zeros(self.size, dy.dtype)
        gradients = _blocks(desc, dw)
        for layer in reversed(range(desc.num_layers)):
            halves = np.split(dy, desc.num_directions, axis=2)
            dy = 0
            for direction, half in enumerate(halves):
                index = layer * desc.num_directions + direction
                dy = dy + self._sequence_backward(half, tape[index], self.blocks[index], gradients[index], direction)
        return dy, dw

    def _sequence_backward(self, dy, steps, block, gradient, direction):
        dh = np.zeros((dy.shape[1], self.desc.output_size), dy.dtype)
        dc = np.zeros((dy.shape[1], self.desc.hidden_size), dy.dtype)
        dx = np.empty((*dy.shape[:2], steps[0].x.shape[1]), dy.dtype)
        times = reversed(_times(len(dy), direction))
        for t, step in zip(times, reversed(steps), strict=True):
            active = True if step.active is None else step.active
            dh_step, dc_step = (np.where(active, d, 0) for d in (dh + dy[t], dc))
            dx[t], dh_before, dc_before = self._step_backward(dh_step, dc_step, step, block, gradient)
            dh, dc = np.where(active, dh_before, dh), np.where(active, dc_before, dc)
        return dx

    def _step_backward(self, dh, dc, step, block, gradient):
        desc, dm = self.desc, dh
        if desc.projected:
            gradient["weight_hr"] += dh.T @ step.m
            dm = dh @ block["weight_hr"]
        declaration = self.cell.declaration
        dgates, through = np.zeros_like(step.gates), np.zeros_like(dm)
        operands = _operands(step.gates, step.h, step.m, step.c, step.c_next)
        dgates_rows, dm_rows, through_rows, dc_rows = map(_rows, (dgates, dm, through, dc))
        gradients = Gradients(
            y=dm_rows, x=dm_rows, gates=dgates_rows, units=dm_rows, hidden=through_rows, states=dc_rows
        )  # fmt: skip
        _differentiate(self.cell, operands, gradients, desc.hidden_size)
        da, db = (self._gates_of(dgates, product.slots) for product in declaration.products)
        gradient["weight_ih"] += da.T @ step.x
        gradient["weight_hh"] += db.T @ step.h
        gradient["bias_ih"] += da.sum(axis=0)
        gradient["bias_hh"] += db.sum(axis=0)
        return da @ block["weight_ih"], db @ block["weight_hh"] + (through if declaration.carries_hidden else 0), dc

    def _gates_of(self, dgates: np.ndarray, slots: range) -> np.ndarray:
        """Return these slots as (N, G*H), with the gates in the order of the weights."""
        order = np.argsort(self.cell.declaration.rows_of(slots))
        return dgates[:, slots.start + order].reshape(len(dgates), -1)
