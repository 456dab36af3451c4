"""A plan whose weights change checks its arguments as the public functions do."""

import copy

import numpy as np
import pytest
from messages import raises

import rnnkit
from rnnkit.network.changing import ChangingPlan

DESC = rnnkit.RNNDescriptor("gru", 3, 4)
X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def test_repacked_plan_equals_a_new_one():
    first, second = (rnnkit.init_weights(DESC, seed) for seed in (0, 1))
    plan = ChangingPlan(DESC, first)
    for w in (first, second):
        plan.repack(w)
        own, other = plan.step(X), rnnkit.prepare(DESC, w).step(X)
        assert own.y.tobytes() == other.y.tobytes()
        assert plan.infer(X[None]).y.tobytes() == own.y.tobytes()


def test_changing_plan_refuses_wrong_arguments_and_copies():
    w = rnnkit.init_weights(DESC, 0)
    plan = ChangingPlan(DESC, w)
    with raises(ValueError, f"repack: w | num_weights={w.size} | ({w.size - 1},)"):
        plan.repack(w[1:])
    with raises(TypeError, "repack: w | float32 | float64"):
        plan.repack(w.astype("float64"))
    with raises(ValueError, "step: x | input_size=3 | (5, 2)"):
        plan.step(X[:, :2].copy())
    with pytest.raises(TypeError, match="ChangingPlan cannot be copied or pickled"):
        copy.deepcopy(plan)
    with raises(ValueError, f"prepare: w | num_weights={w.size} | (3,)"):
        ChangingPlan(DESC, w[:3])
