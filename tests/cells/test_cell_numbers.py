"""Numbers of a cell, its parameters and what its vectors are drawn from: those that no float or dtype holds."""

import numpy as np
import pytest
from declared_cells import back, declared, output
from messages import says
from own_cells import Independent

import rnnkit
from rnnkit import cells
from rnnkit.cells import CellError, Vector
from rnnkit.descriptor.saved import descriptor_json, descriptor_of

HUGE = 10**400
PARAMETERS = [
    (Independent(scale=HUGE), "float64", "Independent's scale", ["float64"]),
    (Independent(scale=-(10**6000)), "float64", "Independent's scale", ["float64"]),
    (Independent(shift=HUGE), "float64", "Independent's shift", ["float64"]),
    (cells.IndRNN(cells.Elu(HUGE)), "float64", "IndRNN's activation, alpha", ["float64"]),
    (Independent(scale=1e40), "float32", "Independent's scale", ["float32", "inf", 1e40]),
    (Independent(scale=-1e-60), "float32", "Independent's scale", ["float32", -0.0, -1e-60]),
    (Independent(shift=2**130), "float32", "Independent's shift", ["float32", "inf", "int", 131]),
    (cells.IndRNN(cells.ScaledTanh(1e-60)), "float32", "IndRNN's activation, alpha", ["float32", 0.0, 1e-60]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "dtype", "parameter", "facts"), PARAMETERS, ids=[row[2] for row in PARAMETERS])
def test_parameter_beyond_the_dtype_is_refused(kind, dtype, parameter, facts):
    with pytest.raises(ValueError, match=says(f"RNNDescriptor: mode, {parameter}", *facts)):
        rnnkit.RNNDescriptor(kind, 3, 4, dtype=dtype)


def test_ends_of_the_range_are_taken():
    for scale in (0.0, 1e-45, -3.4e38, np.inf, np.float32(0.5)):
        desc = rnnkit.RNNDescriptor(Independent(scale=scale), 3, 4)
        assert type(desc.mode.scale) is float and desc.mode.scale == scale
    with pytest.raises(ValueError, match=says("RNNDescriptor: mode, Independent's scale", "float32", "inf", 1e300)):
        rnnkit.Network(Independent(scale=1e300), 3, 4, dtype="float64").astype("float32")


@pytest.mark.parametrize(("kind", "number"), [(cells.IndRNN(cells.Elu(0.5)), "0.5"), (Independent(shift=1234), "1234")])
def test_number_beyond_float64_in_a_file_is_refused(kind, number):
    text = descriptor_json(rnnkit.RNNDescriptor(kind, 3, 4))
    with pytest.raises(ValueError, match=says("RNNDescriptor: mode", "float64")):
        descriptor_of(text.replace(number, str(HUGE)), type(kind))


BOUNDS = [
    (np.nan, 1), (0, np.nan), (1, 0), ("a", 1), (-np.inf, np.inf), (0, 1e39), (None, 1), (0, None), (True, 2),
    (0, HUGE), (-1e308, 1e308), ([0], 1),
]  # fmt: skip


@pytest.mark.parametrize(("low", "high"), BOUNDS, ids=[str(one)[:20] for one in BOUNDS])
def test_bounds_of_a_vector_beyond_float32_are_refused(low, high):
    expected = says("cell Mine: vector p", "float32", None, f"low={low!r}", f"high={high!r}")
    with pytest.raises(CellError, match=expected):
        declared(output, back, vectors=[Vector("p", low, high)])


def test_bounds_of_a_vector_may_be_any_float32():
    for low, high in [(None, None), (0, 0), (-3.4e38, 3.4e38), (np.float32(-1), np.int64(2))]:
        with pytest.raises(CellError, match=says("cell Mine: a gradient stage", "dp")):  # beyond the check
            declared(output, back, vectors=[Vector("p", low, high)])
