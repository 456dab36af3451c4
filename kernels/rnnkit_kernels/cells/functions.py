"""Scalar functions for cell equations.

In kernels they compile to `rnnkit_kernels.machine.activations`, vectorised and bit-identical on every CPU; `value` and
`slope` compile to the methods of the given activation. Called from Python they take and return floats.
"""

import math


def sigmoid(x):
    """Return the logistic function, 1/(1 + exp(-x))."""
    return 0.5 + 0.5 * math.tanh(0.5 * x)


def tanh(x):
    """Return the hyperbolic tangent."""
    return math.tanh(x)


def exp(x):
    """Return e to the power of x; infinity on overflow."""
    return math.exp(x) if x < 709.78 else math.inf if x > 0 else x


def fma(a, b, c):
    """Return a*b + c; compiled, it is rounded once if the CPU can."""
    return a * b + c


def clip(x, low, high):
    """Return x clipped to [low, high]; NaN stays NaN."""
    return low if x < low else high if x > high else x


def mean(x):
    """Return the mean of x over the units of the row; called from Python, x itself (there is a single unit)."""
    return x


def value(activation, x):
    """Apply an activation to x."""
    return activation.value(x)


def slope(activation, y):
    """Return the derivative of an activation at the point where its output is y."""
    return activation.slope(y)
