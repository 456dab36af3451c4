"""The same networks step by step: NumPy's products for each cell, and one compiled elementwise kernel.

It is the reference that every engine is compared with before it is timed (in float64), and the non-fused row of the
tables. It shares nothing with the engine but tanh and sigmoid. Equations: `rnnkit.descriptor`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import rnnkit
from perf.cases import of_mode
from rnnkit.errors import message
from rnnkit.kernels.activations import sigmoid, tanh
from rnnkit.kernels.jit import kernel

# Elementwise kernels, all of one signature. ax = W x + bW and ah = R h + bR, (N, G*H), become what backward needs.
# `c` is the LSTM's cell before the step, for the others the hidden state; `through` is the gradient of h that does not
# go through R. Each gate's columns are sliced and its values read before any is written: so LLVM vectorises the loops.


@kernel
def _vanilla(ax, ah, c, h, c_next, relu):
    for n in range(len(h)):
        a, b, y = ax[n], ah[n], h[n]
        for j in range(y.size):
            total = a[j] + b[j]
            value = (total if total > 0 else total - total) if relu else tanh(total)
            a[j] = y[j] = value


@kernel
def _vanilla_backward(dh, dc, ax, ah, c, c_next, da, db, through, relu):
    zero, one = dh.dtype.type(0), dh.dtype.type(1)
    for n in range(len(dh)):
        dy, y, d = dh[n], ax[n], da[n]
        for j in range(dy.size):
            d[j] = dy[j] * ((one if y[j] > zero else zero) if relu else one - y[j] * y[j])


@kernel
def _lstm(ax, ah, c, h, c_next, relu):
    size = h.shape[1]
    for n in range(len(h)):
        a, b, before, after, y = ax[n], ah[n], c[n], c_next[n], h[n]
        for j in range(a.size):
            a[j] += b[j]
        i, f, g, o = a[:size], a[size : 2 * size], a[2 * size : 3 * size], a[3 * size :]
        for j in range(y.size):
            vi, vf, vg, vo = sigmoid(i[j]), sigmoid(f[j]), tanh(g[j]), sigmoid(o[j])
            cell = vf * before[j] + vi * vg
            i[j], f[j], g[j], o[j], after[j] = vi, vf, vg, vo, cell
            y[j] = vo * tanh(cell)


@kernel
def _lstm_backward(dh, dc, ax, ah, c, c_next, da, db, through, relu):
    one, size = dh.dtype.type(1), dh.shape[1]
    for n in range(len(dh)):
        a, d, before, after, dy, dcell = ax[n], da[n], c[n], c_next[n], dh[n], dc[n]
        i, f, g, o = a[:size], a[size : 2 * size], a[2 * size : 3 * size], a[3 * size :]
        di, df, dg, do = d[:size], d[size : 2 * size], d[2 * size : 3 * size], d[3 * size :]
        for j in range(dy.size):
            y = tanh(after[j])
            do[j] = dy[j] * y * o[j] * (one - o[j])
            total = dcell[j] + dy[j] * o[j] * (one - y * y)
            di[j] = total * g[j] * i[j] * (one - i[j])
            df[j] = total * before[j] * f[j] * (one - f[j])
            dg[j] = total * i[j] * (one - g[j] * g[j])
            dcell[j] = total * f[j]


@kernel
def _gru(ax, ah, c, h, c_next, relu):
    one, size = h.dtype.type(1), h.shape[1]
    for n in range(len(h)):
        a, b, before, y = ax[n], ah[n], c[n], h[n]
        for j in range(2 * size):
            a[j] += b[j]
        r, z, g, m = a[:size], a[size : 2 * size], a[2 * size :], b[2 * size :]
        for j in range(y.size):
            vr, vz = sigmoid(r[j]), sigmoid(z[j])
            vg = tanh(g[j] + vr * m[j])
            r[j], z[j], g[j] = vr, vz, vg
            y[j] = (one - vz) * vg + vz * before[j]


@kernel
def _gru_backward(dh, dc, ax, ah, c, c_next, da, db, through, relu):
    one, size = dh.dtype.type(1), dh.shape[1]
    for n in range(len(dh)):
        a, d, e, before, dy, rest = ax[n], da[n], db[n], c[n], dh[n], through[n]
        r, z, g, m = a[:size], a[size : 2 * size], a[2 * size :], ah[n, 2 * size :]
        dr, dz, dg, dm = d[:size], d[size : 2 * size], d[2 * size :], e[2 * size :]
        for j in range(dy.size):
            total = dy[j] * (one - z[j]) * (one - g[j] * g[j])
            dr[j] = total * m[j] * r[j] * (one - r[j])
            dz[j] = dy[j] * (before[j] - g[j]) * z[j] * (one - z[j])
            dg[j], dm[j], rest[j] = total, total * r[j], dy[j] * z[j]
        for j in range(2 * size):
            e[j] = d[j]


class _Cell(NamedTuple):
    forward: Any
    backward: Any
    relu: bool = False
    two_gradients: bool = False  # W x and R h have one each, and h one that does not go through R


_CELLS = {
    "rnn_relu": _Cell(_vanilla, _vanilla_backward, relu=True),
    "rnn_tanh": _Cell(_vanilla, _vanilla_backward),
    "lstm": _Cell(_lstm, _lstm_backward),
    "gru": _Cell(_gru, _gru_backward, two_gradients=True),
}


class _Step(NamedTuple):
    """What backward needs of one step of one pseudo-layer."""

    x: np.ndarray
    h: np.ndarray
    c: np.ndarray
    c_next: np.ndarray
    ax: np.ndarray
    ah: np.ndarray
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
        self.cell = of_mode(desc.mode, _CELLS, "unfused")
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
        return x, hy, cy if desc.has_cell else None

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
        desc = self.desc
        m, c_next = (np.empty((len(x), desc.hidden_size), x.dtype) for _ in range(2))
        before = c if desc.has_cell else h
        ax, ah = x @ block["weight_ih"].T + block["bias_ih"], h @ block["weight_hh"].T + block["bias_hh"]
        self.cell.forward(ax, ah, before, m, c_next, self.cell.relu)
        step = _Step(x, h, before, c_next, ax, ah, m, active)
        return step, m @ block["weight_hr"].T if desc.projected else m, c_next

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
        da = np.empty_like(step.ax)
        db = np.empty_like(da) if self.cell.two_gradients else da
        through = np.empty_like(dm)
        self.cell.backward(dm, dc, step.ax, step.ah, step.c, step.c_next, da, db, through, self.cell.relu)
        gradient["weight_ih"] += da.T @ step.x
        gradient["weight_hh"] += db.T @ step.h
        gradient["bias_ih"] += da.sum(axis=0)
        gradient["bias_hh"] += db.sum(axis=0)
        before = db @ block["weight_hh"]
        return da @ block["weight_ih"], before + through if self.cell.two_gradients else before, dc
