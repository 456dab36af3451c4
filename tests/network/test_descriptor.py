"""The descriptor: what it derives, what it stores, and everything it refuses with the message it gives."""

import copy
import dataclasses
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from messages import raises

from rnnkit import RNNDescriptor
from rnnkit_kernels.cells.modes import MODES

NAN, INF = float("nan"), float("inf")
HUGE = 10**6000  # beyond a float, and longer than the 4300 digits that str makes of an int
LARGEST = 2**31 - 1


def test_gates_and_states_of_each_mode():
    # The gates are the order of the rows in every weight block, as cuDNN and PyTorch have it.
    descs = {mode: RNNDescriptor(mode, 3, 5) for mode in MODES}
    gates = {mode: "".join(gate.name for gate in desc.cell.declaration.gates) for mode, desc in descs.items()}
    assert gates == {"rnn_relu": "a", "rnn_tanh": "a", "lstm": "ifgo", "gru": "rzn"}
    for mode, desc in descs.items():
        assert (desc.num_gates, desc.has_cell_state) == (len(gates[mode]), mode == "lstm")


def test_defaults():
    names = "mode input_size hidden_size num_layers bidirectional bias input_mode proj_size dropout cell_clip"
    names += " reset_after dtype allow_tf32 learned_initial_state"
    values = ["gru", 3, 5, 1, False, "both", "linear", None, 0.0, None, True, "float32", False, False]
    assert dataclasses.asdict(RNNDescriptor("gru", 3, 5)) == dict(zip(names.split(), values, strict=True))


def test_derived_sizes():
    desc = RNNDescriptor("lstm", 7, 5, 3, True, proj_size=2)
    assert (desc.num_directions, desc.num_pseudo_layers, desc.output_size, desc.projected) == (2, 6, 2, True)
    assert [desc.layer_input_size(layer) for layer in range(3)] == [7, 4, 4]
    plain = RNNDescriptor("lstm", 7, 5, 3)
    assert (plain.num_directions, plain.num_pseudo_layers, plain.output_size, plain.projected) == (1, 3, 5, False)


def test_numpy_scalars_are_stored_as_python_values():
    sizes = np.str_("lstm"), np.int64(3), np.uint8(5), np.int32(2), np.True_
    options = dict(dropout=np.float32(0.5), proj_size=np.int16(2), cell_clip=[np.float64(-1), 1], reset_after=np.True_)
    desc = RNNDescriptor(*sizes, **options)
    stored = [getattr(desc, field.name) for field in dataclasses.fields(desc)]
    expected = ["lstm", 3, 5, 2, True, "both", "linear", 2, 0.5, (-1.0, 1.0), True, "float32", False, False]
    assert stored == expected and [type(value) for value in stored] == [type(value) for value in expected]
    assert [type(bound) for bound in desc.cell_clip] == [float, float]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_dtype_may_be_a_string_a_dtype_or_a_type(dtype):
    for given in (dtype, np.dtype(dtype), np.dtype(dtype).type):
        desc = RNNDescriptor("gru", 3, 5, dtype=given)
        assert desc.dtype == dtype and type(desc.dtype) is str
        assert desc.np_dtype is np.dtype(dtype)


LIMITS = {"dropout": [0, 1], "proj_size": [1, 4], "cell_clip": [(-INF, 1), (0, INF), (-1e60, 1e60)]}


@pytest.mark.parametrize("name", LIMITS)
def test_ends_of_ranges_are_accepted(name):
    for value in LIMITS[name]:
        desc = RNNDescriptor("lstm", 1, 5, 1, **{name: value})
        assert getattr(desc, name) == value and desc.cell is not None


def test_largest_sizes_are_accepted():
    desc = RNNDescriptor("lstm", LARGEST, LARGEST, 10_000, proj_size=LARGEST - 1)
    sizes = desc.input_size, desc.hidden_size, desc.num_layers, desc.output_size
    assert sizes == (LARGEST, LARGEST, 10_000, LARGEST - 1)


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


def test_values_of_subclasses_are_stored_as_plain_text():
    desc = RNNDescriptor(Text("lstm"), 3, 5, bias=Text("none"), dtype=Text("float64"))
    assert (desc.mode, desc.bias, desc.dtype) == ("lstm", "none", "float64")
    assert {type(value) for value in (desc.mode, desc.bias, desc.dtype)} == {str}


MODE_NAMES = "rnn_relu | rnn_tanh | lstm | gru"
BIASES = "both | input | recurrent | none"
DTYPES = "float32 | float64 | float16 | bfloat16"
SWAPPED = np.dtype("float32").newbyteorder()
TF32 = 'allow_tf32 | False | dtype="{}" | True | dtype="float32" | TensorFloat-32'
REFUSED = [
    (dict(mode="LSTM"), ValueError, f"mode | {MODE_NAMES} | LSTM"),
    (dict(mode=3), TypeError, f"mode | {MODE_NAMES} | cell | int"),
    (dict(input_size=0), ValueError, "input_size | 1 | 0"),
    (dict(input_size=3.0), TypeError, "input_size | int | float"),
    (dict(input_size=2**31), ValueError, "input_size | 2147483647 | 2147483648"),
    (dict(hidden_size="5"), TypeError, "hidden_size | int | str"),
    (dict(hidden_size=True), TypeError, "hidden_size | int | bool"),
    (dict(hidden_size=np.True_), TypeError, "hidden_size | int | numpy.bool"),
    (dict(hidden_size=None), TypeError, "hidden_size | int | NoneType"),
    (dict(hidden_size=0), ValueError, "hidden_size | 1 | 0"),
    (dict(hidden_size=HUGE), ValueError, "hidden_size | 2147483647 | int | 19932"),
    (dict(num_layers=0), ValueError, "num_layers | 1 | 0"),
    (dict(num_layers=np.float64(2)), TypeError, "num_layers | int | numpy.float64"),
    (dict(num_layers=10_001), ValueError, "num_layers | 10000 | 10001"),
    (dict(bidirectional=1), TypeError, "bidirectional | bool | int"),
    (dict(bias=1), TypeError, f"bias | {BIASES} | int"),
    (dict(bias="double"), ValueError, f"bias | {BIASES} | double"),
    (dict(input_mode="none"), ValueError, "input_mode | linear | skip | none"),
    (dict(input_mode="skip"), ValueError, 'input_size | hidden_size=5 | input_mode="skip" | 3'),
    (dict(proj_size=-1), ValueError, "proj_size | 1 | -1"),
    (dict(proj_size=2.0), TypeError, "proj_size | int | float"),
    (dict(proj_size=5), ValueError, "proj_size | hidden_size=5 | 5"),
    (dict(mode="gru", proj_size=2), ValueError, 'proj_size | None | mode="gru" | 2 | mode="lstm"'),
    (dict(dropout=1.5), ValueError, "dropout | [0, 1] | 1.5"),
    (dict(dropout=-0.1), ValueError, "dropout | [0, 1] | -0.1"),
    (dict(dropout=NAN), ValueError, "dropout | [0, 1] | nan"),
    (dict(dropout=Float(0.5)), ValueError, "dropout | [0, 1] | 7.0"),
    (dict(dropout=True), TypeError, "dropout | float | bool"),
    (dict(dropout="0.5"), TypeError, "dropout | float | str"),
    (dict(dropout=HUGE), ValueError, "dropout | float64"),
    (dict(dropout=Fraction(-HUGE, 3)), ValueError, "dropout | float64"),
    (dict(dropout=Fraction(3 * HUGE, 2 * HUGE + 1)), ValueError, "dropout | [0, 1] | 1.5"),
    (dict(dropout=Decimal("0.5")), TypeError, "dropout | float | decimal.Decimal"),
    (dict(cell_clip=1.0), TypeError, "cell_clip | None | (low, high) | float"),
    (dict(cell_clip=(-1, 0, 1)), ValueError, "cell_clip | 2 | (low, high) | 3"),
    (dict(cell_clip=Pair((-1, 0, 1))), ValueError, "cell_clip | 2 | (low, high) | 3"),
    (dict(cell_clip=(-1, "1")), TypeError, "cell_clip[1] | float | str"),
    (dict(cell_clip=(0, HUGE)), ValueError, "cell_clip[1] | float64"),
    (dict(cell_clip=(1, -1)), ValueError, "cell_clip | low < high | (1.0, -1.0)"),
    (dict(cell_clip=(1, 1)), ValueError, "cell_clip | low < high | (1.0, 1.0)"),
    (dict(cell_clip=(NAN, 1)), ValueError, "cell_clip | low < high | (nan, 1.0)"),
    (dict(cell_clip=(1e60, 2e60)), ValueError, "cell_clip | low < high | float32 | (1e+60, 2e+60)"),
    (dict(cell_clip=(0, 1e-60)), ValueError, "cell_clip | low < high | float32 | (0.0, 1e-60)"),
    (dict(mode="gru", cell_clip=(-1, 1)), ValueError, 'cell_clip | None | mode="gru" | (-1.0, 1.0) | mode="lstm"'),
    (dict(reset_after=0), TypeError, "reset_after | bool | int"),
    (dict(reset_after=False), ValueError, 'reset_after | True | mode="lstm" | False | mode="gru"'),
    (dict(dtype="float8"), ValueError, f"dtype | {DTYPES} | float8"),
    (dict(dtype=np.int32), ValueError, f"dtype | {DTYPES} | int32"),
    (dict(dtype=SWAPPED), ValueError, f"dtype | {DTYPES} | {SWAPPED.str}"),
    (dict(dtype=None), TypeError, f"dtype | {DTYPES} | NoneType"),
    (dict(dtype=float), TypeError, f"dtype | {DTYPES} | type"),
    (dict(allow_tf32=1), TypeError, "allow_tf32 | bool | int"),
    *((dict(allow_tf32=True, dtype=d), ValueError, TF32.format(d)) for d in ("float64", "float16", "bfloat16")),
]


@pytest.mark.parametrize(("options", "kind", "text"), REFUSED)
def test_wrong_option_is_refused(options, kind, text):
    with raises(kind, f"RNNDescriptor: {text}"):
        RNNDescriptor(**{"mode": "lstm", "input_size": 3, "hidden_size": 5} | options)


def test_frozen_with_every_field():
    desc = RNNDescriptor("gru", 3, 5)
    for field in dataclasses.fields(desc):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(desc, field.name, getattr(desc, field.name))


CHANGES = dict(mode="gru", input_size=4, hidden_size=6, num_layers=2, bidirectional=True, bias="none")
CHANGES |= dict(input_mode="skip", proj_size=2, dropout=0.5, cell_clip=(-1, 1), dtype="float64")
BASE = RNNDescriptor("lstm", 5, 5)
DIFFERENT = [BASE, *(dataclasses.replace(BASE, **{name: value}) for name, value in CHANGES.items())]
DIFFERENT.append(RNNDescriptor("gru", 5, 5, reset_after=False))


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
