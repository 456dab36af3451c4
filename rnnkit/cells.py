"""Custom cells: you write the equations, and they run in the same compiled loops as the built-in cells.

A cell is a NamedTuple class, decorated with :func:`cell`. Pass it to :class:`rnnkit.RNNDescriptor` or
:class:`rnnkit.Network` instead of the name of a mode:

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

A stage is a function of numbers that computes one unit. Its parameters name what it reads, its decorator names what it
writes. The names:

======================  ================================================================================
``f``                   a gate: the pre-activation W x + R h + biases, until a stage overwrites it
``c_prev``, ``c``       a state before and after the step (``states="c"``, or several: ``states="c n m"``)
``h_prev``, ``h``       the hidden state before and after the step
``p``                   a vector: one weight per unit (``vectors="p"``); or a scalar: one weight per layer
                        (``scalars="p"``)
``a``                   a side input, an argument of each call (``inputs="a"``); or a noise, which training draws at
                        random (``noises=[Noise("a", "rate")]``)
``t``                   any other name: an intermediate value for later stages
======================  ================================================================================

:func:`mean` of a value is its mean over all units of the layer, for one sequence. Later equations can use it.

Stages run in the order in which the class defines them. :class:`Gate` declares what R multiplies for a gate. A stage
may call the functions of this module, your own functions of numbers, and functions with a declared derivative
(:func:`derivative`). Constants, for example ``math.pi``, take the dtype of the network. A function from an enclosing
scope, such as an activation, counts as source of the cell.

The gradient is derived from the equations; :func:`derived_source` prints it. You can also write it by hand, in stages
decorated with ``@gradient``. These run in reverse order: the last one of the class first. ``df``, ``dc`` and ``dh``
are the gradients of the loss with respect to f, c and h. A gradient stage overwrites the names that it writes; to add
to a gradient of an earlier stage, read it first. After the last stage ``df`` must be the gradient with respect to the
pre-activation, and ``dc_prev`` the gradient with respect to the previous state. ``dc_prev`` reuses the memory of
``dc``.

Ready-made cells: :class:`LayerNormLSTM`, :class:`LayerNormGRU`, :class:`RegularizedLSTM`, :class:`RegularizedGRU`,
:class:`VariationalLSTM`, :class:`VariationalGRU`, :class:`PeepholeLSTM`, :class:`CoupledLSTM`, :class:`ActivatedLSTM`,
:class:`MultiplicativeLSTM`, :class:`SLSTM`, :class:`MultiHeadSLSTM`, :class:`JANET`, :class:`RAN`, :class:`AUGRU`,
:class:`MinimalGatedUnit`, :class:`LiGRU`, :class:`MinGRU`, :class:`UGRNN`, :class:`FastGRNN`, :class:`STAR`,
:class:`MinimalRNN`, :class:`IndRNN`, :class:`NBR`, :class:`CoRNN` and :class:`LEM`.

Some take activations as parameters, for example ``PeepholeLSTM(gate=HardSigmoid(alpha=0.2))``. So can your own cell:
give it a field ``gate: Activation = Sigmoid()``. ``y = value(self.gate, x)`` then applies the activation, and
``slope(self.gate, y)`` is its derivative, computed from y. To write your own activation, decorate a NamedTuple class of
floats with ``@Activation.register`` and give it the methods ``value(self, x)`` and ``slope(self, y)``.

Compiled kernels are cached on disk, keyed by a digest of the cell. Files of networks contain a digest of the cell's
equations and of the functions that they use: see :func:`rnnkit.load`. :func:`rnnkit.check_cell` checks the gradients
against finite differences.
"""

# ruff: noqa: F401  every import here is public: `__all__` is built from them
from importlib import import_module

from rnnkit_kernels.cells.activations import (
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
from rnnkit_kernels.cells.cell import (
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
from rnnkit_kernels.cells.derivatives import derivative
from rnnkit_kernels.cells.functions import clip, exp, fma, mean, sigmoid, slope, tanh, value

_CELLS = {  # name -> module, imported on first access, because that derives the gradient
    "AUGRU": "augru", "ActivatedLSTM": "activated_lstm", "CoRNN": "cornn", "CoupledLSTM": "coupled_lstm",
    "FastGRNN": "fast_grnn", "IndRNN": "indrnn", "JANET": "janet", "LEM": "lem", "LayerNormGRU": "layer_norm",
    "LayerNormLSTM": "layer_norm", "LiGRU": "ligru", "MinGRU": "mingru", "MinimalGatedUnit": "minimal_gated_unit",
    "MinimalRNN": "minimal_rnn", "MultiHeadSLSTM": "slstm", "MultiplicativeLSTM": "multiplicative_lstm", "NBR": "nbr",
    "PeepholeLSTM": "peephole_lstm", "RAN": "ran", "RegularizedGRU": "regularized", "RegularizedLSTM": "regularized",
    "SLSTM": "slstm", "STAR": "star", "UGRNN": "ugrnn", "VariationalGRU": "variational",
    "VariationalLSTM": "variational",
}  # fmt: skip
_EQUATIONS = "step", "unrolled"  # they import the descriptor, which imports this module
__all__ = sorted({*_CELLS, *_EQUATIONS, *(name for name in globals() if not name.startswith("_"))} - {"import_module"})


def __getattr__(name):
    if name in _CELLS:
        module = f"rnnkit_kernels.cells.{_CELLS[name]}"
    elif name in _EQUATIONS:
        module = f"rnnkit.equations.{name}"
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(module), name)
    return found


def __dir__():
    return __all__
