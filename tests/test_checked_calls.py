"""A plan whose weights change checks its arguments as the public functions do."""

import copy

import numpy as np
import pytest
from messages import says

import rnnkit
from rnnkit.cells import AUGRU, SLSTM
from rnnkit.network.changing import ChangingPlan

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
