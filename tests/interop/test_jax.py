"""from_jax and to_jax, against Flax's linen and nnx, which run in a process of their own."""

import importlib.util
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from foreign import assert_outputs, assert_same_bits, assert_same_network, net_of, problem_of
from problems import Problem
from refused import refusals
from repository import SUPPORT

import rnnkit
from rnnkit.interop import from_jax, to_jax

FLAX = importlib.util.find_spec("flax") is not None or os.environ.get("CI") == "true"  # there it may not be skipped
needs_flax = pytest.mark.skipif(not FLAX, reason="Flax is not installed")
BIASES = {"lstm": "recurrent", "gru": "both", "rnn_tanh": "input", "rnn_relu": "input"}
CELLS = {"LSTMCell": "lstm", "OptimizedLSTMCell": "lstm", "GRUCell": "gru", "SimpleCell": "rnn_tanh"}
MODES = {f"{library}.{cell}": mode for library in ("linen", "nnx") for cell, mode in CELLS.items()}
CASES = [
    (cell, mode, bidirectional, dtype)
    for cell, usual in MODES.items()
    for mode in ([usual, "rnn_relu"] if usual == "rnn_tanh" else [usual])
    for bidirectional, dtype in ((True, "float32"), (False, "float64"))  # JAX compiles each for a second
]


def problem_for(cell, mode, bidirectional, dtype, bias=None):
    """One with the biases that the cell has, or others."""
    bias = bias or ("input" if cell == "nnx.GRUCell" else BIASES[mode])
    problem = problem_of(mode=mode, bidirectional=bidirectional, dtype=dtype, bias=bias)
    for name, view in problem.views.items():
        if mode == "gru" and name.startswith("bias_hh"):
            view[: 2 * problem.hidden_size] = 0  # linen has that of n alone
    return problem


def run_flax(pairs):
    """What Flax makes of each problem's network in cells of a class."""
    names = "bidirectional", "hidden_size", "x", "hx", "cx"
    cases = [
        dict(cell=cell, layers=to_jax(net_of(problem), cell), relu=problem.mode == "rnn_relu")
        | {name: getattr(problem, name) for name in names}
        for cell, problem in pairs
    ]
    command = [sys.executable, str(SUPPORT / "flax_process.py")]
    return pickle.loads(subprocess.run(command, input=pickle.dumps(cases), stdout=subprocess.PIPE, check=True).stdout)


def leaves(tree, path=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}/")
        else:
            yield f"{path}{key}", (value.shape, value.dtype)


@pytest.fixture(scope="module")
def by_flax():
    return dict(zip(CASES, run_flax([(case[0], problem_for(*case)) for case in CASES]), strict=True))


each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))


@pytest.mark.weekly
@needs_flax
@each_case
def test_flax_computes_the_same(case, by_flax):
    problem, found = problem_for(*case), by_flax[case]
    net = net_of(problem)
    assert_outputs(net, problem, found["y"], found["states"])
    assert found["desc"] == net.desc
    assert_same_bits("weights of JAX's arrays", found["weights"], net.weights)
    for ours, own in zip(to_jax(net, case[0]), found["made"], strict=True):
        assert dict(leaves(ours)) == dict(leaves(own))


@pytest.mark.nightly
@needs_flax
def test_biases_that_flax_lacks_are_added_to_its_own():
    pairs = [
        (cell, problem_of(mode=mode, bias=bias, num_layers=1))
        for cell, mode in MODES.items()
        for bias in (("both", "none") if cell.startswith("linen.") else ("none",))
    ]
    for (_, problem), found in zip(pairs, run_flax(pairs), strict=True):
        assert_outputs(net_of(problem), problem, found["y"], found["states"])


@each_case
def test_round_trip_keeps_every_bit(case):
    problem = problem_for(*case)
    net, activation = net_of(problem), "relu" if problem.mode == "rnn_relu" else None
    trees = to_jax(net, case[0])
    assert_same_network(from_jax(trees, activation=activation), net)
    for tree, again in zip(trees, to_jax(from_jax(trees, activation=activation), case[0]), strict=True):
        assert dict(leaves(tree)) == dict(leaves(again))


def test_default_cell_is_of_linen():
    for mode, cell in (("lstm", "linen.LSTMCell"), ("gru", "linen.GRUCell"), ("rnn_relu", "linen.SimpleCell")):
        net = net_of(problem_for(cell, mode, False, "float32"))
        assert [dict(leaves(t)) for t in to_jax(net)] == [dict(leaves(t)) for t in to_jax(net, cell)]


def test_wrappers_are_optional():
    net = net_of(replace(problem_for("linen.LSTMCell", "lstm", False, "float32"), num_layers=1))
    (tree,) = to_jax(net)
    for source in (tree, tree["cell"], {"params": tree}, {"params": tree["cell"]}, [tree], (tree["cell"],)):
        assert_same_network(from_jax(source), net)


def test_weights_are_copies():
    net = net_of(Problem("lstm", bias="recurrent"))
    (tree,) = to_jax(net)
    again = from_jax(tree)
    tree["cell"]["hi"]["bias"][:] = 9
    assert_same_network(again, net)
    assert not any(np.shares_memory(dense["kernel"], net.weights) for dense in tree["cell"].values())


def zeros(shape, dtype="f4"):
    return np.zeros(shape, dtype)


def lstm_tree(drop=(), **changes):
    """The tree of an LSTM(3, 2), entries by their paths with a double underscore."""
    (tree,) = to_jax(rnnkit.LSTM(3, 2, bias="recurrent", seed=0))
    for path, array in changes.items():
        dense, leaf = path.split("__")
        tree["cell"].setdefault(dense, {})[leaf] = array
    for path in drop:
        dense, leaf = path.split("__")
        del tree["cell"][dense][leaf]
    return tree


def dense_tree(features, size, columns):
    inside = {"kernel": zeros((features, columns)), "bias": zeros(columns)}
    return {"dense_i": inside, "dense_h": {"kernel": zeros((size, columns))}}


def gru_with_bias_inside():
    net = rnnkit.GRU(3, 2, seed=0)
    net.views["bias_hh_l0"][4:] = [0, -0.5]
    return net


BOTH_WAYS = {"forward_rnn": dense_tree(2, 2, 6), "backward_rnn": dense_tree(2, 2, 6)}
LEAVES = [f"{dense}{gate}/kernel" for dense in "ih" for gate in "ifgo"] + [f"h{gate}/bias" for gate in "ifgo"]
MOVED = " | ".join(["linen.LSTMCell | 12 | missing | unknown", *LEAVES, *(f"encoder/cell/{leaf}" for leaf in LEAVES)])
FROM_JAX = [
    (lstm_tree(drop=["hi__bias"]), 'params["cell"] | linen.LSTMCell | 11 | missing: hi/bias'),
    (lstm_tree(hz__bias=zeros(2)), 'params["cell"] | linen.LSTMCell | 13 | unknown: hz/bias'),
    (lstm_tree(ig__kernel=zeros((2, 2))), 'params["cell"]["ig/kernel"] | (input_size=3, hidden_size=2) | (2, 2)'),
    (lstm_tree(ho__bias=zeros(3)), 'params["cell"]["ho/bias"] | (hidden_size=2,) | (3,)'),
    (
        lstm_tree(ho__bias=zeros(2, "f8")),
        'TypeError params["cell"]["ho/bias"] | float32 | params["cell"]["ii/kernel"] | float64',
    ),
    (lstm_tree(ho__bias=zeros(2, "f2")), 'TypeError params["cell"]["ho/bias"] | float32 | float64 | float16'),
    (dense_tree(3, 2, 8), 'params["dense_h/kernel"] | nnx.GRUCell | nnx.SimpleCell | (2, 8)'),
    ([lstm_tree()] * 2, 'params[1]["cell"]["ii/kernel"] | (input_size=2, hidden_size=2) | (3, 2)'),
    ([dense_tree(2, 2, 6), BOTH_WAYS], 'params[1]["forward_rnn"] | 1 | params[0] | 2'),
    ({"encoder": lstm_tree()}, f"params | {MOVED}"),
    (3, "TypeError params | mapping | list | int"),
    ([], "TypeError params | mapping | list"),
    ({"params": 3}, 'TypeError params["params"] | mapping | int'),
]
ACTIVATION = [
    (lambda: from_jax(lstm_tree(), activation="tanh"), 'activation | mode="lstm" | tanh'),
    (lambda: from_jax(dense_tree(3, 2, 2), activation="gelu"), "activation | tanh | relu | gelu"),
]
TO_JAX = [
    (rnnkit.LSTM(3, 2, proj_size=1), None, "net.desc.proj_size | None | 1 | Flax"),
    (rnnkit.LSTM(3, 2, cell_clip=(-1, 1)), None, "net.desc.cell_clip | None | (-1.0, 1.0) | Flax"),
    (rnnkit.GRU(3, 2, reset_after=False), None, "net.desc.reset_after | True | False | Flax"),
    (rnnkit.GRU(2, 2, input_mode="skip"), None, "net.desc.input_mode | linear | skip | Flax"),
    (rnnkit.GRU(3, 2), "linen.LSTMCell", 'cell | linen.GRUCell | nnx.GRUCell | mode="gru" | linen.LSTMCell'),
    (gru_with_bias_inside(), "nnx.GRUCell", "net.views | 0 | rows of n | bias_hh | 0.5 | Flax | r"),
]


@refusals(
    from_jax=[*ACTIVATION, *((partial(from_jax, tree), text) for tree, text in FROM_JAX)],
    to_jax=[(partial(to_jax, net, cell), text) for net, cell, text in TO_JAX],
)
def test_unfit_trees_and_networks_are_refused(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()
