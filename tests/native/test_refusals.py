"""What `export_c` refuses."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from exported import network
from messages import raises
from refused import refusals

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


def export(mode="gru", options=(), **arguments):
    network(mode, **dict(options)).export_c("new", **arguments)


SCORES = np.zeros(21, np.float32)
REFUSED = [
    (lambda: export(weights="file"), "weights | 'source' | 'binary' | 'file'"),
    (lambda: export(precision="bfloat16"), "precision | None | 'int8' | 'bfloat16'"),
    (lambda: export(options={"dtype": "float64"}, precision="int8"), "precision | float32 | float64"),
    (lambda: export(name="2nd"), "name | a name in C | '2nd'"),
    (lambda: export(name="while"), "name | 'while'"),
    (lambda: export(name=None), "name | None"),
    (lambda: export(readout="scores"), "readout | (none) | 'scores'"),
    (lambda: export(readout=SCORES[1:]), "readout | flat | 20 weights | (20,)"),
    (lambda: export(readout=SCORES.astype("f8")), "TypeError readout | float32 | float64"),
    (lambda: export(readout=SCORES, activation="sigmoid"), "TypeError activation | rnnkit.cells"),
    (lambda: export(activation=Sigmoid()), "activation | None | Sigmoid"),
    (lambda: export(Arctangent()), "cell Arctangent | atan"),
    (lambda: export(Fifth()), "cell Fifth | 1 to 4"),
]


@refusals(export_c=REFUSED)
def test_what_is_wrong_is_refused_and_nothing_written(call, kind, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=expected):
        call()
    assert not list(tmp_path.iterdir())


def test_network_on_a_gpu_is_refused(standin, tmp_path):
    import cupy

    with raises(ValueError, "export_c: net.weights | numpy.ndarray"):
        network("gru").to(cupy).export_c(tmp_path)
