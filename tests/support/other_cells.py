"""Cells that no mode names, shipped and users' own, and which of them run by default."""

from functools import partial

import own_cells
import pytest
import reference
from combinations import nightly

from rnnkit import cells

# Each activation once or more; what the defaults of ActivatedLSTM compute, the built-in LSTM does too.
KINDS = {
    "peephole": cells.PeepholeLSTM(),
    "peephole-hard": cells.PeepholeLSTM(cells.HardSigmoid(0.3, 0.4), cells.Softsign(), cells.ScaledTanh(1.7, 0.6)),
    "coupled": cells.CoupledLSTM(),
    "coupled-elu": cells.CoupledLSTM(cells.Elu(0.7), cells.LeakyRelu(0.2), cells.Affine(0.5, 0.1)),
    "activated": cells.ActivatedLSTM(cells.Sigmoid(), cells.ThresholdedRelu(0.2), cells.Softplus()),
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


def cases(dtypes=("float64", "float32")):
    """Cases of `parametrize` for a cell's name and a dtype; nightly but for the default ones."""
    found = [(name, dtype) for name in KINDS | OWN if name not in ELSEWHERE for dtype in dtypes]
    found = [one for one in found if "float64" in one or one[0] in SINGLE]
    return [(pytest.param if one in DEFAULT else nightly)(*one, id="-".join(one)) for one in found]


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
