"""Networks of cells that no mode names, shipped and users' own, with inputs and cotangents of a fixed seed."""

from functools import partial

import numpy as np
import own_cells
import pytest
import reference
from combinations import nightly

import rnnkit
from rnnkit import cells

LENGTHS = 4, 0, 6, 1, 3
T, N, INPUT = 6, len(LENGTHS), 3
# Each activation once or more; what the defaults of ActivatedLSTM compute, the built-in LSTM does too.
KINDS = {
    "peephole": cells.PeepholeLSTM(),
    "peephole-hard": cells.PeepholeLSTM(cells.HardSigmoid(0.3, 0.4), cells.Softsign(), cells.ScaledTanh(1.7, 0.6)),
    "coupled": cells.CoupledLSTM(),
    "coupled-elu": cells.CoupledLSTM(cells.Elu(0.7), cells.LeakyRelu(0.2), cells.Affine(0.5, 0.1)),
    "activated": cells.ActivatedLSTM(cells.Softplus(), cells.ThresholdedRelu(0.2), cells.Relu()),
    "minimal": cells.MinimalGatedUnit(),
    "indrnn": cells.IndRNN(),
    "indrnn-tanh": cells.IndRNN(cells.Tanh()),
    "mingru": cells.MinGRU(),
    "slstm": cells.SLSTM(),
    "slstm-sigmoid": cells.SLSTM(sigmoid_forget=True),
    "slstm-heads": cells.MultiHeadSLSTM(),
    "janet": cells.JANET(),
    "ligru": cells.LiGRU(),
    "ugrnn": cells.UGRNN(),
    "ran": cells.RAN(),
    "star": cells.STAR(),
    "cornn": cells.CoRNN(),
    "lem": cells.LEM(),
    "minimal-rnn": cells.MinimalRNN(),
    "multiplicative": cells.MultiplicativeLSTM(),
    "nbr": cells.NBR(),
    "fastgrnn": cells.FastGRNN(),
    "augru": cells.AUGRU(),
}
# Of these test_gallery, test_side_inputs, test_perf_cells and the random cells of test_derivation show what
# test_shipped_cells would show once more.
ELSEWHERE = (
    "peephole coupled indrnn slstm janet ligru ugrnn ran star cornn minimal-rnn multiplicative nbr fastgrnn augru"
).split()
SINGLE = "own-numbers", "activated"  # those in float32: what a kernel does with the numbers does not depend on the cell
# What a user may have and no shipped cell has: parameters that are numbers, and gates without R beside a state.
OWN = {"own-numbers": own_cells.Independent(), "own-feedforward": own_cells.Feedforward()}
# Every kind of cell is kernels of its own, which take 8 s to compile. By default run those that have between them all
# that a cell can have: vectors and activations, several states, no R, parameters that are numbers, and R times a state.
DEFAULT = {("peephole-hard", "float64"), ("slstm-sigmoid", "float64"), ("own-feedforward", "float64"),
           ("own-numbers", "float32"), ("lem", "float64")}  # fmt: skip


def cases(dtypes=("float64", "float32"), default=DEFAULT):
    """Cases of `parametrize`: a kind of cell and, of several, a dtype; nightly but for the default ones."""
    found = []
    for name, kind in (KINDS | OWN).items():
        for dtype in dtypes if name not in ELSEWHERE else ():
            if dtype == "float32" and name not in SINGLE:
                continue
            make = pytest.param if (name, dtype) in default else nightly
            found.append(make(kind, id=name) if len(dtypes) == 1 else make(kind, dtype, id=f"{name}-{dtype}"))
    return found


SIZES = {"stack": (17, 2, False), "two-directions": (5, 2, True)}


def arrays_of(value):
    """The arrays of what may be None, an array or a tuple of several states."""
    return [] if value is None else list(value) if isinstance(value, tuple) else [value]


def as_given(states):
    """As a user gives them: None, an array or a tuple."""
    return None if not states else states[0] if len(states) == 1 else tuple(states)


def whole_heads(kind, units):
    """So many units, or as many more as make whole heads of the cell's R."""
    heads = kind.declaration.heads
    return -(-units // heads) * heads


def twin_activations(kind):
    """What the reference's step takes for the parameters of a cell."""
    if isinstance(kind, (cells.SLSTM, cells.MultiHeadSLSTM)):
        return (reference.ACTIVATIONS["log_sigmoid"],) * kind.sigmoid_forget
    return tuple(_twin(parameter) for parameter in kind if not isinstance(parameter, float | int))


def _twin(activation):
    function = reference.ACTIVATIONS[type(activation).__name__]
    return partial(function, **activation._asdict())


class Network:
    """A descriptor, its weights, and all that forward and backward are given."""

    def __init__(self, kind, size="two-directions", dtype="float64", input_size=INPUT, lengths=LENGTHS, seed=7):
        hidden, layers, bidirectional = SIZES.get(size, size)
        hidden = whole_heads(kind, hidden)
        self.kind, self.rng, self.lengths = kind, np.random.default_rng(seed), lengths
        self.desc = rnnkit.RNNDescriptor(kind, input_size, hidden, layers, bidirectional, dtype=dtype)
        self.w = rnnkit.init_weights(self.desc, seed=1)
        shape = self.desc.num_pseudo_layers, N, hidden
        self.x, self.hx = self.draw(T, N, input_size), self.draw(*shape)
        self.states = [self.draw(*shape) + (3 if name == "n" else 0) for name in self.desc.states]
        self.dy, self.dhy = self.draw(T, N, self.desc.num_directions * hidden), self.draw(*shape)
        self.dstates = [self.draw(*shape) for _ in self.states]

    def draw(self, *shape):
        return self.rng.normal(size=shape).astype(self.desc.dtype)

    def forward(self, **options):
        given = {"lengths": self.lengths} | options
        return rnnkit.forward(self.desc, self.w, self.x, self.hx, as_given(self.states), **given)

    def backward(self, workspace):
        return rnnkit.backward(self.desc, self.w, workspace, self.dy, self.dhy, as_given(self.dstates))

    def reference(self):
        """y, hy and the states by the naive twin."""
        weights = {key: block.astype(np.float64) for key, block in rnnkit.weight_views(self.desc, self.w).items()}
        desc = self.desc
        return reference.forward_own(
            type(self.kind).__name__,
            weights,
            self.x,
            self.hx,
            self.states,
            hidden_size=desc.hidden_size,
            num_layers=desc.num_layers,
            bidirectional=desc.bidirectional,
            lengths=self.lengths,
            activations=twin_activations(self.kind),
        )

    def rows(self, rows, time=slice(None), lengths=None):
        """The same network on some rows and steps."""
        part = object.__new__(Network)
        part.__dict__ |= self.__dict__ | {"lengths": lengths}
        for name in ("x", "dy"):
            part.__dict__[name] = getattr(self, name)[time, rows]
        for name in ("hx", "dhy"):
            part.__dict__[name] = getattr(self, name)[:, rows]
        for name in ("states", "dstates"):
            part.__dict__[name] = [one[:, rows] for one in getattr(self, name)]
        return part
