"""Results do not depend on the floating-point mode of the caller or of workers, and calls leave it as it was."""

import os
import subprocess
import sys
import threading

import numba
import numpy as np
import pytest
from float_modes import DEFAULT, MODES, in_mode, mode, needs_mxcsr, set_mode
from optional import needs
from repository import SUPPORT

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


@pytest.mark.cores(2)
def test_threads_in_different_modes_compute_the_same_bits():
    calls, found = network_calls(rnnkit.GRU(5, 17, seed=0), 30, 3, 5), []
    expected = calls()

    def work(value):
        set_mode(value)
        found.extend(calls() for _ in range(20))

    threads = [threading.Thread(target=work, args=(value,)) for value in (DEFAULT, *MODES.values())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 100


POOL = """
import ctypes, sys
import torch
import rnnkit.torch
from rnnkit.torch.threads import _runtime
torch.manual_seed(0)
torch.set_num_threads(2)
module, x, large = rnnkit.torch.GRU(64, 256), torch.randn(40, 16, 64), torch.ones(1 << 22)
if sys.argv[1] == "up":
    library = ctypes.CDLL("libm.so.6")
    _runtime().GOMP_parallel(ctypes.cast(library.fesetround, ctypes.c_void_p), ctypes.c_void_p(0x800), 2, 0)
    library.fesetround(0)  # this thread rounds to nearest again, the other one up
print(int((large + 1e-9 > 1).sum()) > 0, file=sys.stderr)
for _ in range(5):
    y = module(x)[0]
    dw = torch.autograd.grad(y.sum(), module.weight_hh_l0)[0]
    print(*(hash(one.detach().numpy().tobytes()) for one in (y, dw)))
"""


@pytest.mark.cores(2)
def test_results_are_the_same_on_a_pytorch_pool_that_rounds_up():
    needs("torch")
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "2"}

    def results(name):
        options = dict(env=environment, capture_output=True, text=True, cwd=SUPPORT)
        run = subprocess.run([sys.executable, "-c", POOL, name], **options)
        assert run.returncode == 0 and run.stderr == f"{name == 'up'}\n", run.stderr
        return run.stdout

    assert results("up") == results("default")
