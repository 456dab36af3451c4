"""A plan whose weights change checks its arguments as the public functions do."""

import copy

import numpy as np
import pytest
from messages import says

import rnnkit
from rnnkit.cells import SLSTM
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
