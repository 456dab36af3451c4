"""Cells of your own: a page of equations, which runs on the same loops as the built-in ones.

A cell is a NamedTuple class under the decorator :func:`cell`, handed to :class:`rnnkit.RNNDescriptor` or
:class:`rnnkit.Network` in place of a mode's name:

>>> from typing import NamedTuple
>>> import rnnkit
>>> from rnnkit.cells import cell, fma, forward, gradient, tanh
>>> @cell(gates="a")
... class Leaky(NamedTuple):
...     rate: float = 0.5
...
...     @forward("a h")
...     def update(self, a, h_prev):
...         a = tanh(a)
...         return a, fma(self.rate, a, (1 - self.rate) * h_prev)
...
...     @gradient("da dh_prev")
...     def through_update(self, a, dh):
...         return dh * self.rate * (1 - a * a), dh * (1 - self.rate)
>>> rnnkit.Network(Leaky(rate=0.1), 64, 128, seed=0)
<Network: RNNDescriptor(Leaky(rate=0.1), 64, 128), 24832 weights>

A stage is a function of numbers, those of one unit. It reads by the names of its parameters and writes to the names in
its decorator:

======================  ================================================================================
``f``                   a gate: its pre-activation W x + R h + biases, then what a stage wrote to it
``c_prev``, ``c``       a state before and after the step (``states="c"``, or several: ``states="c n m"``)
``h_prev``, ``h``       the hidden state before and after the step
``p``                   a vector, a weight of the unit's own (``vectors="p"``)
``df``, ``dc``, ...     the gradient of the loss by each of them, in the stages of the gradient
======================  ================================================================================

Stages run in their order, those of the gradient in the reverse order. A gradient stage overwrites what it writes: to
add to a gradient that an earlier one left, read it. At the end a gate's gradient is that by its pre-activation, and
``dc_prev`` that by the state before the step: it takes the place of ``dc``. :class:`Gate` says what R multiplies for a
gate. A stage may call what is here, functions of numbers of your own, and what Numba compiles; numbers in it,
``math.pi`` too, take the type of the network. A function handed in from around the class, an activation say, is a part
of its source.

Cells to use as they are: :class:`PeepholeLSTM`, :class:`CoupledLSTM`, :class:`ActivatedLSTM`,
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
from rnnkit.kernels.cells.activated_lstm import ActivatedLSTM
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
from rnnkit.kernels.cells.augru import AUGRU
from rnnkit.kernels.cells.cell import CellError, Gate, Input, Scalar, Vector, cell, derived_source, forward, gradient
from rnnkit.kernels.cells.cornn import CoRNN
from rnnkit.kernels.cells.coupled_lstm import CoupledLSTM
from rnnkit.kernels.cells.derivatives import derivative
from rnnkit.kernels.cells.fast_grnn import FastGRNN
from rnnkit.kernels.cells.functions import clip, exp, fma, sigmoid, slope, tanh, value
from rnnkit.kernels.cells.indrnn import IndRNN
from rnnkit.kernels.cells.janet import JANET
from rnnkit.kernels.cells.lem import LEM
from rnnkit.kernels.cells.ligru import LiGRU
from rnnkit.kernels.cells.mingru import MinGRU
from rnnkit.kernels.cells.minimal_gated_unit import MinimalGatedUnit
from rnnkit.kernels.cells.minimal_rnn import MinimalRNN
from rnnkit.kernels.cells.multiplicative_lstm import MultiplicativeLSTM
from rnnkit.kernels.cells.nbr import NBR
from rnnkit.kernels.cells.peephole_lstm import PeepholeLSTM
from rnnkit.kernels.cells.ran import RAN
from rnnkit.kernels.cells.slstm import SLSTM, MultiHeadSLSTM
from rnnkit.kernels.cells.star import STAR
from rnnkit.kernels.cells.ugrnn import UGRNN

__all__ = sorted(name for name in globals() if not name.startswith("_"))
