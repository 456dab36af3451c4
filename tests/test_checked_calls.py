"""What the language model calls of the engine, beside the public functions, checks its arguments as these do."""

import copy

import numpy as np
import pytest
from messages import says

import rnnkit
from rnnkit import training
from rnnkit.cells import AUGRU, SLSTM
from rnnkit.network.changing import ChangingPlan
from rnnkit.training.embedding import add_rows
from rnnkit.training.packed_readout import PackedReadout

DESC = rnnkit.RNNDescriptor("gru", 3, 4)
SEVERAL_STATES = rnnkit.RNNDescriptor(SLSTM(sigmoid_forget=True), 3, 4, dtype="float64")
X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def test_a_plan_with_new_weights_is_a_new_plan():
    first, second = (rnnkit.init_weights(DESC, seed) for seed in (0, 1))
    plan = ChangingPlan(DESC, first)
    for w in (first, second):
        plan.repack(w)
        own, other = plan.step(X), rnnkit.prepare(DESC, w).step(X)
        assert own.y.tobytes() == other.y.tobytes()
        assert plan.infer(X[None]).y.tobytes() == own.y.tobytes()


def test_what_a_changing_plan_refuses():
    w = rnnkit.init_weights(DESC, 0)
    plan = ChangingPlan(DESC, w)
    with pytest.raises(ValueError, match=says("repack: w", f"num_weights={w.size}", (w.size - 1,))):
        plan.repack(w[1:])
    with pytest.raises(TypeError, match=says("repack: w", "float32", "float64")):
        plan.repack(w.astype("float64"))
    with pytest.raises(ValueError, match=says("step: x", "input_size=3", (5, 2))):
        plan.step(X[:, :2].copy())
    with pytest.raises(TypeError, match="ChangingPlan cannot be copied or pickled"):
        copy.deepcopy(plan)
    with pytest.raises(ValueError, match=says("prepare: w", f"num_weights={w.size}", (3,))):
        ChangingPlan(DESC, w[:3])


@pytest.mark.parametrize("desc", [DESC, SEVERAL_STATES], ids=["gru", "states"])
def test_buffered_steps_are_those_of_a_plan(desc):
    w, x = rnnkit.init_weights(desc, 0), X.astype(desc.dtype)
    plan, state = ChangingPlan(desc, w), (None, None)
    steps = plan.steps(len(x))
    for _ in range(3):
        y, *state = plan.step(x, *state)
        assert steps.step(x).tobytes() == y.tobytes()
    hx, cx = steps.states
    np.testing.assert_array_equal(hx, state[0])
    np.testing.assert_array_equal(cx, state[1])
    steps.begin()
    assert steps.step(x).tobytes() == plan.step(x).y.tobytes()
    steps.begin(*state)
    assert steps.step(x).tobytes() == plan.step(x, *state).y.tobytes()


def test_what_buffered_steps_refuse():
    steps = ChangingPlan(DESC, rnnkit.init_weights(DESC, 0)).steps(5)
    for x, error, facts in (
        (X[:4], ValueError, ["batch_size=5", 4]),
        (X[:, :2].copy(), ValueError, ["input_size=3", (5, 2)]),
        (X.astype("float64"), TypeError, ["float32", "float64"]),
        (X.tolist(), TypeError, ["list"]),
    ):
        with pytest.raises(error, match=says("step: x", *facts)):
            steps.step(x)
    with pytest.raises(ValueError, match=says("begin: hx", "batch_size=5", (1, 4, 4))):
        steps.begin(np.zeros((1, 4, 4), np.float32))
    with pytest.raises(ValueError, match=says("begin: cx", "None", "gru")):
        steps.begin(None, np.zeros((1, 5, 4), np.float32))
    side, both = rnnkit.RNNDescriptor(AUGRU(), 3, 4), rnnkit.RNNDescriptor("gru", 3, 4, bidirectional=True)
    with pytest.raises(TypeError, match=says("step: inputs", "attention")):
        ChangingPlan(side, rnnkit.init_weights(side, 0)).steps(5).step(X)
    with pytest.raises(ValueError, match=says("steps: desc.bidirectional", "False", "True")):
        ChangingPlan(both, rnnkit.init_weights(both, 0)).steps(5)


@pytest.mark.parametrize("max_rows", [1, 64])
def test_a_packed_readout_is_dense(max_rows):
    w = training.init_dense(3, 7, seed=0)
    readout = PackedReadout(w, 7, max_rows)
    assert readout(X).tobytes() == training.dense(w, X, 7).tobytes()
    w *= 2
    readout.pack()
    assert readout(X).tobytes() == training.dense(w, X, 7).tobytes()
    assert readout(X[:0]).shape == (0, 7)


def test_what_a_packed_readout_refuses():
    w = training.init_dense(3, 7, seed=0)
    for arguments, error, facts in (
        ((w[1:], 7, 1), ValueError, ["w", "num_outputs=7", (w.size - 1,)]),
        ((w[:7], 7, 1), ValueError, ["w", (14,), (7,)]),
        ((w[::2], 2, 1), ValueError, ["w", "C-contiguous"]),
        ((w.astype("int32"), 7, 1), TypeError, ["w", "float32", "int32"]),
        ((w, 0, 1), ValueError, ["num_outputs", 1, 0]),
        ((w, 7, 0), ValueError, ["max_rows", 1, 0]),
    ):
        with pytest.raises(error, match=says("PackedReadout:", *facts)):
            PackedReadout(*arguments)
    readout = PackedReadout(w, 7, 8)
    for x, error, facts in (
        (X[:, :2].copy(), ValueError, [(5, 3), (5, 2)]),
        (X[0], ValueError, [(3, 3), (3,)]),
        (X.astype("float64"), TypeError, ["float32", "float64"]),
        (np.asfortranarray(X), ValueError, ["C-contiguous"]),
        (X.tolist(), TypeError, ["numpy.ndarray", "list"]),
    ):
        with pytest.raises(error, match=says("PackedReadout: x", *facts)):
            readout(x)


def test_rows_are_added_where_their_index_says():
    sums, index = np.zeros((4, 3), np.float32), np.array([2, 0, 2, 3, 2])
    add_rows(sums, index, X)
    expected = np.zeros((4, 3), np.float32)
    np.add.at(expected, index, X)
    assert sums.tobytes() == expected.tobytes()
    add_rows(sums, index[:0], X[:0])
    assert sums.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("changes", "error", "facts"), [
    ({"index": np.array([2, 0, 4, 3, 2])}, ValueError, ["index[2]", "0..3", 4]),
    ({"index": np.array([-1, 0, 1, 3, 2])}, ValueError, ["index[0]", "0..3", -1]),
    ({"index": np.array([0, 1])}, ValueError, ["rows", (2, 3), (5, 3)]),
    ({"index": np.zeros((5, 1), int)}, ValueError, ["index", "(n,)", (5, 1)]),
    ({"index": np.zeros(5)}, TypeError, ["index", "integers", "float64"]),
    ({"rows": X.astype("float64")}, TypeError, ["rows", "float32", "float64"]),
    ({"rows": X[:, :2]}, ValueError, ["rows", (5, 3), (5, 2)]),
    ({"sums": np.zeros(12, np.float32)}, ValueError, ["sums", "(K, I)", (12,)]),
    ({"sums": np.zeros((4, 3), np.float32, order="F")}, ValueError, ["sums", "C-contiguous"]),
    ({"sums": X[:4], "rows": X}, ValueError, ["sums", "memory", "rows"]),
])
def test_what_add_rows_refuses(changes, error, facts):
    given = {"sums": np.zeros((4, 3), np.float32), "index": np.arange(5) % 4, "rows": X.copy()} | changes
    before = given["sums"].copy()
    name, *facts = facts
    with pytest.raises(error, match=says(f"add_rows: {name}", *facts)):
        add_rows(**given)
    np.testing.assert_array_equal(given["sums"], before)
