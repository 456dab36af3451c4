"""Outputs and gradients of a layer of Keras on the backend of the process."""

import keras
import numpy as np
import pytest
from keras import ops

# It draws other masks of dropout, doubles the variables of a Bidirectional, and cannot load those.
not_old = pytest.mark.skipif(keras.__version__.startswith("3.0."), reason="Keras 3.0 itself is wrong there")
BACKEND = keras.config.backend()
TRAINS = BACKEND != "numpy"


def arrays(values):
    return [ops.convert_to_numpy(one) for one in values]


def run(layer, x, states=None, mask=None, probes=(), training=True):
    """The outputs of a call, and the gradients of x, the states and the variables of sum(outputs*probes), in a list;
    without probes, and with NumPy, the outputs alone."""
    options = {"training": training} | ({} if mask is None else {"mask": ops.convert_to_tensor(mask)})

    def outputs(x, states, call=layer):
        given = {} if states is None else {"initial_state": states}
        found = call(x, **options, **given)
        return list(found) if isinstance(found, (list, tuple)) else [found]

    if not len(probes) or not TRAINS:
        return arrays(outputs(ops.convert_to_tensor(x), states))
    return {"torch": _of_torch, "jax": _of_jax, "tensorflow": _of_tensorflow}[BACKEND](
        layer, x, states, probes, outputs
    )


def _of_torch(layer, x, states, probes, outputs):
    import torch

    variables = [one.value for one in layer.trainable_variables]
    for one in variables:
        one.grad = None
    leaves = [torch.tensor(one, requires_grad=True) for one in (x, *(states or []))]
    found = outputs(leaves[0], leaves[1:] if states is not None else None)
    sum((one * torch.tensor(probe)).sum() for one, probe in zip(found, probes, strict=True)).backward()
    return [one.detach().numpy() for one in found] + [one.grad.numpy() for one in (*leaves, *variables)]


def _of_jax(layer, x, states, probes, outputs):
    import jax

    fixed = [one.value for one in layer.non_trainable_variables]

    def loss(x, states, variables):
        def call(*given, **options):
            return layer.stateless_call(variables, fixed, *given, **options)[0]

        found = outputs(x, states, call)
        return sum((one * probe).sum() for one, probe in zip(found, probes, strict=True)), found

    variables = [one.value for one in layer.trainable_variables]
    gradient = jax.jit(jax.grad(loss, (0, 1, 2) if states is not None else (0, 2), has_aux=True))
    gradients, found = gradient(x, states, variables)
    return [np.asarray(one) for one in (*found, *jax.tree.leaves(gradients))]


def _of_tensorflow(layer, x, states, probes, outputs):
    import tensorflow as tf

    leaves = [tf.constant(one) for one in (x, *(states or []))]
    variables = [one.value for one in layer.trainable_variables]

    @tf.function
    def gradients(*leaves):
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            found = outputs(leaves[0], list(leaves[1:]) if states is not None else None)
            loss = sum(tf.reduce_sum(one * probe) for one, probe in zip(found, probes, strict=True))
        return found, tape.gradient(loss, [*leaves, *variables])

    found, slopes = gradients(*leaves)
    return [one.numpy() for one in (*found, *slopes)]


def assert_near(found, expected, tolerance=5e-5):
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(one, other, atol=tolerance, rtol=tolerance, err_msg=f"number {number}")
