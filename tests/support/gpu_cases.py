"""Calls of cells and modes, to run on the host and on a GPU, and to compare."""

import sys
from dataclasses import dataclass

import numpy as np
from other_cells import KINDS, OWN, whole_heads

import rnnkit
from rnnkit import cells
from rnnkit.common.arrays import library_of

TOLERANCES = {"float64": 1e-12, "float32": 1e-5}
DRAWING = {
    "regularized": cells.RegularizedLSTM(0.2, 0.3),
    "variational": cells.VariationalGRU(0.3),
    "layer-norm": cells.LayerNormLSTM(),
    "layer-norm-gru": cells.LayerNormGRU(),
}
MODES = {"lstm": {}, "gru": {}, "rnn_tanh": {}, "lstm, projected": {"proj_size": 3},
         "gru, before": {"reset_after": False},
         "lstm, clipped": {"cell_clip": (-0.25, 0.3125)}, "gru, skip": {"input_mode": "skip"},
         "lstm, one bias": {"bias": "recurrent"}}  # fmt: skip
ALL = KINDS | OWN | DRAWING
# Each cell is a C program to compile. By default an activation and a state, two phases, a noise; nightly what else
# differs: heads, vectors, scalars, side inputs, means, numbers of a cell; weekly all.
BY_DEFAULT = "peephole-hard", "lem", "variational"
NIGHTLY = "slstm-heads", "indrnn", "fastgrnn", "augru", "layer-norm", "own-numbers"


@dataclass
class Case:
    """A call: its network, its arrays on the host, and its options."""

    desc: rnnkit.RNNDescriptor
    seq_len: int = 5
    batch_size: int = 4
    options: dict | None = None
    states: bool = True

    def __post_init__(self):
        desc, rng = self.desc, np.random.default_rng(0)
        draw = lambda *shape: rng.standard_normal(shape).astype(desc.np_dtype)  # noqa: E731
        rows, batch, count = desc.num_pseudo_layers, self.batch_size, len(desc.states)
        self.w, self.x = rnnkit.init_weights(desc, seed=0), draw(self.seq_len, batch, desc.input_size)
        far = [3 if name == "n" else 0 for name in desc.states]  # the normalizer of an SLSTM
        self.hx = draw(rows, batch, desc.output_size) if self.states else None
        states = [0.3 * draw(rows, batch, desc.hidden_size) + one for one in far]  # small: exponents are of them
        self.cx = as_given(states, desc) if self.states else None
        self.dy = draw(self.seq_len, batch, desc.num_directions * desc.output_size)
        self.dhy = draw(rows, batch, desc.output_size)
        self.dcy = as_given([draw(rows, batch, desc.hidden_size) for _ in range(count)], desc)
        names = [one.name for one in desc.cell.declaration.inputs]
        self.inputs = {name: draw(self.seq_len, batch, desc.hidden_size) for name in names} or None
        self.options = {"seed": 11} | (self.options or {})
        if desc.cell_clip is not None:  # cuDNN clips the initial cells, too
            self.cx = np.clip(self.cx, *(0.9 * bound for bound in desc.cell_clip)).astype(desc.np_dtype)

    def step(self, move):
        """forward and backward on the arrays that `move` gives."""
        given = {name: move(getattr(self, name)) for name in ("w", "x", "hx", "cx", "dy", "dhy", "dcy", "inputs")}
        arrays = given["w"], given["x"], given["hx"], given["cx"]
        found = rnnkit.forward(self.desc, *arrays, inputs=given["inputs"], **self.options)
        gradients = rnnkit.backward(
            self.desc, given["w"], found.workspace, *(given[name] for name in ("dy", "dhy", "dcy"))
        )
        return found, gradients

    def infer(self, move):
        options = {name: one for name, one in self.options.items() if name in ("lengths", "mask", "resets", "initial")}
        arrays = map(move, (self.w, self.x, self.hx, self.cx))
        return rnnkit.infer(self.desc, *arrays, inputs=move(self.inputs), **options)


def as_given(states, desc):
    """States as the API takes them."""
    states = [one.astype(desc.np_dtype) for one in states]
    return None if not states else states[0] if len(states) == 1 else tuple(states)


def moved(given):
    """The same on the GPU, or on the stand-in."""
    if isinstance(given, tuple):
        return tuple(map(moved, given))
    if isinstance(given, dict):
        return {name: moved(one) for name, one in given.items()}
    return None if given is None else sys.modules["cupy"].asarray(given)


def flat(given):
    """The arrays of a result, on the host."""
    if given is None:
        return []
    if isinstance(given, dict):
        given = tuple(given[name] for name in sorted(given))
    if isinstance(given, tuple):
        return [array for one in given for array in flat(one)]
    return [given.get() if hasattr(given, "get") else given] if library_of(given) is not None else []


def assert_near(found, expected, tolerance):
    found, expected = flat(tuple(found)), flat(tuple(expected))
    assert len(found) == len(expected)
    for number, (own, other) in enumerate(zip(found, expected, strict=True)):
        assert own.shape == other.shape and own.dtype == other.dtype, number
        scale = max(1, np.abs(other).max(initial=0))
        assert np.isfinite(own).all() and np.abs(own - other).max(initial=0) <= tolerance * scale, number


def assert_as_on_the_host(case):
    tolerance = TOLERANCES[case.desc.dtype]
    expected, gradients = case.step(lambda one: one)
    found, found_gradients = case.step(moved)
    assert_near(found[:3], expected[:3], tolerance)
    assert_near(found_gradients, gradients, tolerance)
    assert_near(case.infer(moved)[:3], case.infer(lambda one: one)[:3], tolerance)
    return found, expected


def desc_of(name, dtype="float64", layers=2, **options):
    if name in MODES:
        return rnnkit.RNNDescriptor(name.split(",")[0], 4, 4, layers, True, dtype=dtype, **MODES[name] | options)
    kind = ALL[name]
    size = whole_heads(kind, 8 if kind.declaration.means else 4)  # of few units a variance may be near 0
    return rnnkit.RNNDescriptor(kind, size, size, layers, True, dtype=dtype, **options)
