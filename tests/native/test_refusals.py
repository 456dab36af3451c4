"""What `export_c` refuses."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from exported import network
from messages import raises

from rnnkit.cells import Sigmoid, cell, derivative, forward


@derivative(math.atan)
def of_atan(x):
    return 1 / (1 + x * x)


@cell(gates="a")
class Arctangent(NamedTuple):
    @forward("h")
    def step(self, a):
        return math.atan(a)


@cell(gates="a")
class Fifth(NamedTuple):
    @forward("h")
    def step(self, a):
        return a**5


REFUSED = [
    ({"weights": "file"}, ValueError, "export_c: weights | 'source' | 'binary' | 'file'"),
    ({"precision": "bfloat16"}, ValueError, "export_c: precision | None | 'int8' | 'bfloat16'"),
    ({"name": "2nd"}, ValueError, "export_c: name | a name in C | '2nd'"),
    ({"name": "while"}, ValueError, "export_c: name | 'while'"),
    ({"name": None}, ValueError, "export_c: name | None"),
    ({"readout": "scores"}, ValueError, "export_c: readout | (none) | 'scores'"),
    ({"readout": np.zeros(20, np.float32)}, ValueError, "export_c: readout | flat | 20 weights | (20,)"),
    ({"readout": np.zeros(21)}, TypeError, "export_c: readout | float32 | float64"),
    ({"readout": np.zeros(21, np.float32), "activation": "sigmoid"}, TypeError, "export_c: activation | rnnkit.cells"),
    ({"activation": Sigmoid()}, ValueError, "export_c: activation | None | Sigmoid"),
]


@pytest.mark.parametrize(("arguments", "error", "text"), REFUSED)
def test_wrong_arguments_are_refused(arguments, error, text, tmp_path):
    with raises(error, text):
        network("gru").export_c(tmp_path / "new", **arguments)
    assert not (tmp_path / "new").exists()


def test_int8_of_float64_is_refused(tmp_path):
    with raises(ValueError, "export_c: precision | float32 | float64"):
        network("gru", dtype="float64").export_c(tmp_path, precision="int8")


@pytest.mark.parametrize(("kind", "text"), [(Arctangent(), "Arctangent | atan"), (Fifth(), "Fifth | 1 to 4")])
def test_equations_without_equal_bits_in_c_are_refused(kind, text, tmp_path):
    with raises(ValueError, f"export_c: cell {text}"):
        network(kind).export_c(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_network_on_a_gpu_is_refused(standin, tmp_path):
    import cupy

    with raises(ValueError, "export_c: net.weights | numpy.ndarray"):
        network("gru").to(cupy).export_c(tmp_path)
