"""Numbers of a cell, its parameters and what its vectors are drawn from: those that no float or dtype holds."""

import re

import numpy as np
import pytest
from own_cells import Independent
from test_cell_rules import back, declared, output

import rnnkit
from rnnkit import cells
from rnnkit.cells import CellError, Vector
from rnnkit.descriptor.saved import descriptor_of, text_of

HUGE = 10**400
BEYOND = "must be in the range of float64, got a number beyond it"
PARAMETERS = [
    (Independent(scale=HUGE), "float64", f"Independent's scale, {BEYOND}"),
    (Independent(scale=-(10**6000)), "float64", f"Independent's scale, {BEYOND}"),
    (Independent(shift=HUGE), "float64", f"Independent's shift, {BEYOND}"),
    (cells.IndRNN(cells.Elu(HUGE)), "float64", f"IndRNN's activation, alpha {BEYOND}"),
    (Independent(scale=1e40), "float32",
     "Independent's scale, must be a number that float32 does not make inf, got 1e+40"),
    (Independent(scale=-1e-60), "float32",
     "Independent's scale, must be a number that float32 does not make -0.0, got -1e-60"),
    (Independent(shift=2**130), "float32",
     "Independent's shift, must be a number that float32 does not make inf, got an int of 131 bits"),
    (cells.IndRNN(cells.ScaledTanh(1e-60)), "float32",
     "IndRNN's activation, alpha must be a number that float32 does not make 0.0, got 1e-60"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "dtype", "text"), PARAMETERS, ids=[text for *_, text in PARAMETERS])
def test_a_parameter_that_no_float_holds(kind, dtype, text):
    with pytest.raises(ValueError) as error:
        rnnkit.RNNDescriptor(kind, 3, 4, dtype=dtype)
    assert str(error.value) == f"RNNDescriptor: mode, {text}"


def test_the_ends_of_the_range_are_taken():
    for scale in (0.0, 1e-45, -3.4e38, np.inf, np.float32(0.5)):
        desc = rnnkit.RNNDescriptor(Independent(scale=scale), 3, 4)
        assert type(desc.mode.scale) is float and desc.mode.scale == scale
    with pytest.raises(ValueError, match="scale, must be a number that float32 does not make inf"):
        rnnkit.Network(Independent(scale=1e300), 3, 4, dtype="float64").astype("float32")


@pytest.mark.parametrize(("kind", "number"), [(cells.IndRNN(cells.Elu(0.5)), "0.5"), (Independent(shift=1234), "1234")])
def test_such_a_number_in_a_file_is_damage(kind, number):
    text = text_of(rnnkit.RNNDescriptor(kind, 3, 4))
    with pytest.raises(ValueError, match=BEYOND):
        descriptor_of(text.replace(number, str(HUGE)), type(kind))


BOUNDS = [
    (np.nan, 1), (0, np.nan), (1, 0), ("a", 1), (-np.inf, np.inf), (0, 1e39), (None, 1), (0, None), (True, 2),
    (0, HUGE), (-1e308, 1e308), ([0], 1),
]  # fmt: skip


@pytest.mark.parametrize(("low", "high"), BOUNDS, ids=[str(one)[:20] for one in BOUNDS])
def test_what_no_vector_is_drawn_from(low, high):
    expected = "cell Mine: vector p must be drawn from low to high, finite numbers of float32, or None both"
    with pytest.raises(CellError, match=re.escape(f"{expected}, got low={low!r}, high={high!r}")):
        declared(output, back, vectors=[Vector("p", low, high)])


def test_what_a_vector_is_drawn_from():
    for low, high in [(None, None), (0, 0), (-3.4e38, 3.4e38), (np.float32(-1), np.int64(2))]:
        with pytest.raises(CellError, match="a gradient stage must write dp"):  # beyond the check
            declared(output, back, vectors=[Vector("p", low, high)])
