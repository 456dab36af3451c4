"""A step of every cell, what it takes, and the engine's results and gradients: for `rnnkit.cells.step`."""

import math
from typing import NamedTuple

import numpy as np
from other_cells import DEFAULT, KINDS, OWN, whole_heads
from several_states import arrays_of, as_given

import rnnkit
from examples.gallery.page import CELLS as PAGE
from rnnkit.cells import cell, derivative, forward, step
from rnnkit_kernels.cells.running import with_defaults

N, T, INPUT, BOUND = 5, 6, 3, 1e-12
MODES = {
    "rnn_tanh": {}, "rnn_relu": {}, "gru": {}, "reset before": {"mode": "gru", "reset_after": False}, "lstm": {},
    "clipped": {"mode": "lstm", "cell_clip": (-0.3, 0.4)}, "projected": {"mode": "lstm", "proj_size": 3},
    "skipped": {"mode": "gru", "input_mode": "skip", "input_size": 8},
}  # fmt: skip
GALLERY = {name: with_defaults(kind) for name, kind in PAGE.items() if kind.__module__.startswith("examples")}
FIELDS = {name: {"mode": name} | options for name, options in MODES.items()}
FIELDS |= {name: {"mode": kind} for name, kind in (KINDS | OWN | GALLERY).items()}
"""Name -> fields of a descriptor, for every cell."""
SHIPPED = {name for name, dtype in DEFAULT if dtype == "float64"}  # their kernels are compiled by others, too
BY_DEFAULT = [name for name in FIELDS if name in MODES or name in SHIPPED]


@derivative(math.atan, numpy=np.arctan)
def of_atan(x):
    return 1 / (1 + x * x)


@cell(gates="a")
class Turning(NamedTuple):
    """Its function has a form for NumPy only."""

    @forward("h")
    def step(self, a, h_prev):
        return math.atan(a) + 0.5 * h_prev


class Case:
    """A layer of a cell, what a step takes, and the engine's results and gradients."""

    def __init__(self, fields):
        kind, rng = fields["mode"], np.random.default_rng(0)
        size = 8 if isinstance(kind, str) else whole_heads(kind, 8)
        inputs = INPUT if isinstance(kind, str) or kind.declaration.input_gates else 0
        desc = self.desc = rnnkit.RNNDescriptor(**{"input_size": inputs} | fields, hidden_size=size, dtype="float64")
        w, self.x = rnnkit.init_weights(desc, 0), rng.normal(size=(N, desc.input_size))
        self.weights = {name.removesuffix("_l0"): one for name, one in rnnkit.weight_views(desc, w).items()}
        self.states = [rng.normal(size=(N, desc.output_size))]
        self.states += [rng.normal(size=(N, size)) + (3 if name == "n" else 0) for name in desc.states]
        self.inputs = {one.name: rng.random((N, size)) for one in desc.cell.declaration.inputs}
        self.cotangents = [rng.normal(size=one.shape) for one in self.states]
        given = self.x[None], self.states[0][None], as_given([one[None] for one in self.states[1:]])
        sides = {name: one[None] for name, one in self.inputs.items()} or None
        found = rnnkit.forward(desc.evaluating, w, *given, inputs=sides)
        dhy, *dcy = (one[None] for one in self.cotangents)
        back = rnnkit.backward(desc.evaluating, w, found.workspace, None, dhy, as_given(dcy))
        self.values = [found.hy[0], *(one[0] for one in arrays_of(found.cy))]
        of_weights = {name.removesuffix("_l0"): one for name, one in rnnkit.weight_views(desc, back.dw).items()}
        self.gradients = {**of_weights, "x": back.dx[0], "h": back.dhx[0]}
        self.gradients |= dict(zip(desc.states, (one[0] for one in arrays_of(back.dcx)), strict=True))

    def leaves(self):
        return {**self.weights, "x": self.x, **dict(zip(("h", *self.desc.states), self.states, strict=True))}

    def run(self, backend, leaves, inputs):
        states = [leaves[name] for name in ("h", *self.desc.states)]
        weights = {name: leaves[name] for name in self.weights}
        return step(self.desc, backend)(weights, leaves["x"], *states, inputs=inputs)


def assert_near(name, found, expected):
    found = np.asarray(found)
    assert found.shape == expected.shape, name
    worst = np.abs(found - expected).max(initial=0) / max(1, np.abs(expected).max(initial=0))
    assert worst < BOUND, f"{name}: {worst}"


def assert_samples(net, x, found):
    """The gradients of the weights by each sequence, (N, num_weights), of the sum of y."""
    for n, own in enumerate(found):
        result = net.forward(x[:, n : n + 1])
        assert_near(str(n), own, net.backward(result.workspace, np.ones_like(result.y)).dw)
