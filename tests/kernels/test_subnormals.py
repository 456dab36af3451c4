"""Decaying states, gradients and moments become 0 before arithmetic on them underflows."""

import numpy as np
import pytest
from combinations import nightly
from float_modes import needs_mxcsr, watched
from own_cells import Independent

import rnnkit
from rnnkit.cells import JANET, LEM, RAN, UGRNN, MinimalGatedUnit, PeepholeLSTM
from rnnkit.training import SGD, Adam, sigmoid_cross_entropy, softmax_cross_entropy
from rnnkit_kernels.machine.jit import kernel
from rnnkit_kernels.machine.small import flushed

SMALL = {"float32": 2.0**-100, "float64": 2.0**-960}
KINDS = ["lstm", "gru", *map(nightly, ("rnn_tanh", "rnn_relu", Independent))]
DTYPES = ["float32", nightly("float64")]
STEPS = {"float32": 400, "float64": 3000}


@kernel
def flush_all(target, source):
    for i in range(source.size):
        target[i] = flushed(source[i])


@pytest.mark.parametrize("dtype", SMALL)
def test_flushed_keeps_nan_infinity_and_the_limit(dtype):
    limit = np.array(SMALL[dtype], dtype)
    below = np.nextafter(limit, limit * 0)
    source = np.array([np.nan, np.inf, -np.inf, limit, -limit, below, -below, 0, 1, np.finfo(dtype).tiny] * 7, dtype)
    target = np.empty_like(source)
    flush_all(target, source)
    expected = np.array([np.nan, np.inf, -np.inf, limit, -limit, 0, 0, 0, 1, 0] * 7, dtype)
    np.testing.assert_array_equal(target, expected)


def decaying(kind, dtype):
    """A network whose state decays to 0 where the input is 0."""
    net = rnnkit.Network(kind, 3, 17, seed=0, dtype=dtype)
    for name, view in net.views.items():
        view *= 0 if name.startswith("bias") else 0.5
    return net


def watched_steps(kind, dtype, steps, size):
    """Of sequences that decay and others, with inputs of this size: the states after the last step, then its gradients
    by x, the weights and the states before the first one. No call underflows."""
    net = decaying(kind, dtype)
    x = (np.random.default_rng(0).standard_normal((steps, 4, 3)) * size).astype(dtype)
    x[1:, :2] = 0
    step, states, workspaces = net.prepare().step, [], []
    for t in range(steps):
        inferred, underflows = watched(step, x[t], *states)
        _, *states, workspace = net.forward(x[t : t + 1], *states)
        assert not underflows and np.array_equal(inferred.hy, states[0]), t
        states = [one for one in states if one is not None]
        workspaces.append(workspace)
    gradients = [np.full_like(states[0], size)]
    for t in reversed(range(steps)):
        found, underflows = watched(net.backward, workspaces[t], None, *gradients)
        assert not underflows, t
        gradients = [one for one in (found.dhx, found.dcx) if one is not None]
    return [one[:, :2] for one in states], [found.dx, found.dw, *gradients]


@needs_mxcsr
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_decay_to_zero_does_not_underflow(kind, dtype):
    """That of a state, and that of its gradient."""
    assert not any(one.any() for found in watched_steps(kind, dtype, STEPS[dtype], 1) for one in found)


@needs_mxcsr
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [*KINDS, *map(nightly, (JANET, MinimalGatedUnit, PeepholeLSTM, RAN, UGRNN))])
def test_gradients_of_decaying_states_do_not_underflow(kind, dtype):
    """Where states have decayed halfway to 0, so have their gradients: products of the two would be subnormal."""
    assert any(one.any() for found in watched_steps(kind, dtype, 20, SMALL[dtype] ** 0.6) for one in found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [UGRNN, *map(nightly, ("lstm", "gru", LEM, PeepholeLSTM))])
def test_weight_gradients_of_decaying_states_are_normal(kind, dtype):
    """The states decay from the first step on, their gradients from the last one on: all products are small."""
    net, steps = decaying(kind, dtype), STEPS[dtype] // 2
    x = np.zeros((steps, 4, 3), dtype)
    x[0] = 1
    workspace = net.forward(x).workspace
    dy = np.zeros((steps, 4, 17), dtype)
    for first in (0, steps // 2, steps - 1):
        dy[:first], dy[first:] = 0, 1
        dw = net.backward(workspace, dy).dw
        assert not ((dw != 0) & (abs(dw) < np.finfo(dtype).tiny)).any()
        assert dw.any()


@pytest.mark.parametrize("dtype", SMALL)
def test_gradients_below_the_limit_become_zero(dtype):
    """Where no gate's gradient is below the limit, gradients are linear in that of the output."""
    net = rnnkit.LSTM(3, 5, seed=0, dtype=dtype)
    result = net.forward(np.ones((1, 2, 3), dtype))
    dy, factor = np.ones((1, 2, 5), dtype), np.array(SMALL[dtype] * 2**10, dtype)
    expected = net.backward(result.workspace, dy).dw * factor
    np.testing.assert_array_equal(net.backward(result.workspace, dy * factor).dw, expected)
    assert not net.backward(result.workspace, dy * (factor / 2**11)).dw.any()


OPTIMIZERS = {"adam": (Adam, {}), "descent": (SGD, {}), "momentum": (SGD, {"momentum": 0.9})}
OPTIMIZERS["nesterov"] = SGD, {"momentum": 0.9, "nesterov": True}


@needs_mxcsr
@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_without_gradients_does_not_underflow(name, dtype):
    rng = np.random.default_rng(0)
    w = rng.standard_normal(100).astype(dtype)
    kind, options = OPTIMIZERS[name]
    optimizer = kind(w, **options)
    optimizer.step(rng.standard_normal(100).astype(dtype), 1e-3)
    gradient = np.zeros(100, dtype)
    assert not any(watched(optimizer.step, gradient, 1e-3)[1] for _ in range(3 * STEPS[dtype]))
    assert not any(optimizer.state[moment].any() for moment in ("mean", "velocity") if moment in optimizer.state)


@needs_mxcsr
@pytest.mark.parametrize("exponent", range(-120, -40, 10))
def test_adam_does_not_underflow_on_small_gradients(exponent):
    rng = np.random.default_rng(0)
    optimizer = Adam(rng.standard_normal(100).astype(np.float32))
    for _ in range(100):
        gradient = np.ldexp(rng.uniform(0.5, 1, 100), exponent).astype(np.float32)
        assert not watched(optimizer.step, gradient, 1e-3)[1]


@pytest.mark.parametrize("epsilon", [1e-8, 1e-15, 1e-25, 1e-40])
def test_adam_keeps_what_counts_beside_epsilon(epsilon):
    rng, found, expected = np.random.default_rng(0), np.zeros(50, np.float32), np.zeros(50)
    own, wide = Adam(found, epsilon=epsilon), Adam(expected, epsilon=epsilon)  # float64 flushes far later
    for scale in (1e-3, 1e-10, 1e-17, 1e-19, 0.0):
        for _ in range(20):
            gradient = (rng.standard_normal(50) * scale).astype(np.float32)
            own.step(gradient, 1.0)
            wide.step(gradient.astype(np.float64), 1.0)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-4)


@needs_mxcsr
def test_losses_of_confident_scores_do_not_underflow():
    rng = np.random.default_rng(0)
    scores, classes = (rng.standard_normal((40, 33)) * 40).astype(np.float32), rng.integers(0, 33, 40)
    for function, targets in ((softmax_cross_entropy, classes), (sigmoid_cross_entropy, scores > 0)):
        loss, underflows = watched(function, scores, targets)
        assert not underflows
        assert (abs(loss.gradient[loss.gradient != 0]) >= SMALL["float32"]).all() and np.isfinite(loss.loss)
