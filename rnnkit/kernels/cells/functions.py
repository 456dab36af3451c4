"""The functions of a number that cells are written in.

Compiled they are what `rnnkit.kernels.machine.activations` says, vectorised and with the same bits everywhere, value
and slope what the activation says that is given; called from Python they take and return floats.
"""

import math


def sigmoid(x):
    """Return the logistic function, 1/(1 + exp(-x))."""
    return 0.5 + 0.5 * math.tanh(0.5 * x)


def tanh(x):
    """Return the hyperbolic tangent."""
    return math.tanh(x)


def exp(x):
    """Return e to the power of x; infinity beyond the largest number."""
    return math.exp(x) if x < 709.78 else math.inf if x > 0 else x


def fma(a, b, c):
    """Return a*b + c; compiled, rounded once where the machine can."""
    return a * b + c


def clip(x, low, high):
    """Return x, or the bound that it lies beyond; a NaN stays one."""
    return low if x < low else high if x > high else x


def mean(x):
    """Return the mean of x over the units of the row; called from Python, x: the unit is the only one then."""
    return x


def value(activation, x):
    """Return what an activation makes of x."""
    return activation.value(x)


def slope(activation, y):
    """Return the derivative of an activation where its value is y."""
    return activation.slope(y)
