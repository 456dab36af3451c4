"""The table of what works where: every option is tried in every call, and works or is refused as the table says."""

import re
import runpy
import sys
from typing import NamedTuple

import numpy as np
import own_cells
import pytest
from combinations import nightly
from repository import ROOT

import rnnkit
from rnnkit.call.options import (
    CALLS,
    CUPY,
    FROM_FORWARD,
    NOT_APPLICABLE,
    PLACES,
    REDUCED,
    TABLE,
    YES,
    Unsupported,
    options_of,
)
from rnnkit.call.steps import LISTED_ROWS
from rnnkit.cells import cell, tanh
from rnnkit.cells import forward as stage

X = np.random.default_rng(0).standard_normal((3, 2, 5), np.float32)
INPUTS = {"a": np.random.default_rng(1).standard_normal((3, 2, 4), np.float32)}
RESETS = np.array([[0, 1], [1, 0], [0, 0]])
MASK = 1 - RESETS


@cell(gates="b", inputs="a")
class Gated(NamedTuple):
    @stage("h")
    def step(self, b, a, h_prev):
        return tanh(a * b) + 0.5 * h_prev


# What asks for an option: of the network, an LSTM unless it says otherwise, and of the call.
ASKED = {
    "`lengths`": ({}, {"lengths": [1, 3]}),
    "`mask`": ({}, {"mask": MASK}),
    "`resets`, `initial`": ({}, {"resets": RESETS}),
    "`seed`": ({"num_layers": 2, "dropout": 0.5}, {"seed": 5}),
    "`first_row`": ({"num_layers": 2, "dropout": 0.5}, {"first_row": 1}),
    "`checkpoint_steps`": ({}, {"checkpoint_steps": 2}),
    "`precision`": ({}, {"precision": "bfloat16"}),
    "`dropout`": ({"num_layers": 2, "dropout": 0.5}, {}),
    "`bidirectional`": ({"bidirectional": True}, {}),
    "`proj_size`": ({"proj_size": 2, "cell_clip": (-2.0, 2.0)}, {}),
    "`reset_after=False`": ({"mode": "gru", "reset_after": False}, {}),
    "a cell of `rnnkit.cells` or your own": ({"mode": own_cells.Independent, "num_layers": 2}, {}),
    "`inputs`, of a cell with side inputs": ({"mode": Gated}, {"inputs": INPUTS}),
    "`learned_initial_state`": ({"learned_initial_state": True}, {}),
    '`dtype="float64"`': ({"dtype": "float64"}, {}),
    '`dtype="float16"` or `"bfloat16"`': ({"dtype": "float16"}, {}),
    "the same for what cuDNN does not have": ({"mode": own_cells.Independent, "dtype": "float16"}, {}),
}
DRAWN = "`seed`", "`first_row`", "`dropout`"  # outputs are dropped in training
PLANS = CALLS[3:]
FORM = {"precision": "bfloat16"}
# Kernels of reduced precision that no other test of the default part compiles.
RARE = "`reset_after=False`", "a cell of `rnnkit.cells` or your own", "`inputs`, of a cell with side inputs"
CASES = [
    (nightly if place == REDUCED and name in RARE else pytest.param)(name, call, place, id=f"{name}-{call}-{place}")
    for name in TABLE
    for place in PLACES
    for call in CALLS
]


def backward(net, x, prepared, **asked):
    library = np if isinstance(x, np.ndarray) else sys.modules["cupy"]
    inputs = {name: library.asarray(one) for name, one in INPUTS.items()} if net.desc.inputs_size else None
    result = net.forward(x, inputs=inputs, **prepared)
    return net.backward(result.workspace, dy=result.y, **asked).dx


def plan_step(net, x, prepared, **asked):
    plan, states, found = net.prepare(**prepared), (), []
    for one, own in zip(x, of_steps(asked, len(x)), strict=True):
        y, *states = plan.step(one, *states, **own)
        found.append(y)
    return found


def stream_step(net, x, prepared, **asked):
    stream = net.prepare(**prepared).stream(x.shape[1])
    return [stream.step(one, **own) for one, own in zip(x, of_steps(asked, len(x)), strict=True)]


def of_steps(asked, count):
    """What each step is asked for."""
    given = [{name: one[t] for name, one in asked.get("inputs", {}).items()} for t in range(count)]
    own = [asked | {name: asked[name][t] for name in asked.keys() & {"resets", "mask"}} for t in range(count)]
    return [one | ({"inputs": of_step} if of_step else {}) for one, of_step in zip(own, given, strict=True)]


RUN = {
    "forward": lambda net, x, prepared, **asked: net.forward(x, **prepared | asked).y,
    "backward": backward,
    "infer": lambda net, x, prepared, **asked: net.infer(x, **prepared | asked).y,
    "plan.infer": lambda net, x, prepared, **asked: net.prepare(**prepared).infer(x, **asked).y,
    "plan.step": plan_step,
    "stream.step": stream_step,
    "stream.run": lambda net, x, prepared, **asked: net.prepare(**prepared).stream(x.shape[1]).run(x, **asked),
}


def network(mode="lstm", **options):
    net = rnnkit.Network(mode, X.shape[2], 4, seed=0, **options)
    for name, block in net.views.items():
        if name.startswith(("h0", "c0")):
            block[:] = 0.5
    return net


def on_host(array):
    return np.array([one.get() if hasattr(one, "get") else one for one in array], np.float64)


def cell_of(name, call, place):
    """What the table says of a call at a place."""
    cell, there = (TABLE[name].entries[column] for column in (call, place))
    return there if isinstance(there, Unsupported) and cell == YES else cell


@pytest.mark.parametrize(("name", "call", "place"), CASES)
def test_option_works_or_is_refused_as_the_table_says(request, name, call, place):
    cell, run, (of_network, asked) = cell_of(name, call, place), RUN[call], ASKED[name]
    net, prepared = network(**of_network), FORM if place == REDUCED else {}
    # The same weights on the host, with nothing dropped or rounded.
    twin = network(**of_network | {"dropout": 0.0} | ({"dtype": "float32"} if net.dtype == "float16" else {}))
    options = {name: asked[name] for name in asked.keys() & {"lengths", "mask", "resets", "inputs"}}
    y = twin.infer(X.astype(twin.dtype), **options).y
    tolerance = 0.02 if prepared or "precision" in asked or net.dtype == "float16" else 1e-5
    x = X.astype(net.dtype)
    if place == CUPY:
        request.getfixturevalue("standin")
        net, x = net.to(sys.modules["cupy"]), sys.modules["cupy"].asarray(x)
        if "inputs" in asked:
            asked = asked | {"inputs": {name: sys.modules["cupy"].asarray(one) for name, one in INPUTS.items()}}
    if "precision" in asked and call in PLANS:
        prepared, asked = asked, {}
    if isinstance(cell, Unsupported):
        text = rf"\A\w+: {re.escape(cell.argument)} must {cell.expected.format(desc=net.desc)}, got .*{cell.cure}\Z"
        with pytest.raises(cell.kind, match=text):
            run(net, x, prepared, **asked)
    elif cell == YES:
        found = on_host(run(net, x, prepared, **asked))
        if call == "backward":
            assert np.isfinite(found).all()
        elif name in DRAWN:
            assert np.abs(found - y).max() > 0.01
        else:
            np.testing.assert_allclose(found, y, rtol=0, atol=tolerance)
    elif asked:
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            run(net, x, prepared, **asked)
        assert (cell == FROM_FORWARD) == (call == "backward" and TABLE[name].entries["forward"] == YES)
    else:
        assert name == "`dropout`" and cell == NOT_APPLICABLE  # all else of a network shows in every call
        np.testing.assert_allclose(on_host(run(net, x, prepared)), y, rtol=0, atol=tolerance)


def test_page_prints_the_table():
    program = runpy.run_path(str(ROOT / "scripts" / "what_works.py"))
    assert f"\n\n{program['markdown']()}\n" in (ROOT / "docs" / "reference" / "what-works.md").read_text()


def test_every_row_of_the_table_is_tried():
    assert ASKED.keys() == TABLE.keys() and {call for _, call, _ in (case.values for case in CASES)} == {*CALLS}


def test_calls_that_ask_for_nothing_share_their_options():
    desc = rnnkit.RNNDescriptor("gru", 3, 4)
    options = options_of("forward", desc, 5, 2)
    assert options is options_of("forward", desc, 5, 2) and options.steps.seq_len == 5
    assert options is not options_of("forward", desc, 5, 2, lengths=[5, 4])
    assert options_of("forward", desc, 5, 2, seed=3) == options  # nothing is dropped
    long = options_of("infer", desc, 1, LISTED_ROWS + 1)
    assert long is not options_of("infer", desc, 1, LISTED_ROWS + 1) and not long.steps.padded


def test_workspace_shows_its_options():
    net = rnnkit.GRU(5, 4, 2, dropout=0.5, seed=0)
    workspace = net.forward(X, lengths=[1, 3], seed=7, checkpoint_steps=2).workspace
    assert (workspace.seed, workspace.checkpoint_steps) == (7, 2) == workspace.options[1:3]
    assert workspace.steps is workspace.options.steps and workspace.steps.lengths.tolist() == [1, 3]
