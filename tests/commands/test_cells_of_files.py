"""Commands that take a cell of a file: export and explain."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
from command_line import main
from messages import one_line_says

import rnnkit

SOURCE = """
from typing import NamedTuple

from rnnkit.cells import cell, forward, sigmoid, tanh


@cell(gates="f n")
class Own(NamedTuple):
    @forward("h")
    def step(self, f, n, h_prev):
        f = sigmoid(f)
        return f * h_prev + (1 - f) * tanh(n)
"""


@pytest.fixture
def cells(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "cells.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def saved(tmp_path, cells):
    spec = spec_from_file_location("cells_of_a_test", cells)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    rnnkit.Network(module.Own, 3, 4, seed=0).save(tmp_path / "own.npz")
    return tmp_path / "own.npz"


def test_export_takes_the_cell_of_a_network(capsys, tmp_path, cells, saved):
    status, out, _ = main(capsys, "export", saved, tmp_path / "c", "--name", "own", "--cell", f"{cells}:Own")
    assert status == 0 and (tmp_path / "c" / "own.c").is_file() and "own.c" in out
    status, _, err = main(capsys, "export", saved, tmp_path / "c", "--cell", f"{cells}:Other")
    assert status != 0 and one_line_says(err, "rnnkit: export: --cell", "Other", "it has Own")


def test_explain_takes_a_mode_or_a_cell(capsys, cells):
    status, out, _ = main(capsys, "explain", f"{cells}:Own", 3, 4, 5, 2)
    assert status == 0 and out.startswith("RNNDescriptor(Own(), 3, 4), T=5, N=2")
    status, _, err = main(capsys, "explain", "foo", 3, 4, 5, 2)
    assert status != 0 and one_line_says(err, "rnnkit: explain: MODE", "rnn_tanh, lstm, gru", "FILE.py:CLASS", "'foo'")
