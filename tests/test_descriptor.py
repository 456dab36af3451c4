"""The descriptor: what it derives, what it stores, and everything it refuses with the message it gives."""

import copy
import dataclasses
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from messages import says

from rnnkit import RNNDescriptor
from rnnkit_kernels.cells.modes import MODES

NAN, INF = float("nan"), float("inf")
HUGE = 10**6000  # beyond a float, and longer than the 4300 digits that str makes of an int


def test_gates_in_order():
    # The order of the rows in every weight block, as cuDNN and PyTorch have it.
    gates = {mode: RNNDescriptor(mode, 3, 5).cell.declaration.gates for mode in MODES}
    assert {mode: tuple(gate.name for gate in found) for mode, found in gates.items()} == {
        "rnn_relu": ("a",),
        "rnn_tanh": ("a",),
        "lstm": ("i", "f", "g", "o"),
        "gru": ("r", "z", "n"),
    }


def test_defaults():
    desc = RNNDescriptor("gru", 3, 5)
    assert dataclasses.asdict(desc) == {
        "mode": "gru",
        "input_size": 3,
        "hidden_size": 5,
        "num_layers": 1,
        "bidirectional": False,
        "bias": "both",
        "input_mode": "linear",
        "proj_size": None,
        "dropout": 0.0,
        "cell_clip": None,
        "reset_after": True,
        "dtype": "float32",
        "allow_tf32": False,
    }


@pytest.mark.parametrize(("mode", "num_gates", "has_cell_state"), [
    ("rnn_relu", 1, False), ("rnn_tanh", 1, False), ("lstm", 4, True), ("gru", 3, False),
])
def test_facts_of_the_mode(mode, num_gates, has_cell_state):
    desc = RNNDescriptor(mode, 3, 5)
    assert (desc.num_gates, desc.has_cell_state) == (num_gates, has_cell_state)


@pytest.mark.parametrize(("bias", "has_bias_ih", "has_bias_hh"), [
    ("both", True, True), ("input", True, False), ("recurrent", False, True), ("none", False, False),
])
def test_bias_modes(bias, has_bias_ih, has_bias_hh):
    desc = RNNDescriptor("gru", 3, 5, bias=bias)
    assert (desc.has_bias_ih, desc.has_bias_hh) == (has_bias_ih, has_bias_hh)


def test_derived_sizes():
    desc = RNNDescriptor("lstm", 7, 5, 3, True, proj_size=2)
    assert (desc.num_directions, desc.num_pseudo_layers, desc.output_size, desc.projected) == (2, 6, 2, True)
    assert [desc.layer_input_size(layer) for layer in range(3)] == [7, 4, 4]
    plain = RNNDescriptor("lstm", 7, 5, 3)
    assert (plain.num_directions, plain.num_pseudo_layers, plain.output_size, plain.projected) == (1, 3, 5, False)
    assert [plain.layer_input_size(layer) for layer in range(3)] == [7, 5, 5]


def test_skip_leaves_out_the_first_input_weight_only():
    skip = RNNDescriptor("gru", 5, 5, 2, input_mode="skip")
    assert [skip.has_input_weight(layer) for layer in range(2)] == [False, True]
    assert skip.layer_input_size(0) == 5
    assert RNNDescriptor("gru", 5, 5, 2).has_input_weight(0)


def test_numpy_scalars_are_stored_as_python_values():
    desc = RNNDescriptor(
        np.str_("lstm"), np.int64(3), np.uint8(5), np.int32(2), np.True_,
        dropout=np.float32(0.5), proj_size=np.int16(2), cell_clip=[np.float64(-1), 1], reset_after=np.True_,
    )
    stored = [getattr(desc, field.name) for field in dataclasses.fields(desc)]
    assert stored == ["lstm", 3, 5, 2, True, "both", "linear", 2, 0.5, (-1.0, 1.0), True, "float32", False]
    kinds = [str, int, int, int, bool, str, str, int, float, tuple, bool, str, bool]
    assert [type(value) for value in stored] == kinds
    assert [type(bound) for bound in desc.cell_clip] == [float, float]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_dtype_as_string_dtype_or_type(dtype):
    for given in (dtype, np.dtype(dtype), np.dtype(dtype).type):
        desc = RNNDescriptor("gru", 3, 5, dtype=given)
        assert desc.dtype == dtype and type(desc.dtype) is str
        assert desc.np_dtype is np.dtype(dtype)


@pytest.mark.parametrize("options", [
    {"dropout": 0}, {"dropout": 1}, {"proj_size": 1}, {"proj_size": 4},
    {"cell_clip": (-INF, 1)}, {"cell_clip": (0, INF)}, {"cell_clip": (-1e60, 1e60)},
])
def test_the_ends_of_ranges_are_accepted(options):
    desc = RNNDescriptor("lstm", 1, 5, 1, **options)
    ((name, value),) = options.items()
    assert getattr(desc, name) == value and desc.cell is not None


def test_the_largest_sizes_are_accepted():
    desc = RNNDescriptor("lstm", 2**31 - 1, 2**31 - 1, 10_000, proj_size=2**31 - 2)
    assert (desc.input_size, desc.hidden_size, desc.num_layers, desc.output_size) == (
        2**31 - 1, 2**31 - 1, 10_000, 2**31 - 2
    )


class Text(str):
    """Equal to one text, printed as another."""

    def __str__(self):
        return "neither"


class Float(float):
    def __float__(self):
        return 7.0


class Pair(tuple):
    """Says that it holds two, and holds three."""

    def __len__(self):
        return 2


def test_what_is_stored_is_what_was_checked():
    desc = RNNDescriptor(Text("lstm"), 3, 5, bias=Text("none"), dtype=Text("float64"))
    assert (desc.mode, desc.bias, desc.dtype) == ("lstm", "none", "float64")
    assert {type(value) for value in (desc.mode, desc.bias, desc.dtype)} == {str}
    with pytest.raises(ValueError, match=says("RNNDescriptor: dropout", "[0, 1]", 7.0)):
        RNNDescriptor("lstm", 3, 5, dropout=Float(0.5))
    with pytest.raises(ValueError, match=says("RNNDescriptor: cell_clip", 2, "(low, high)", 3)):
        RNNDescriptor("lstm", 3, 5, cell_clip=Pair((-1, 0, 1)))


def refused(mode="lstm", input_size=3, hidden_size=5, **options):
    return lambda: RNNDescriptor(mode, input_size, hidden_size, **options)


MODE_NAMES = ["rnn_relu", "rnn_tanh", "lstm", "gru"]
BIASES = ["both", "input", "recurrent", "none"]
DTYPES = ["float32", "float64", "float16", "bfloat16"]
REFUSED = [
    (refused("LSTM"), ValueError, "mode", [*MODE_NAMES, "LSTM"]),
    (refused(3), TypeError, "mode", [*MODE_NAMES, "cell", "int"]),
    (refused(input_size=0), ValueError, "input_size", [1, 0]),
    (refused(input_size=-2), ValueError, "input_size", [1, -2]),
    (refused(input_size=3.0), TypeError, "input_size", ["int", "float"]),
    (refused(hidden_size="5"), TypeError, "hidden_size", ["int", "str"]),
    (refused(hidden_size=True), TypeError, "hidden_size", ["int", "bool"]),
    (refused(hidden_size=np.True_), TypeError, "hidden_size", ["int", "numpy.bool"]),
    (refused(hidden_size=None), TypeError, "hidden_size", ["int", "NoneType"]),
    (refused(hidden_size=0), ValueError, "hidden_size", [1, 0]),
    (refused(num_layers=0), ValueError, "num_layers", [1, 0]),
    (refused(num_layers=np.float64(2)), TypeError, "num_layers", ["int", "numpy.float64"]),
    (refused(bidirectional=1), TypeError, "bidirectional", ["bool", "int"]),
    (refused(bias=1), TypeError, "bias", [*BIASES, "int"]),
    (refused(bias="double"), ValueError, "bias", [*BIASES, "double"]),
    (refused(input_mode="none"), ValueError, "input_mode", ["linear", "skip", "none"]),
    (refused(input_mode="skip"), ValueError, "input_size", ["hidden_size=5", 'input_mode="skip"', 3]),
    (refused(proj_size=-1), ValueError, "proj_size", [1, -1]),
    (refused(proj_size=2.0), TypeError, "proj_size", ["int", "float"]),
    (refused(proj_size=5), ValueError, "proj_size", ["hidden_size=5", 5]),
    (refused("gru", proj_size=2), ValueError, "proj_size", [None, 'mode="gru"', 2, 'mode="lstm"']),
    (refused("rnn_tanh", proj_size=2), ValueError, "proj_size", [None, 'mode="rnn_tanh"', 2, 'mode="lstm"']),
    (refused(dropout=1.5), ValueError, "dropout", ["[0, 1]", 1.5]),
    (refused(dropout=-0.1), ValueError, "dropout", ["[0, 1]", -0.1]),
    (refused(dropout=NAN), ValueError, "dropout", ["[0, 1]", "nan"]),
    (refused(dropout=True), TypeError, "dropout", ["float", "bool"]),
    (refused(dropout="0.5"), TypeError, "dropout", ["float", "str"]),
    (refused(cell_clip=1.0), TypeError, "cell_clip", [None, "(low, high)", "float"]),
    (refused(cell_clip=(-1, 0, 1)), ValueError, "cell_clip", [2, "(low, high)", 3]),
    (refused(cell_clip=(-1, "1")), TypeError, "cell_clip[1]", ["float", "str"]),
    (refused(cell_clip=(1, -1)), ValueError, "cell_clip", ["low < high", (1.0, -1.0)]),
    (refused(cell_clip=(1, 1)), ValueError, "cell_clip", ["low < high", (1.0, 1.0)]),
    (refused(cell_clip=(NAN, 1)), ValueError, "cell_clip", ["low < high", "(nan, 1.0)"]),
    (refused(cell_clip=(-1, NAN)), ValueError, "cell_clip", ["low < high", "(-1.0, nan)"]),
    (refused(cell_clip=(1e60, 2e60)), ValueError, "cell_clip", ["low < high", "float32", (1e+60, 2e+60)]),
    (refused(cell_clip=(0, 1e-60)), ValueError, "cell_clip", ["low < high", "float32", (0.0, 1e-60)]),
    (refused("gru", cell_clip=(-1, 1)), ValueError, "cell_clip", [None, 'mode="gru"', (-1.0, 1.0), 'mode="lstm"']),
    (refused(reset_after=0), TypeError, "reset_after", ["bool", "int"]),
    (refused(reset_after=False), ValueError, "reset_after", [True, 'mode="lstm"', False, 'mode="gru"']),
    (refused(dtype="float8"), ValueError, "dtype", [*DTYPES, "float8"]),
    (refused(dtype=np.int32), ValueError, "dtype", [*DTYPES, "int32"]),
    (refused(dtype=np.dtype("float32").newbyteorder()), ValueError,
     "dtype", [*DTYPES, np.dtype("float32").newbyteorder().str]),
    (refused(dtype=None), TypeError, "dtype", [*DTYPES, "NoneType"]),
    (refused(dtype=float), TypeError, "dtype", [*DTYPES, "type"]),
    (refused(allow_tf32=1), TypeError, "allow_tf32", ["bool", "int"]),
    (refused(allow_tf32=True, dtype="float64"), ValueError,
     "allow_tf32", [False, 'dtype="float64"', True, 'dtype="float32"', "TensorFloat-32"]),
    (refused(allow_tf32=True, dtype="float16"), ValueError,
     "allow_tf32", [False, 'dtype="float16"', True, 'dtype="float32"', "TensorFloat-32"]),
    (refused(allow_tf32=True, dtype="bfloat16"), ValueError,
     "allow_tf32", [False, 'dtype="bfloat16"', True, 'dtype="float32"', "TensorFloat-32"]),
    (refused(dropout=HUGE), ValueError, "dropout", ["float64"]),
    (refused(dropout=Fraction(-HUGE, 3)), ValueError, "dropout", ["float64"]),
    (refused(dropout=Fraction(3 * HUGE, 2 * HUGE + 1)), ValueError, "dropout", ["[0, 1]", 1.5]),
    (refused(dropout=Decimal("0.5")), TypeError, "dropout", ["float", "decimal.Decimal"]),
    (refused(cell_clip=(0, HUGE)), ValueError, "cell_clip[1]", ["float64"]),
    (refused(cell_clip=(-HUGE, 0)), ValueError, "cell_clip[0]", ["float64"]),
    (refused(hidden_size=10**12), ValueError, "hidden_size", [2147483647, 1000000000000]),
    (refused(input_size=2**31), ValueError, "input_size", [2147483647, 2147483648]),
    (refused(hidden_size=HUGE), ValueError, "hidden_size", [2147483647, "int", 19932]),
    (refused(hidden_size=-HUGE), ValueError, "hidden_size", [1, "int", 19932]),
    (refused(proj_size=HUGE), ValueError, "proj_size", [2147483647, "int", 19932]),
    (refused(num_layers=10_001), ValueError, "num_layers", [10000, 10001]),
]


@pytest.mark.parametrize(("make", "kind", "argument", "facts"), REFUSED, ids=[row[2] for row in REFUSED])
def test_refused(make, kind, argument, facts):
    with pytest.raises(kind, match=says(f"RNNDescriptor: {argument}", *facts)):
        make()


def test_frozen_with_every_field():
    desc = RNNDescriptor("gru", 3, 5)
    for field in dataclasses.fields(desc):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(desc, field.name, getattr(desc, field.name))


DIFFERENT = [
    RNNDescriptor("lstm", 5, 5),
    RNNDescriptor("gru", 5, 5),
    RNNDescriptor("lstm", 4, 5),
    RNNDescriptor("lstm", 5, 6),
    RNNDescriptor("lstm", 5, 5, 2),
    RNNDescriptor("lstm", 5, 5, bidirectional=True),
    RNNDescriptor("lstm", 5, 5, bias="none"),
    RNNDescriptor("lstm", 5, 5, input_mode="skip"),
    RNNDescriptor("lstm", 5, 5, proj_size=2),
    RNNDescriptor("lstm", 5, 5, dropout=0.5),
    RNNDescriptor("lstm", 5, 5, cell_clip=(-1, 1)),
    RNNDescriptor("gru", 5, 5, reset_after=False),
    RNNDescriptor("lstm", 5, 5, dtype="float64"),
]


def test_every_field_counts_in_equality_and_hash():
    assert len(set(DIFFERENT)) == len(DIFFERENT)
    assert len({hash(desc) for desc in DIFFERENT}) == len(DIFFERENT)


@pytest.mark.parametrize("desc", DIFFERENT, ids=repr)
def test_copies_are_equal(desc):
    desc.np_dtype, hash(desc)  # fill what is cached: it must neither travel nor disturb
    copies = [pickle.loads(pickle.dumps(desc)), copy.deepcopy(desc), dataclasses.replace(desc), eval(repr(desc))]
    for twin in copies:
        assert twin is not desc and twin == desc and hash(twin) == hash(desc)
        assert twin.np_dtype is desc.np_dtype


def test_repr_shows_what_was_chosen():
    assert repr(RNNDescriptor("gru", 3, 5)) == "RNNDescriptor('gru', 3, 5)"
    assert repr(RNNDescriptor("lstm", 3, 5, 2, dropout=0.5)) == "RNNDescriptor('lstm', 3, 5, num_layers=2, dropout=0.5)"
