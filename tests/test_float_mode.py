"""Results do not depend on the floating-point mode of the caller or of workers, and calls leave it as it was."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numba
import numpy as np
import pytest
from float_modes import DEFAULT, MODES, in_mode, mode, needs_mxcsr, set_mode

import rnnkit
from rnnkit.training import SGD, Adam, dense, dense_backward, sigmoid_cross_entropy, softmax_cross_entropy
from rnnkit_kernels.machine import thread_pool

pytestmark = needs_mxcsr
TESTS = Path(__file__).parent


def draw(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def small_gradient(net, x):
    dy = np.zeros((*x.shape[:2], net.desc.output_size), np.float32)
    dy[-1] = 1e-25
    return dy


def of_network(net, x, dy):
    """Bits of a training step, an inference and a step."""
    result = net.forward(x)
    gradients = net.backward(result.workspace, dy)
    step = net.prepare().step(x[0], result.hy)
    return b"".join(one.tobytes() for one in (*result[:2], *gradients[:2], gradients.dw, net.infer(x).y, step.y))


def of_training(w, x):
    w = w.copy()
    scores, optimizers = dense(w, x, 33), [Adam(w), SGD(w, momentum=0.9), SGD(w)]
    losses = softmax_cross_entropy(scores, np.arange(40) % 33), sigmoid_cross_entropy(scores, scores > 0)
    dx, dw = dense_backward(w, x, losses[0].gradient)
    for optimizer in optimizers:
        optimizer.step(dw, 0.5)
    return b"".join(one.tobytes() for one in (scores, dx, dw, w, *(loss.gradient for loss in losses)))


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_calls_of_a_network(kind, name):
    net, x = rnnkit.Network(kind, 5, 17, seed=0), draw(30, 3, 5)
    dy = small_gradient(net, x)
    expected = of_network(net, x, dy)
    with in_mode(MODES[name]):
        found = of_network(net, x, dy)
        assert mode() & 0xFFC0 == MODES[name] & 0xFFC0
    assert found == expected


def test_calls_of_the_training_kit():
    """Only where subnormal numbers are 0: an optimizer also computes in Python, which rounds as the thread does."""
    w, x = draw(33 * 18), 30 * draw(40, 17)
    expected = of_training(w, x)
    with in_mode(MODES["flush"]):
        found = of_training(w, x)
        assert mode() & 0xFFC0 == MODES["flush"] & 0xFFC0
    assert found == expected


def end_workers():
    if thread_pool._pool is not None:
        thread_pool._pool.shutdown()
        thread_pool._pool = None


@pytest.mark.cores(2)
@pytest.mark.parametrize("name", MODES)
def test_workers_that_start_in_another_mode(name, every_worker_comes, threads_as_before):
    """A thread starts in the mode of the one that starts it."""
    net, x = rnnkit.GRU(64, 128, seed=0), draw(20, 16, 64)
    dy = small_gradient(net, x)
    numba.set_num_threads(1)
    expected = of_network(net, x, dy)
    numba.set_num_threads(2)
    with in_mode(MODES[name]):
        end_workers()  # the next call starts others
        found = [of_network(net, x, dy) for _ in range(5)]
    end_workers()
    assert found == [expected] * 5


@pytest.mark.cores(2)
def test_threads_of_python_in_different_modes():
    net, x, found = rnnkit.GRU(5, 17, seed=0), draw(30, 3, 5), []
    dy = small_gradient(net, x)
    expected = of_network(net, x, dy)

    def work(value):
        set_mode(value)
        found.extend(of_network(net, x, dy) for _ in range(20))

    threads = [threading.Thread(target=work, args=(value,)) for value in (DEFAULT, *MODES.values())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * len(found) and len(found) == 100


@pytest.mark.cores(2)
def test_pytorch_flushing_subnormal_numbers(torch_threads_as_before):
    """Its own switch, on the threads of its pool."""
    torch = pytest.importorskip("torch")
    import rnnkit.torch

    torch.manual_seed(0)
    torch.set_num_threads(2)
    module, x = rnnkit.torch.GRU(16, 64), torch.randn(40, 16, 16) * 1e-3

    def gradients():
        y = module(x)[0][-1]
        return [one.numpy().tobytes() for one in torch.autograd.grad((y * 1e-30).sum(), list(module.parameters()))]

    expected = gradients()
    before = mode()
    try:
        assert torch.set_flush_denormal(True)
        found = [gradients() for _ in range(10)]
    finally:
        torch.set_flush_denormal(False)
        set_mode(before)
    assert found == [expected] * 10


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
def test_pytorch_pool_that_rounds_up():
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "2"}

    def results(name):
        command = [sys.executable, "-c", POOL, name]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=TESTS)
        assert run.returncode == 0 and run.stderr == f"{name == 'up'}\n", run.stderr
        return run.stdout

    assert results("up") == results("default")
