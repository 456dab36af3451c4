"""What the converters share, and how all of them are documented."""

import inspect
from functools import partial

import numpy as np
import pytest
from docstring_rules import assert_documents_its_parameters, assert_typed, section
from foreign import assert_same_bits, net_of
from problems import CELLS, Problem
from refused import refusals

import rnnkit
from rnnkit import interop
from rnnkit.interop.networks import blocks_of, network, real_array
from rnnkit.interop.stacks import added


@pytest.mark.parametrize("cell", CELLS)
def test_named_blocks_become_a_network(cell):
    problem = Problem(**CELLS[cell], num_layers=2, bidirectional=True)
    net = network(problem.desc, problem.views)
    kinds = {"tanh": rnnkit.RNN, "relu": rnnkit.RNN, "lstm": rnnkit.LSTM, "gru": rnnkit.GRU}
    assert type(net) is kinds[cell.split("-")[0]]
    assert net.desc == problem.desc
    assert_same_bits("weights", net.weights, problem.w)
    assert not np.shares_memory(net.weights, problem.w)


def test_foreign_byte_order_becomes_native():
    array = real_array("from_x", "w", np.array([1.5, -2], ">f4"))
    assert_same_bits("w", array, np.array([1.5, -2], "f4"))
    assert array.dtype.isnative


class OnAnotherDevice:
    dtype = np.float32

    def __array__(self, dtype=None, copy=None):
        raise TypeError("not on the host")


REFUSED = [
    (OnAnotherDevice(), "TypeError w | array | not on the host"),  # what NumPy's look raises
    (np.ma.zeros(2, "f4"), "TypeError w | array | numpy.ma.MaskedArray | w.filled(0) | lengths"),
    (["one"], "TypeError w | float32 | float64 | str96"),
]


@refusals(from_x=[(partial(real_array, "from_x", "w", value), text) for value, text in REFUSED])
def test_unfit_arrays_are_refused(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()


def test_network_on_a_gpu_is_taken_to_the_host(standin):
    import cupy

    net = net_of(Problem("gru", dtype="float32"))
    host = net.weights
    net = net.to(cupy)
    for name, block in blocks_of("to_x", net, "why").items():
        assert type(block) is np.ndarray
        assert_same_bits(name, block, rnnkit.weight_views(net.desc, host)[name])


def test_sums_keep_the_bits_of_what_is_added_to_zero():
    first, second = np.array([-0.0, 0.0, 1e-45, -0.0, 2.0], "f4"), np.array([0.0, -0.0, 0.0, 3.0, 0.5], "f4")
    assert_same_bits("sum", added(first, second), np.array([-0.0, 0.0, 1e-45, 3.0, 2.5], "f4"))


@pytest.mark.parametrize("name", [name for name in interop.__all__ if inspect.isfunction(getattr(interop, name))])
def test_every_converter_is_documented_and_typed(name):
    function = getattr(interop, name)
    assert_documents_its_parameters(function, function.__doc__)
    assert_typed(function)
    returns_nothing = inspect.signature(function).return_annotation == "None"
    assert bool(section(function.__doc__, "Returns")) != returns_nothing
    assert section(function.__doc__, "Raises")
    if name.startswith(("from_", "to_")):  # the others need a file
        assert "\n    Examples\n" in function.__doc__


def test_each_library_has_both_ways():
    ways = [{name.removeprefix(way) for name in interop.__all__ if name.startswith(way)} for way in ("from_", "to_")]
    assert ways[0] == ways[1]
