"""Parameters of a cell and what its vectors are drawn from: what they may be, and numbers that no dtype holds."""

import numpy as np
import pytest
from declared_cells import back, declared, output
from messages import says
from own_cells import Feedforward, Independent, OwnLSTM
from refused import refusals

import rnnkit
from rnnkit import cells
from rnnkit.cells import CellError, Vector
from rnnkit.descriptor.saved import descriptor_json, descriptor_of

HUGE = 10**400
KNOWN = "Sigmoid, Tanh, Relu, Affine, LeakyRelu, ThresholdedRelu, ScaledTanh, HardSigmoid, Elu, Softsign, Softplus"
INDEPENDENT = "mode=Independent(scale=1.5, shift=0, flipped=False)"


def declared_by(kind, **options):
    return lambda: rnnkit.RNNDescriptor(kind, 3, 4, **options)


@refusals(RNNDescriptor=[
    (declared_by(Independent(scale="a")), "TypeError mode, Independent's scale | float | str"),
    (declared_by(Independent(shift=0.5)), "TypeError mode, Independent's shift | int | float"),
    (declared_by(Independent(scale=float("nan"))), "mode, Independent's scale | number | nan"),
    (declared_by(Independent(), proj_size=2), f"proj_size | None | {INDEPENDENT} | 2"),
    (declared_by(OwnLSTM, cell_clip=(-1, 1)), "cell_clip | None | mode=OwnLSTM() | (-1.0, 1.0)"),
    (declared_by(Feedforward, bias="recurrent"), "bias | mode=Feedforward() | no R | recurrent"),
    (declared_by(cells.PeepholeLSTM(gate="tanh")), f"TypeError mode, PeepholeLSTM's gate | {KNOWN} | str"),
    (declared_by(cells.IndRNN(cells.LeakyRelu("a"))), "TypeError mode, IndRNN's activation, alpha | float | str"),
    (declared_by(cells.IndRNN(cells.LeakyRelu(True))), "TypeError mode, IndRNN's activation, alpha | float | bool"),
    (declared_by(cells.IndRNN(cells.Elu(0))), "mode, IndRNN's activation, alpha | finite | 0"),
    (declared_by(cells.IndRNN(cells.Affine(1, float("nan")))), "mode, IndRNN's activation, beta | finite | nan"),
    (declared_by(cells.SLSTM(sigmoid_forget=1)), "TypeError mode, SLSTM's sigmoid_forget | bool | int"),
    (declared_by(Independent(scale=HUGE), dtype="float64"), "mode, Independent's scale | float64"),
    (declared_by(Independent(scale=-(10**6000)), dtype="float64"), "mode, Independent's scale | float64"),
    (declared_by(Independent(shift=HUGE), dtype="float64"), "mode, Independent's shift | float64"),
    (declared_by(cells.IndRNN(cells.Elu(HUGE)), dtype="float64"), "mode, IndRNN's activation, alpha | float64"),
    (declared_by(Independent(scale=1e40)), "mode, Independent's scale | float32 | inf | 1e+40"),
    (declared_by(Independent(scale=-1e-60)), "mode, Independent's scale | float32 | -0.0 | -1e-60"),
    (declared_by(Independent(shift=2**130)), "mode, Independent's shift | float32 | inf | int | 131"),
    (declared_by(cells.IndRNN(cells.ScaledTanh(1e-60))), "mode, IndRNN's activation, alpha | float32 | 0.0 | 1e-60"),
])  # fmt: skip
def test_wrong_parameter_or_option_of_a_cell_is_refused(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()


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
