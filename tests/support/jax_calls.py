"""Networks of every kind, a call of each, and its results and gradients by the engine: for tests inside JAX."""

from typing import NamedTuple

import jax
import jax.export  # jax.export is missing without in old versions
import jax.numpy as jnp
import numpy as np
from problems import Problem
from several_states import arrays_of

import rnnkit
import rnnkit.jax
from rnnkit.cells import AUGRU, SLSTM, MinGRU, RegularizedLSTM, cell, forward, tanh

T, N = 6, 5
LENGTHS = np.array([6, 0, 3, 5, 6])
MASK = np.random.default_rng(3).random((T, N)) < 0.6
RESETS = MASK & (np.random.default_rng(4).random((T, N)) < 0.5)


@cell(gates="g c")
class Leaking(NamedTuple):
    """A cell of the user's."""

    rate: float = 0.5

    @forward("h")
    def step(self, g, c, h_prev):
        return h_prev + self.rate * tanh(g) * (tanh(c) - h_prev)


NETWORKS = {
    "vanilla": dict(mode="rnn_relu", bias="input"), "lstm": dict(mode="lstm", num_layers=2, bidirectional=True),
    "gru": dict(mode="gru", num_layers=2, bias="none"), "reset before": dict(mode="gru", reset_after=False),
    "clipped": dict(mode="lstm", cell_clip=(-0.3, 0.4)), "projected": dict(mode="lstm", proj_size=3, hidden_size=6),
    "several states": dict(mode=SLSTM(), num_layers=2), "shipped": dict(mode=MinGRU(), bidirectional=True),
    "own": dict(mode=Leaking(0.25)), "side inputs": dict(mode=AUGRU()), "learned": dict(mode="lstm", states=False),
    "dropout": dict(mode="gru", num_layers=3, dropout=0.4),
    "noises": dict(mode=RegularizedLSTM(zoneout=0.3, recurrent_dropout=0.4), bidirectional=True, hidden_size=8),
}  # fmt: skip
OPTIONS = {
    "nothing": {}, "lengths": dict(lengths=LENGTHS), "mask": dict(mask=MASK, lengths=LENGTHS),
    "resets": dict(resets=RESETS), "resets to hx": dict(resets=RESETS, initial="hx", lengths=LENGTHS),
}  # fmt: skip
DRAWING = "dropout", "noises"


class Case:
    """A network, the arguments of a call, and cotangents."""

    def __init__(self, kind, dtype="float32", options=None, states=True):
        fields = {"states": states} | NETWORKS[kind]
        problem = Problem(**fields, seq_len=T, batch_size=N, dtype=dtype)
        desc = problem.desc
        if kind == "learned":
            sizes = desc.mode, desc.input_size, desc.hidden_size
            desc = rnnkit.RNNDescriptor(*sizes, num_layers=2, dtype=dtype, learned_initial_state=True)
        rng = np.random.default_rng(5)
        self.desc, self.x, self.hx, self.cx = desc, problem.x, problem.hx, problem.cx
        self.w = problem.w if kind != "learned" else rng.uniform(-0.4, 0.4, rnnkit.num_weights(desc)).astype(dtype)
        self.options = dict(OPTIONS[options or "nothing"])
        if kind in DRAWING:
            self.options["seed"] = 2**40 + 7
        self.inputs = {
            one.name: rng.random((T, N, desc.hidden_size)).astype(dtype) for one in desc.cell.declaration.inputs
        }
        if self.inputs:
            self.options["inputs"] = self.inputs
        self.result = rnnkit.forward(desc if kind in DRAWING else desc.evaluating, self.w, *self.arrays, **self.options)
        self.cotangents = [rng.normal(size=one.shape).astype(dtype) for one in self.values(self.result)]
        dy, dhy, *dcy = self.cotangents
        dcy = None if not dcy else dcy[0] if len(dcy) == 1 else tuple(dcy)
        self.gradients = rnnkit.backward(self.result.workspace.desc, self.w, self.result.workspace, dy, dhy, dcy)

    @property
    def arrays(self):
        return self.x, self.hx, self.cx

    @staticmethod
    def values(result):
        """y, hy and the other states."""
        return [result[0], result[1], *arrays_of(result[2])]

    def run(self, w, x, hx, cx, **options):
        return rnnkit.jax.rnn(self.desc, w, x, hx, cx, **self.options | options)

    def loss(self, w, x, hx, cx, **options):
        pairs = zip(self.values(self.run(w, x, hx, cx, **options)), self.cotangents, strict=True)
        return sum(jnp.vdot(one, d) for one, d in pairs)

    def both(self):
        """The results and the gradients, in one program."""
        run = lambda *given: (self.run(*given), jax.grad(self.loss, (0, 1, 2, 3))(*given))  # noqa: E731
        return jax.jit(run)(*self.given)

    @property
    def given(self):
        """w, x, hx and cx as JAX's arrays."""
        return jax.tree.map(jnp.asarray, (self.w, *self.arrays))

    def expected_gradients(self):
        """Of the engine, for w, x, hx and cx."""
        dx, dhx, dcx, dw, *_ = self.gradients
        return dw, dx, None if self.hx is None else dhx, None if self.cx is None else dcx


def assert_same(found, expected):
    """Raise unless all arrays have equal bits."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def assert_close(found, expected, tolerance=1e-10):
    """Raise unless all arrays are near, by the largest number of each."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert one.shape == other.shape
        assert np.abs(one - other).max(initial=0) <= tolerance * max(1, np.abs(other).max(initial=0))


def narrowed():
    """Return a context in which JAX has no float64."""
    return jax.enable_x64(False) if hasattr(jax, "enable_x64") else jax.experimental.disable_x64()
