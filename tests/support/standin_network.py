"""The mathematics of the stand-in for libcudnn: forward by the naive twin, backward by its chain rule, step by step.

Like `reference` it shares no line and no import with rnnkit, so what a GPU test compares is two implementations.

cuDNN clips a cell where it is read, the initial one too, and returns it as it was. So here: the gradient of a cell
passes a reader only where it is strictly inside the bounds, and that of the returned cells passes everywhere.
"""

from types import SimpleNamespace

import numpy as np
import reference
from reference import sigmoid
from standin_memory import GATES, named_weights


class Network:
    """A network on float64 arrays: w flat, x (T, N, I), hx and cx (L*D, N, ...), cx None without cells."""

    def __init__(self, fields, clip, masks, lengths, w, x, hx, cx):
        self.fields, self.mode, self.size = fields, fields["mode"], fields["hidden_size"]
        self.low, self.high = clip or (-np.inf, np.inf)
        self.masks, self.lengths, self.w, self.x, self.hx, self.cx = masks, lengths, w, x, hx, cx
        self.directions = 1 + fields["bidirectional"]
        self.named = named_weights(fields, w)
        names = "mode", "hidden_size", "num_layers", "bidirectional", "proj_size"
        options = {name: fields[name] for name in names}
        start = None if cx is None else self.clipped(cx)
        self.result = reference.forward(
            self.named, x, hx, start, **options, cell_clip=clip, lengths=lengths, masks=masks
        )

    def clipped(self, cells):
        return np.clip(cells, self.low, self.high)

    def inside(self, cells):
        return (cells > self.low) & (cells < self.high)

    def layer_input(self, layer):
        """(T, N, ...): what comes into a layer."""
        if layer == 0:
            return self.x
        below = self.result.hidden[(layer - 1) * self.directions : layer * self.directions]
        y = np.concatenate(below, axis=2)
        return y if self.masks is None else y * self.masks[layer - 1]

    def steps(self, row):
        """(n, t, h, c) of every step of a pseudo-layer in its order: the states are those that the step reads."""
        for n, length in enumerate(self.lengths):
            h, c = self.hx[row, n], None if self.cx is None else self.cx[row, n]
            for t in reversed(range(length)) if row % self.directions else range(length):
                yield n, t, h, c
                h, c = self.result.hidden[row][t, n], self.result.cell[row][t, n]

    def last_cells(self):
        """(L*D, N, H): the cells behind the last steps before they are clipped; None without cells."""
        if self.cx is None or np.isinf([self.low, self.high]).all():
            return self.result.cy
        found = np.empty_like(self.cx)
        for row in range(len(found)):
            layer, direction = divmod(row, self.directions)
            block, x = reference.pseudo_layer(self.named, layer, direction), self.layer_input(layer)
            for n, t, h, c in self.steps(row):
                found[row, n] = reference.lstm_step(block, x[t, n], h, self.clipped(c), self.size, None)[1]
        return found

    def backward(self, dy, dhy, dcy):
        """Gradients (dx, dhx, dcx, dw) of the loss whose gradients by y, hy and the raw cells cy are given."""
        dw, dhx, dcx = np.zeros_like(self.w), dhy.copy(), None if dcy is None else dcy.copy()
        named = named_weights(self.fields, dw)
        for layer in reversed(range(self.fields["num_layers"])):
            x = self.layer_input(layer)
            dx = np.zeros_like(x)
            for direction, half in enumerate(np.split(dy, self.directions, axis=2)):
                row = layer * self.directions + direction
                block, into = (reference.pseudo_layer(weights, layer, direction) for weights in (self.named, named))
                for n, t, h, c in reversed(list(self.steps(row))):
                    dc = None if dcx is None else dcx[row, n]
                    found = self.step_gradient(block, into, x[t, n], h, c, dhx[row, n] + half[t, n], dc)
                    dx[t, n] += found.dx
                    dhx[row, n] = found.dh
                    if dcx is not None:
                        dcx[row, n] = found.dc
            dy = dx if layer == 0 or self.masks is None else dx * self.masks[layer - 1]
        return dx, dhx, dcx, dw

    def step_gradient(self, block, into, x, h, c, dh, dc):
        """Gradients by x, h and the raw c that a step reads; those by the weights are added into the named ones."""
        step = {"lstm": self.lstm, "gru": self.gru}.get(self.mode, self.vanilla)
        found = step(block, into, x, h, c, dh, dc)
        for matrix, bias, da, values in (
            (into.weight_ih, into.bias_ih, found.input_side, x),
            (into.weight_hh, into.bias_hh, found.recurrent_side, h),
        ):
            if matrix is not None:
                matrix += np.outer(da, values)
            if bias is not None:
                bias += da
        if block.weight_ih is None:
            found.dx = found.input_side.reshape(GATES[self.mode], -1).sum(0)
        else:
            found.dx = block.weight_ih.T @ found.input_side
        found.dh = found.dh + block.weight_hh.T @ found.recurrent_side
        return found

    def vanilla(self, block, into, x, h, c, dh, dc):
        a = block.both_sides(0, x, h, self.size)
        da = dh * (a > 0) if self.mode == "rnn_relu" else dh * (1 - np.tanh(a) ** 2)
        return SimpleNamespace(input_side=da, recurrent_side=da, dh=0)

    def gru(self, block, into, x, h, c, dh, dc):
        r, z = (sigmoid(block.both_sides(gate, x, h, self.size)) for gate in (0, 1))
        recurrent = block.recurrent_side(2, h, self.size)
        n = np.tanh(block.input_side(2, x, self.size) + r * recurrent)
        dn = dh * (1 - z) * (1 - n**2)
        dr, dz = dn * recurrent * r * (1 - r), dh * (h - n) * z * (1 - z)
        sides = dict(input_side=np.concatenate((dr, dz, dn)), recurrent_side=np.concatenate((dr, dz, dn * r)))
        return SimpleNamespace(**sides, dh=dh * z)

    def lstm(self, block, into, x, h, c, dh, dc):
        i, f, o = (sigmoid(block.both_sides(gate, x, h, self.size)) for gate in (0, 1, 3))
        g = np.tanh(block.both_sides(2, x, h, self.size))
        raw = f * self.clipped(c) + i * g
        out = np.tanh(self.clipped(raw))
        if block.weight_hr is not None:
            into.weight_hr[...] += np.outer(dh, o * out)
            dh = block.weight_hr.T @ dh
        dc = dc + dh * o * (1 - out**2) * self.inside(raw)
        gates = dc * g * i * (1 - i), dc * self.clipped(c) * f * (1 - f), dc * i * (1 - g**2), dh * out * o * (1 - o)
        da = np.concatenate(gates)
        return SimpleNamespace(input_side=da, recurrent_side=da, dh=0, dc=dc * f * self.inside(c))
