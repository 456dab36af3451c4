"""Declarations of cells, and their equations on single numbers: no kernel is compiled for this."""

import math
from typing import NamedTuple

import numpy as np
import pytest

from rnnkit import RNNDescriptor
from rnnkit_kernels.cells.cell import Gate, Product, cell, forward, gradient
from rnnkit_kernels.cells.functions import clip, sigmoid, tanh
from rnnkit_kernels.cells.gru import ResetAfterGRU, ResetBeforeGRU
from rnnkit_kernels.cells.lstm import LSTM
from rnnkit_kernels.cells.modes import modes_with
from rnnkit_kernels.cells.vanilla import ReLU, Tanh

CELLS = {
    "tanh": Tanh(),
    "relu": ReLU(),
    "lstm": LSTM(False, -math.inf, math.inf),
    "gru": ResetAfterGRU(),
    "gru-reset-before": ResetBeforeGRU(),
}
R = 0.7  # the recurrent weight of a unit, where R multiplies what a stage wrote


def step(cell, given):
    """What all names of a unit hold behind the step."""
    declaration, values = cell.declaration, dict(given)
    for number, phase in enumerate(declaration.phases):
        for product in phase.products if number else ():
            for name in declaration.names_of(product):
                values[name] += R * values[product.source]
        for stage in phase.forward:
            found = stage.function(cell, *(values[name] for name in stage.reads))
            values |= dict(zip(stage.writes, found if len(stage.writes) > 1 else [found], strict=True))
    return values


def test_built_in_cells_compute_their_equations():
    i, f, g, o, c_prev, h_prev = 0.3, -0.8, 1.1, 0.2, -0.7, 0.4
    values = step(CELLS["lstm"], dict(i=i, f=f, g=g, o=o, c_prev=c_prev, h_prev=h_prev))
    c = sigmoid(f) * c_prev + sigmoid(i) * math.tanh(g)
    assert (values["c"], values["h"]) == pytest.approx((c, sigmoid(o) * math.tanh(c)))
    clipped = step(LSTM(True, 0.5, 0.6), dict(i=i, f=f, g=g, o=o, c_prev=c_prev, h_prev=h_prev))
    assert (clipped["c"], clipped["h"]) == pytest.approx((0.5, sigmoid(o) * math.tanh(0.5)))
    r, z, n, q = 0.5, -0.3, 0.9, -1.2
    values = step(CELLS["gru"], dict(r=r, z=z, n=n, q=q, h_prev=h_prev))
    new = math.tanh(n + sigmoid(r) * q)
    assert values["h"] == pytest.approx((1 - sigmoid(z)) * new + sigmoid(z) * h_prev)
    values = step(CELLS["gru-reset-before"], dict(r=r, z=z, n=n, h_prev=h_prev))
    new = math.tanh(n + R * sigmoid(r) * h_prev)
    assert values["h"] == pytest.approx((1 - sigmoid(z)) * new + sigmoid(z) * h_prev)
    assert [step(CELLS["relu"], {"a": a})["h"] for a in (-1.0, 0.0, 2.0)] == [0, 0, 2]
    assert step(CELLS["tanh"], {"a": 0.5})["h"] == math.tanh(0.5)


def test_functions_at_the_ends_of_their_range():
    assert sigmoid(1000.0) == 1 and sigmoid(-1000.0) == 0 and sigmoid(0.0) == 0.5
    assert tanh(math.inf) == 1
    assert [clip(x, -1.0, 2.0) for x in (-3.0, 0.5, 3.0)] == [-1, 0.5, 2]
    assert math.isnan(clip(math.nan, -1.0, 2.0))


def test_products_write_neighbouring_slots():
    lstm, after, before = (kind.declaration for kind in (LSTM, ResetAfterGRU, ResetBeforeGRU))
    nothing = range(4, 4)
    assert lstm.slots == ("i", "f", "g", "o")
    assert lstm.products == (Product(None, range(4), range(0)), Product("h_prev", range(4), nothing))
    assert after.slots == ("n", "r", "z", "q")
    assert after.products == (Product(None, range(3), range(0)), Product("h_prev", range(1, 4), range(3, 4)))
    assert [after.rows_of(product.slots) for product in after.products] == [[2, 0, 1], [0, 1, 2]]
    assert before.slots == ("n", "r", "z", "reset")
    assert before.products[1:] == (Product("h_prev", range(1, 3), range(3, 3)), Product("reset", range(1), range(0)))
    names = [[stage.function.__name__ for stage in (*forward, *back)] for _, forward, back in before.phases]
    assert names == [["gates", "through_reset"], ["output", "through_output"]]
    [(_, _, back)] = lstm.phases
    assert [stage.function.__name__ for stage in back] == ["through_output", "through_cell"]
    assert (lstm.carries_hidden, after.carries_hidden, before.carries_hidden) == (False, True, True)


def test_stage_reads_and_writes_by_name():
    @cell(gates=[Gate("a"), Gate("b", apart="rb"), Gate("e", multiplies=None)], states="s", vectors="p", slots="kept")
    class Mine(NamedTuple):
        both = forward("s h kept")(lambda self, a, e, rb, s_prev, p: (a, rb + p * s_prev, e))
        back = gradient("da db drb de ds_prev dp")(lambda self, dh, ds, p, s_prev: (ds, 0, dh, 0, dh * p, dh * s_prev))

    declaration = Mine.declaration
    [((product,), (both,), (back,))] = declaration.phases
    assert (both.reads, both.writes) == (("a", "e", "rb", "s_prev", "p"), ("s", "h", "kept"))
    assert (back.reads, back.writes[-2:]) == (("dh", "ds", "p", "s_prev"), ("ds_prev", "dp"))
    assert (declaration.slots, declaration.states) == (("b", "e", "a", "rb", "kept"), ("s",))
    assert product == declaration.products[1] == Product("h_prev", range(2, 4), range(3, 4))
    assert declaration.rows_of(declaration.products[0].slots) == [1, 2, 0]
    assert declaration.rows_of(product.slots, declaration.recurrent_gates) == [0, 1]


def test_modes_have_their_options():
    assert modes_with("cell_clip") == ["lstm"] and modes_with("reset_after") == ["gru"]
    clipped = RNNDescriptor("lstm", 3, 5, cell_clip=(-2, 3), dtype="float32").cell
    assert clipped == LSTM(True, -2, 3) and type(clipped.low) is np.float32
