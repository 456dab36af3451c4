"""Activations that are a parameter of a cell: ONNX's, each with its derivative (slope) as a function of its output.

A cell with the field ``gate: Activation = Sigmoid()`` computes ``value(self.gate, i)`` forward. In its gradient it
computes ``slope(self.gate, i)`` from the stored output. Machine code is compiled per class of activation, not per
number. At a kink the slope is the derivative on the left.
"""

from abc import ABC, ABCMeta
from typing import NamedTuple

from .functions import clip, exp, fma, tanh
from .functions import sigmoid as logistic
from .source import freeze, is_shipped


def softplus(x):
    """Return log(1 + exp(x)), from x + log(1 + exp(-x)) where x is above 0."""
    u = exp(-abs(x))
    s = u / (2 + u)  # log(1 + u) = 2*atanh(s) = 2s*(1 + q/3 + q**2/5 + ...), q <= 1/9: 16 terms fill a float64
    q = s * s
    t = fma(q, fma(q, fma(q, fma(q, 1 / 31, 1 / 29), 1 / 27), 1 / 25), 1 / 23)
    t = fma(q, fma(q, fma(q, fma(q, t, 1 / 21), 1 / 19), 1 / 17), 1 / 15)
    t = fma(q, fma(q, fma(q, fma(q, t, 1 / 13), 1 / 11), 1 / 9), 1 / 7)
    t = 2 * s * fma(q, fma(q, fma(q, t, 1 / 5), 1 / 3), 1)
    return t if x < 0 else x + t


class Activation(ABC):  # noqa: B024  named tuples have no other base: they are registered
    """Base class of all activations."""

    @classmethod
    def register(cls, kind):
        """Register a NamedTuple class as an activation: fields are floats, `value` and `slope` take one number."""
        for name in ("value", "slope"):
            code = getattr(getattr(kind, name, None), "__code__", None)
            if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields") and code):
                raise TypeError(f"register: kind must be a NamedTuple class with a method {name}, got {kind!r}")
        if not is_shipped(kind):
            USER_ACTIVATIONS[kind.__name__] = kind
            freeze(kind)
        return ABCMeta.register(cls, compare_by_class(kind))


ACTIVATIONS, USER_ACTIVATIONS = {}, {}
"""Activations by name: those of this package, and those that users registered (the last one of a name)."""


def compare_by_class(kind):
    """Make equality and hash of a NamedTuple class depend on the class; plain tuples with equal fields are equal."""
    kind.__eq__ = lambda self, other: type(self) is type(other) and tuple.__eq__(self, other)
    kind.__ne__ = lambda self, other: not self == other
    kind.__hash__ = lambda self: hash((type(self), *self))
    return kind


def activation(kind):
    """Decorate a NamedTuple class with `value` and `slope` to make it an activation."""
    ACTIVATIONS[kind.__name__] = Activation.register(kind)
    return kind


@activation
class Sigmoid(NamedTuple):
    """1/(1 + exp(-x))."""

    def value(self, x):
        return logistic(x)

    def slope(self, y):
        return y * (1 - y)


@activation
class Tanh(NamedTuple):
    """tanh(x)."""

    def value(self, x):
        return tanh(x)

    def slope(self, y):
        return 1 - y * y


@activation
class Relu(NamedTuple):
    """max(x, 0)."""

    def value(self, x):
        return 0 if x < 0 else x

    def slope(self, y):
        return 0 if y <= 0 else 1


@activation
class Affine(NamedTuple):
    """alpha*x + beta."""

    alpha: float = 1.0
    beta: float = 0.0

    def value(self, x):
        return fma(self.alpha, x, self.beta)

    def slope(self, y):
        return self.alpha


@activation
class LeakyRelu(NamedTuple):
    """x if x > 0, else alpha*x; alpha > 0."""

    alpha: float = 0.01

    def value(self, x):
        return self.alpha * x if x < 0 else x

    def slope(self, y):
        return self.alpha if y <= 0 else 1


@activation
class ThresholdedRelu(NamedTuple):
    """x if x > alpha, else 0; alpha > 0."""

    alpha: float = 1.0

    def value(self, x):
        return 0 if x <= self.alpha else x

    def slope(self, y):
        return 0 if y == 0 else 1


@activation
class ScaledTanh(NamedTuple):
    """alpha*tanh(beta*x); alpha > 0."""

    alpha: float = 1.0
    beta: float = 1.0

    def value(self, x):
        return self.alpha * tanh(self.beta * x)

    def slope(self, y):
        t = y / self.alpha
        return self.alpha * self.beta * (1 - t * t)


@activation
class HardSigmoid(NamedTuple):
    """alpha*x + beta, clipped to [0, 1]."""

    alpha: float = 0.2
    beta: float = 0.5

    def value(self, x):
        return clip(fma(self.alpha, x, self.beta), 0, 1)

    def slope(self, y):
        return 0 if y <= 0 or y >= 1 else self.alpha


@activation
class Elu(NamedTuple):
    """x if x > 0, else alpha*(exp(x) - 1); alpha > 0."""

    alpha: float = 1.0

    def value(self, x):
        t = tanh(0.5 * x)  # exp(x) - 1 = 2t/(1 - t), without its cancellation near 0
        return 2 * self.alpha * t / (1 - t) if x < 0 else x

    def slope(self, y):
        return y + self.alpha if y <= 0 else 1


@activation
class Softsign(NamedTuple):
    """x/(1 + ``|x|``)."""

    def value(self, x):
        return x / (1 + abs(x))

    def slope(self, y):
        one = 1 - abs(y)
        return one * one


@activation
class Softplus(NamedTuple):
    """log(1 + exp(x))."""

    def value(self, x):
        return softplus(x)

    def slope(self, y):
        t = tanh(0.5 * y)  # 1 - exp(-y)
        return 2 * t / (1 + t)


POSITIVE = LeakyRelu, ThresholdedRelu, ScaledTanh, Elu
"""Activations whose alpha must be above 0: otherwise the slope cannot be computed from the output."""
