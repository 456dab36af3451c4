"""One network with its arrays, all drawn from one seed: what every test runs on."""

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import reference
from combinations import nightly
from other_cells import KINDS, OWN, cases, twin_activations, whole_heads
from several_states import arrays_of, as_given

import rnnkit
from rnnkit.common.lazy import lazy


@dataclass(frozen=True)
class Problem:
    """A descriptor's fields, the sizes of a batch and the seed of all values.

    Every value is a float32 number in either dtype, so a problem and its twin in the other dtype are the same.
    """

    mode: object  # a mode's name or a cell
    input_size: int = 3
    hidden_size: int = 4
    num_layers: int = 1
    bidirectional: bool = False
    bias: str = "both"
    input_mode: str = "linear"
    proj_size: int | None = None
    dropout: float = 0.0
    cell_clip: tuple[float, float] | None = None
    reset_after: bool = True
    dtype: str = "float64"
    allow_tf32: bool = False
    seq_len: int = 4
    batch_size: int = 3
    lengths: tuple[int, ...] | None = None
    masked: bool = False  # whether steps are skipped, see `mask`
    states: bool = True  # initial states given, or None
    seed: int = 0

    @lazy
    def desc(self):
        names = {one.name for one in fields(rnnkit.RNNDescriptor)}
        return rnnkit.RNNDescriptor(**{name: value for name, value in vars(self).items() if name in names})

    @property
    def is_own(self):
        """Whether the mode is a cell with equations of its own."""
        return not isinstance(self.mode, str)

    @property
    def directions(self):
        return 2 if self.bidirectional else 1

    @property
    def output_size(self):
        return self.proj_size or self.hidden_size

    @property
    def hidden_shape(self):
        return (self.num_layers * self.directions, self.batch_size, self.output_size)

    @property
    def cell_shape(self):
        return (self.num_layers * self.directions, self.batch_size, self.hidden_size)

    @property
    def valid(self):
        """(T, N) booleans: True up to each sequence's length."""
        lengths = [self.seq_len] * self.batch_size if self.lengths is None else self.lengths
        return np.arange(self.seq_len)[:, None] < np.array(lengths)[None]

    def draw(self, stream, shape):
        values = np.random.default_rng([self.seed, *np.ravel(stream)]).standard_normal(shape, np.float32)
        return values.astype(self.dtype)

    def draw_states(self, stream):
        """One array for every state besides h."""
        count = len(self.desc.states)
        return [self.draw([stream, number] if number else stream, self.cell_shape) for number in range(count)]

    @lazy
    def w(self):
        """Scaled by 1/sqrt(H), so that states keep their size through steps and layers."""
        values = np.random.default_rng([self.seed, 0]).uniform(-1, 1, rnnkit.num_weights(self.desc))
        return (values / np.sqrt(self.hidden_size)).astype(np.float32).astype(self.dtype)

    @lazy
    def x(self):
        return self.draw(1, (self.seq_len, self.batch_size, self.input_size))

    @lazy
    def hx(self):
        return self.draw(2, self.hidden_shape) if self.states else None

    @lazy
    def cx(self):
        """The states besides h; the normalizer of an SLSTM is far from 0."""
        if not self.states:
            return None
        far = [3 if name == "n" else 0 for name in self.desc.states]
        return as_given([state + one for state, one in zip(self.draw_states(3), far, strict=True)])

    @lazy
    def lengths_array(self):
        return None if self.lengths is None else np.array(self.lengths, np.int64)

    @lazy
    def mask(self):
        """(T, N): steps to skip before, between and after others, in the last sequence all; None unless `masked`."""
        if not self.masked:
            return None
        found = np.random.default_rng([self.seed, 7]).random((self.seq_len, self.batch_size)) < 0.6
        found[:2, 0], found[-2:, 1], found[:, 2], found[:, -1] = False, False, True, False
        return found

    @property
    def options(self):
        """Options of forward and infer."""
        return {"lengths": self.lengths_array, "mask": self.mask}

    @lazy
    def dy(self):
        return self.draw(4, (self.seq_len, self.batch_size, self.directions * self.output_size))

    @lazy
    def dhy(self):
        return self.draw(5, self.hidden_shape)

    @lazy
    def dcy(self):
        return as_given(self.draw_states(6))

    @property
    def inputs(self):
        """w, x, hx, cx: the positional arguments after the descriptor."""
        return self.w, self.x, self.hx, self.cx

    @property
    def cotangents(self):
        """dy, dhy, dcy: the positional arguments of backward after the workspace."""
        return self.dy, self.dhy, self.dcy

    @property
    def views(self):
        return rnnkit.weight_views(self.desc, self.w)

    def twin(self, **changes):
        return replace(self, **changes)

    def forward(self, **options):
        return rnnkit.forward(self.desc, *self.inputs, **self.options | {"seed": self.seed} | options)

    def infer(self):
        return rnnkit.infer(self.desc, *self.inputs, **self.options)

    def backward(self, workspace, **options):
        return rnnkit.backward(self.desc, self.w, workspace, *self.cotangents, **options)

    @property
    def kink(self):
        """Distance of the training forward from the nearest kink."""
        return self.reference(dropout_masks(self, self.seed)).kink

    def reference(self, masks=None):
        sizes = dict(hidden_size=self.hidden_size, num_layers=self.num_layers, bidirectional=self.bidirectional)
        given, steps = (self.views, self.x, self.hx, self.cx), {"lengths": self.lengths, "mask": self.mask}
        if self.is_own:
            kind, activations = type(self.mode).__name__, twin_activations(self.mode)
            return reference.forward_own(kind, *given, **sizes, **steps, activations=activations)
        options = dict(proj_size=self.proj_size, cell_clip=self.cell_clip, reset_after=self.reset_after)
        return reference.forward(*given, mode=self.mode, **sizes, **options, **steps, masks=masks)


# Every cell that a mode names, as fields of a Problem. The clip is narrow enough to bind in any of them.
CLIP = (-0.2, 0.3)
CELLS = {
    "tanh": dict(mode="rnn_tanh"),
    "relu": dict(mode="rnn_relu"),
    "lstm": dict(mode="lstm"),
    "lstm-projected": dict(mode="lstm", proj_size=2),
    "lstm-clipped": dict(mode="lstm", cell_clip=CLIP),
    "lstm-projected-clipped": dict(mode="lstm", proj_size=3, cell_clip=CLIP),
    "gru": dict(mode="gru"),
    "gru-reset-before": dict(mode="gru", reset_after=False),
}

# Each kind of cell is kernels of its own in either dtype, which take seconds to compile. By default all run in float64,
# in which gradients are checked, and three kinds in float32; quantized weights have one kind.
FLOAT32 = [nightly(cell) if cell in ("relu", "gru-reset-before") else pytest.param(cell) for cell in CELLS]
"""Cases of `parametrize` for a cell in float32."""
CASES = [
    pytest.param(*cell.values, dtype, marks=cell.marks if dtype == "float32" else ())
    for dtype in ("float32", "float64")
    for cell in FLOAT32
]
"""Cases of `parametrize` for a cell and a dtype."""
REDUCED = [
    (pytest.param if cell in ("lstm", "lstm-projected-clipped") else nightly)(form, cell)
    for form in ("bfloat16", "int8")
    for cell in CELLS
]
"""Cases of `parametrize` for a format of a plan's weights and a cell."""

ALL_CASES = CASES + cases()
"""Those, and cells that no mode names. For `problem_of`."""


def problem_of(cell, **fields):
    """A Problem of a cell by its name, of modes or not; it may need more units to have whole heads."""
    if cell in CELLS:
        return Problem(**fields | CELLS[cell])
    kind = (KINDS | OWN)[cell]
    return Problem(kind, **fields | {"hidden_size": whole_heads(kind, fields.get("hidden_size", 4))})


# Differences, be they of float32 rounding or of a finite step, may not carry a value over a kink of ReLU or clip.
KINK_MARGIN = 1e-3


def smooth(problem):
    """The problem with the first seed for which no value stands near a kink."""
    twins = (problem.twin(seed=seed) for seed in range(problem.seed, problem.seed + 100))
    return next(twin for twin in twins if twin.kink > KINK_MARGIN)


def step_loop(problem):
    """The problem through plan.step, one call a time step."""
    plan = rnnkit.prepare(problem.desc, problem.w)
    hy, cy = problem.hx, problem.cx
    y = np.empty((problem.seq_len, problem.batch_size, problem.output_size), problem.dtype)
    for t in range(problem.seq_len):
        y[t], hy, cy = plan.step(problem.x[t], hy, cy)
    return rnnkit.Infer(y, hy, cy)


def dropout_masks(problem, seed):
    """The scaled masks (T, N, D*P) that the engine draws for this problem's layers, read off a network that shows them.

    In a tanh network whose biases are 1, whose weight_hh is 0 and whose direction d passes on the outputs of direction
    d below, an output is tanh(1) = 0.76 where its input was dropped and at least tanh(1.76) = 0.94 where it was kept.
    """
    plain = dict(input_mode="linear", proj_size=None, cell_clip=None, reset_after=True, lengths=None, states=False)
    probe = problem.twin(mode="rnn_tanh", hidden_size=problem.output_size, bias="input", **plain)
    w = np.zeros_like(probe.w)
    views = rnnkit.weight_views(probe.desc, w)
    size, directions = probe.hidden_size, probe.directions
    for name, view in views.items():
        if name.startswith("bias"):
            view[:] = 1
        elif name.startswith("weight_ih") and not name.startswith("weight_ih_l0"):
            view[:] = np.eye(directions * size)[(size if name.endswith("reverse") else 0) :][:size]
    workspace = rnnkit.forward(probe.desc, w, probe.x, seed=seed).workspace
    scale = 0.0 if problem.dropout == 1 else 1 / (1 - problem.dropout)
    return [
        scale * (np.concatenate([workspace.hidden(layer, d) for d in range(directions)], axis=2) > 0.85)
        for layer in range(1, problem.num_layers)
    ]


def gradient_problem(problem):
    """The loss of a float64 problem, its gradients by the engine, and the blocks of both: x, hx, cx, named weights.

    The loss is the product of all outputs with the problem's cotangents.
    """
    states = [f"cx[{number}]" if number else "cx" for number in range(len(problem.desc.states))]

    def named(x, hx, cx, w):
        beside = dict(zip(states, arrays_of(cx), strict=cx is not None))
        return {"x": x, "hx": hx, **beside, **rnnkit.weight_views(problem.desc, w)}

    def run(arrays):
        w = rnnkit.pack_weights(problem.desc, {name: arrays[name] for name in problem.views})
        cx = as_given([arrays[name] for name in states if name in arrays])
        given = arrays["x"], arrays.get("hx"), cx
        return w, rnnkit.forward(problem.desc, w, *given, **problem.options, seed=problem.seed)

    def loss(arrays):
        pairs = zip(run(arrays)[1][:3], problem.cotangents, strict=True)
        arrays = [zip(arrays_of(found), arrays_of(given), strict=True) for found, given in pairs]
        return sum(float(np.vdot(a, d)) for pairs in arrays for a, d in pairs)

    def gradients(arrays):
        w, outputs = run(arrays)
        found = named(*rnnkit.backward(problem.desc, w, outputs.workspace, *problem.cotangents))
        return {name: found[name] for name in arrays}

    blocks = named(problem.x, problem.hx, problem.cx, problem.w)
    return loss, gradients, {name: block for name, block in blocks.items() if block is not None}
