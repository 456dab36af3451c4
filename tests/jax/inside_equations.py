"""Cells and networks as functions of JAX's arrays: the engine has the same gradients."""

import jax
import numpy as np
import pytest
from combinations import weekly
from one_step import BY_DEFAULT, FIELDS, Case, N, T, assert_near, assert_samples

import rnnkit
from rnnkit.cells import unrolled

jax.config.update("jax_enable_x64", True)
EACH = [(pytest.param if name in BY_DEFAULT else weekly)(one, id=name) for name, one in FIELDS.items()]


@pytest.mark.parametrize("fields", EACH)
def test_gradients_of_a_step_are_the_engines(fields):
    case = Case(fields)

    def total(leaves):
        found = case.run("jax", leaves, case.inputs)
        return sum((one * d).sum() for one, d in zip(found, case.cotangents, strict=True))

    for block, one in jax.jit(jax.grad(total))(case.leaves()).items():
        assert_near(f"d{block}", one, case.gradients[block])


def test_samples_have_gradients_of_their_own():
    """By vmap, over a loop of the engine's calls."""
    net, x = rnnkit.GRU(3, 5, dtype="float64", seed=0), np.random.default_rng(0).normal(size=(T, N, 3))
    gradient = jax.grad(lambda w, one: unrolled(net.desc, "jax")(w, one[:, None]).y.sum())
    assert_samples(net, x, jax.vmap(gradient, (None, 1))(net.weights, x))
