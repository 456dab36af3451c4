"""Cells of your own: a page of equations, which runs on the same loops as the built-in ones.

A cell is a NamedTuple class under the decorator :func:`cell`, handed to :class:`rnnkit.RNNDescriptor` or
:class:`rnnkit.Network` in place of a mode's name:

>>> from typing import NamedTuple
>>> import rnnkit
>>> from rnnkit.cells import cell, fma, forward, tanh
>>> @cell(gates="a")
... class Leaky(NamedTuple):
...     rate: float = 0.5
...
...     @forward("h")
...     def update(self, a, h_prev):
...         return fma(self.rate, tanh(a), (1 - self.rate) * h_prev)
>>> rnnkit.Network(Leaky(rate=0.1), 64, 128, seed=0)
<Network: RNNDescriptor(Leaky(rate=0.1), 64, 128), 24832 weights>

A stage is a function of numbers, those of one unit. It reads by the names of its parameters and writes to the names in
its decorator:

======================  ================================================================================
``f``                   a gate: its pre-activation W x + R h + biases, then what a stage wrote to it
``c_prev``, ``c``       a state before and after the step (``states="c"``, or several: ``states="c n m"``)
``h_prev``, ``h``       the hidden state before and after the step
``p``                   a vector, a weight of the unit's own (``vectors="p"``), or a scalar, one of the layer
``a``                   a side input, which each call gives (``inputs="a"``), or a noise, which training draws
                        (``noises=[Noise("a", "rate")]``)
``t``                   any other name: what a stage hands on to later ones
======================  ================================================================================

:func:`mean` of a number is its mean over all units of the row, with which later equations go on.

The gradient is derived from these equations (:func:`derived_source` prints it), or written by hand in stages under
``@gradient``. Stages run in their order. :class:`Gate` says what R multiplies for a gate. A stage may call what is
here, functions of numbers of your own, and functions whose derivative is given (:func:`derivative`); numbers in it,
``math.pi`` too, take the type of the network. A function handed in from around the class, an activation say, is a part
of its source.

By hand: ``df``, ``dc`` and ``dh`` are the gradients of the loss by each name, in stages that run in the reverse order.
A gradient stage overwrites what it writes: to add to a gradient that an earlier one left, read it. At the end a gate's
gradient is that by its pre-activation, and ``dc_prev`` that by the state before the step: it takes the place of
``dc``.

Cells to use as they are: :class:`LayerNormLSTM`, :class:`LayerNormGRU`, :class:`RegularizedLSTM`,
:class:`RegularizedGRU`, :class:`VariationalLSTM`, :class:`VariationalGRU`, :class:`PeepholeLSTM`, :class:`CoupledLSTM`,
:class:`ActivatedLSTM`,
:class:`MultiplicativeLSTM`, :class:`SLSTM`, :class:`MultiHeadSLSTM`, :class:`JANET`, :class:`RAN`, :class:`AUGRU`,
:class:`MinimalGatedUnit`, :class:`LiGRU`, :class:`MinGRU`, :class:`UGRNN`, :class:`FastGRNN`, :class:`STAR`,
:class:`MinimalRNN`, :class:`IndRNN`, :class:`NBR`, :class:`CoRNN` and :class:`LEM`. Some take activations as
parameters, ``PeepholeLSTM(gate=HardSigmoid(alpha=0.2))``; a cell of your own may too: ``value(self.gate, i)`` and, of
that value, ``slope(self.gate, i)`` of a field ``gate: Activation = Sigmoid()``. An activation of your own is a
NamedTuple class of floats under ``@Activation.register``, with the methods ``value(self, x)`` and ``slope(self, y)``.

Machine code is kept on disk under a digest of all that the cell computes. Files of its networks have a digest of its
equations, and of what they use: see :func:`rnnkit.load`.
:func:`rnnkit.check_cell` compares the gradients with differences of the values.
"""

# ruff: noqa: F401  what is imported here is what there is: `__all__` lists it
from importlib import import_module

from rnnkit.kernels.cells.activations import (
    Activation,
    Affine,
    Elu,
    HardSigmoid,
    LeakyRelu,
    Relu,
    ScaledTanh,
    Sigmoid,
    Softplus,
    Softsign,
    Tanh,
    ThresholdedRelu,
    softplus,
)
from rnnkit.kernels.cells.cell import (
    CellError,
    Gate,
    Input,
    Noise,
    Scalar,
    Vector,
    cell,
    derived_source,
    forward,
    gradient,
)
from rnnkit.kernels.cells.derivatives import derivative
from rnnkit.kernels.cells.functions import clip, exp, fma, mean, sigmoid, slope, tanh, value

_CELLS = {  # by name, the module; each is imported, and its gradient derived, when it is asked for
    "AUGRU": "augru", "ActivatedLSTM": "activated_lstm", "CoRNN": "cornn", "CoupledLSTM": "coupled_lstm",
    "FastGRNN": "fast_grnn", "IndRNN": "indrnn", "JANET": "janet", "LEM": "lem", "LayerNormGRU": "layer_norm",
    "LayerNormLSTM": "layer_norm", "LiGRU": "ligru", "MinGRU": "mingru", "MinimalGatedUnit": "minimal_gated_unit",
    "MinimalRNN": "minimal_rnn", "MultiHeadSLSTM": "slstm", "MultiplicativeLSTM": "multiplicative_lstm", "NBR": "nbr",
    "PeepholeLSTM": "peephole_lstm", "RAN": "ran", "RegularizedGRU": "regularized", "RegularizedLSTM": "regularized",
    "SLSTM": "slstm", "STAR": "star", "UGRNN": "ugrnn", "VariationalGRU": "variational",
    "VariationalLSTM": "variational",
}  # fmt: skip
__all__ = sorted({*_CELLS, *(name for name in globals() if not name.startswith("_"))} - {"import_module"})


def __getattr__(name):
    if name not in _CELLS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"rnnkit.kernels.cells.{_CELLS[name]}"), name)
    return found


def __dir__():
    return __all__
