"""What the tests of the converters share: networks to convert, and what a round trip must leave as it was."""

import numpy as np
from problems import Problem
from tolerances import assert_close

from rnnkit.interop.networks import network

SIZES = dict(num_layers=2, input_size=7, hidden_size=5, seq_len=6, batch_size=4)


def problem_of(**fields):
    return Problem(**{**SIZES, **fields})


def net_of(problem):
    return network(problem.desc, problem.views)


def assert_same_network(actual, expected):
    assert type(actual) is type(expected)
    assert actual.desc == expected.desc
    assert_same_bits("weights", actual.weights, expected.weights)


def assert_same_bits(name, actual, expected):
    """Of one array; a negative 0 is not 0."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), name
    assert actual.tobytes() == expected.tobytes(), f"{name} differs"


def assert_outputs(net, problem, y, states, dtype=None):
    """`y` (T, N, D*P) and the last states of a framework, for the problem's inputs, are those of the network.

    `dtype` is that in which the framework computes, if it is not the problem's.
    """
    found = net.infer(problem.x, problem.hx, problem.cx)
    expected = dict(zip(("y", "hy", "cy"), (y, *states), strict=False))
    for name, array in expected.items():
        assert_close(name, getattr(found, name), array, dtype or problem.dtype)
