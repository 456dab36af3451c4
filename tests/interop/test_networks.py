"""What the converters share, and how all of them are documented."""

import inspect

import numpy as np
import pytest
from docstring_rules import assert_documents_its_parameters, assert_typed, section
from foreign import assert_same_bits, net_of
from messages import says
from problems import CELLS, Problem
from refused import refusals

import rnnkit
from rnnkit import interop
from rnnkit.interop.networks import blocks_of, common_dtype, mode_of_rows, network, real_array, reordered
from rnnkit.interop.stacks import added, cells_of, one_bias


@pytest.mark.parametrize("cell", CELLS)
def test_named_blocks_become_a_network(cell):
    problem = Problem(**CELLS[cell], num_layers=2, bidirectional=True)
    net = network(problem.desc, problem.views)
    kinds = {"tanh": rnnkit.RNN, "relu": rnnkit.RNN, "lstm": rnnkit.LSTM, "gru": rnnkit.GRU}
    assert type(net) is kinds[cell.split("-")[0]]
    assert net.desc == problem.desc
    assert_same_bits("weights", net.weights, problem.w)
    assert not np.shares_memory(net.weights, problem.w)


def test_gates_are_reordered_along_an_axis():
    array = np.arange(16).reshape(2, 8)
    assert reordered(array, "i o f g", "i f g o", axis=1).tolist() == array[:, [0, 1, 4, 5, 6, 7, 2, 3]].tolist()
    assert reordered(array.T, "i o f g", "i f g o").T.tolist() == reordered(array, "i o f g", "i f g o", -1).tolist()
    assert reordered(reordered(array, "b a", "a b"), "a b", "b a").tolist() == array.tolist()
    assert not np.shares_memory(reordered(array, "a", "a"), array)


def test_foreign_byte_order_becomes_native():
    array = real_array("from_x", "w", np.array([1.5, -2], ">f4"))
    assert_same_bits("w", array, np.array([1.5, -2], "f4"))
    assert array.dtype.isnative


class Half:
    """A tensor of a type that NumPy does not know."""

    dtype = "torch.bfloat16"


class OnAnotherDevice:
    dtype = np.float32

    def __array__(self, dtype=None, copy=None):
        raise TypeError("not on the host")


DOUBLE, SINGLE, GRU = np.zeros(1), np.zeros(2, "f4"), net_of(Problem("gru"))
REFUSED = [
    (lambda: real_array("from_x", "w", Half()), "TypeError from_x: w | float32 | float64 | bfloat16"),
    (lambda: real_array("from_x", "w", np.zeros(2, "f2")), "TypeError from_x: w | float32 | float64 | float16"),
    (lambda: real_array("from_x", "w", [1, 2]), "TypeError from_x: w | float32 | float64 | int64"),
    (lambda: real_array("from_x", "w", ["one"]), "TypeError from_x: w | float32 | float64 | str96"),
    # What NumPy's look raises:
    (lambda: real_array("from_x", "w", OnAnotherDevice()), "TypeError from_x: w | array | not on the host"),
    (
        lambda: real_array("from_x", "w", np.ma.zeros(2, "f4")),
        "TypeError from_x: w | array | numpy.ma.MaskedArray | w.filled(0) | lengths",
    ),
    (lambda: common_dtype("from_x", {"a": DOUBLE, "b": SINGLE}), "TypeError from_x: b | float64 | a | float32"),
    (
        lambda: mode_of_rows("from_x", "w", 10, 5, activation=None),
        "from_x: w | 5 | 15 | 20 | 1 | 3 | 4 | hidden_size=5 | 10",
    ),
    (lambda: blocks_of("to_x", GRU, "why", reset_after=(False,)), "to_x: net.desc.reset_after | False | True | why"),
    (
        lambda: blocks_of("to_x", GRU.desc, "why"),
        "TypeError to_x: net | rnnkit.RNN | GRU | LSTM | rnnkit.descriptor.descriptor.RNNDescriptor",
    ),
]


@refusals(anywhere=REFUSED)
def test_unfit_arrays_and_networks_are_refused(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()


def test_equal_dtypes_and_allowed_options_pass():
    assert common_dtype("from_x", {"a": DOUBLE, "b": np.zeros(2)}) == "float64"
    assert blocks_of("to_x", GRU, "why", reset_after=(True,)).keys() == GRU.views.keys()


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


def test_bias_inside_of_a_reset_is_not_added():
    problem = Problem("gru")
    ((cell,),) = cells_of(problem.desc, problem.views)
    with pytest.raises(ValueError, match=says("to_x: net.views", 0, "bias_hh", "X")):
        one_bias("to_x", problem.desc, cell, "X")
    cell["bias_hh"][8:] = 0
    assert_same_bits("n", one_bias("to_x", problem.desc, cell, "X")[8:], cell["bias_ih"][8:])
    before = Problem("gru", reset_after=False)
    ((cell,),) = cells_of(before.desc, before.views)
    assert_same_bits("sum", one_bias("to_x", before.desc, cell, "X"), cell["bias_ih"] + cell["bias_hh"])


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
