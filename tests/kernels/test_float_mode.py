"""Results do not depend on the floating-point mode of the caller or of workers, and calls leave it as it was."""

import numba
import numpy as np
import pytest
from float_modes import MODES, in_mode, mode, needs_mxcsr

import rnnkit
from rnnkit.training import SGD, Adam, dense, dense_backward, sigmoid_cross_entropy, softmax_cross_entropy
from rnnkit_kernels.machine import thread_pool

pytestmark = needs_mxcsr


def draw(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def network_calls(net, *shape):
    """A function of a training step, an inference and a step, which returns their bits."""
    x = draw(*shape)
    dy = np.zeros((*shape[:2], net.desc.output_size), np.float32)
    dy[-1] = 1e-25  # whose gradients become subnormal

    def calls():
        result = net.forward(x)
        gradients = net.backward(result.workspace, dy)
        step = net.prepare().step(x[0], result.hy)
        return b"".join(one.tobytes() for one in (*result[:2], *gradients[:2], gradients.dw, net.infer(x).y, step.y))

    return calls


def training_call(w, x):
    """Bits of a step of the training kit."""
    scores, optimizers = dense(w, x, 33), [Adam(w), SGD(w, momentum=0.9), SGD(w)]
    losses = softmax_cross_entropy(scores, np.arange(40) % 33), sigmoid_cross_entropy(scores, scores > 0)
    dx, dw = dense_backward(w, x, losses[0].gradient)
    for optimizer in optimizers:
        optimizer.step(dw, 0.5)
    return b"".join(one.tobytes() for one in (scores, dx, dw, w, *(loss.gradient for loss in losses)))


def assert_same_in_mode(value, calls):
    expected = calls()
    with in_mode(value):
        found = calls()
        assert mode() & 0xFFC0 == value & 0xFFC0
    assert found == expected


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_network_computes_the_same_bits_in_every_mode(kind, name):
    assert_same_in_mode(MODES[name], network_calls(rnnkit.Network(kind, 5, 17, seed=0), 30, 3, 5))


def test_training_kit_computes_the_same_bits_while_flushing():
    """In no other mode: an optimizer also computes in Python, which rounds as the thread does."""
    w, x = draw(33 * 18), 30 * draw(40, 17)
    assert_same_in_mode(MODES["flush"], lambda: training_call(w.copy(), x))


def end_workers():
    if thread_pool._pool is not None:
        thread_pool._pool.shutdown()
        thread_pool._pool = None


@pytest.mark.cores(2)
@pytest.mark.parametrize("name", MODES)
def test_workers_started_in_another_mode_compute_the_same_bits(name, every_worker_comes, threads_as_before):
    """A thread starts in the mode of the one that starts it."""
    calls = network_calls(rnnkit.GRU(64, 128, seed=0), 20, 16, 64)
    numba.set_num_threads(1)
    expected = calls()
    numba.set_num_threads(2)
    with in_mode(MODES[name]):
        end_workers()  # the next call starts others
        found = [calls() for _ in range(5)]
    end_workers()
    assert found == [expected] * 5
