"""Kernels on the threads of an OpenMP runtime: one that stands in for it, and PyTorch's own."""

import ctypes
import gc
import itertools
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from float_modes import MODES, in_mode, needs_mxcsr
from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.extending import intrinsic
from optional import needs

import rnnkit
from rnnkit_kernels.machine import openmp, sync, thread_pool
from rnnkit_kernels.machine.openmp import OpenMPPool
from rnnkit_kernels.machine.registers import I32, I64

pytestmark = pytest.mark.cores(2)

THREADS = 3
THREAD_NUMBER = ctypes.CFUNCTYPE(ctypes.c_int)
PARALLEL = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_uint] * 2)


class Runtime:
    """GNU's entry points, with threads that Python starts, in a floating-point mode; `absent` ones do not come."""

    def __init__(self, absent=0, mode=None):
        self._number, self.absent, self.mode, self.regions = threading.local(), absent, mode, []
        self.omp_get_thread_num = THREAD_NUMBER(lambda: self._number.value)
        self.GOMP_parallel = PARALLEL(self._parallel)

    def _parallel(self, function, data, size, flags):
        self.regions.append(size)
        entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)

        def run(number):
            self._number.value = number
            with in_mode(self.mode) if self.mode and number else nullcontext():
                entry(data)

        others = [threading.Thread(target=run, args=(number,)) for number in range(1, size - self.absent)]
        for other in others:
            other.start()
        run(0)
        for other in others:
            other.join()


@pytest.fixture
def network():
    desc = rnnkit.RNNDescriptor("gru", 24, 40, 2, True)
    rng = np.random.default_rng(0)
    return desc, rnnkit.init_weights(desc, seed=0), rng.normal(size=(30, 70, 24)).astype(np.float32)


def results(network):
    desc, w, x = network
    found = rnnkit.forward(desc, w, x)
    gradients = rnnkit.backward(desc, w, found.workspace, found.y)
    return found.y, found.hy, gradients.dx, gradients.dw, rnnkit.infer(desc, w, x).y


def assert_same(found, expected):
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


class _Stopped(BaseException):
    """What a signal's handler may raise."""


def stop(*arguments):
    raise _Stopped


@pytest.mark.parametrize("absent", [0, 1, 2], ids=["all", "one late", "alone"])
def test_bits_are_those_of_the_engines_own_threads(network, absent):
    expected, runtime = results(network), Runtime(absent)
    with thread_pool.thread_override(THREADS, OpenMPPool(runtime, THREADS)):
        assert thread_pool.wanted_size() == THREADS
        assert_same(results(network), expected)
    assert set(runtime.regions) == {THREADS} and len(runtime.regions) >= 5


@pytest.mark.parametrize("mode", [None, pytest.param("up", marks=needs_mxcsr)])
def test_threads_of_a_region_take_part(network, mode):
    """In one call of many at least: who comes late, as most do on a busy machine, stays out. Whether they round up
    changes no bit."""
    expected, own, seen = results(network), OpenMPPool(Runtime(mode=MODES.get(mode)), THREADS), 0
    with thread_pool.thread_override(THREADS, own):
        for _ in range(2000):
            assert_same(results(network), expected)
            seen = own._sync[sync.TICKET] % sync.TICKET_STEP - sync.CLOSED
            if seen > 1:
                return
    raise AssertionError("each call was done by its caller alone")


@pytest.mark.parametrize("seq_len", [1, 20])
def test_small_work_opens_no_region(seq_len):
    """Neither what is brief nor what would pay with workers that are awake: 77,000 multiply-adds, and 1.5 million."""
    desc, runtime = rnnkit.RNNDescriptor("gru", 24, 40), Runtime()
    with thread_pool.thread_override(THREADS, OpenMPPool(runtime, THREADS)):
        rnnkit.infer(desc, rnnkit.init_weights(desc, seed=0), np.ones((seq_len, 10, 24), np.float32))
    assert runtime.regions == []


def test_thread_override_holds_for_one_thread():
    before, seen = thread_pool.wanted_size(), []
    with thread_pool.thread_override(7):
        with ThreadPoolExecutor(1) as other:
            seen.append(other.submit(thread_pool.wanted_size).result())
        with thread_pool.thread_override(5):
            seen.append(thread_pool.wanted_size())
        seen.append(thread_pool.wanted_size())
    assert seen == [before, 5, 7] and thread_pool.wanted_size() == before


@intrinsic
def _signalled(typingctx, number, function, data):
    """Call a function of C in which, or just before which, a signal arrives."""

    def generate(context, builder, signature, arguments):
        number, function, data = arguments
        send = cgutils.get_or_insert_function(builder.module, ir.FunctionType(I32, [I32]), "raise")
        builder.call(send, [builder.trunc(number, I32)])
        kind = ir.FunctionType(ir.VoidType(), [I64]).as_pointer()
        builder.call(builder.inttoptr(function, kind), [data])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="the system has no such signal")
def test_error_of_a_signal_handler_in_a_region_is_raised(monkeypatch):
    """It is raised when the region has ended, as no Python code runs in one."""
    number, shown = int(signal.SIGUSR1), []
    region = cfunc("void(int64, int64, uint32, uint32)")
    parallel = region(lambda function, data, size, flags: _signalled(number, function, data))
    thread_number = cfunc("int32()")(lambda: 0)
    runtime = SimpleNamespace(
        GOMP_parallel=PARALLEL(parallel.address), omp_get_thread_num=THREAD_NUMBER(thread_number.address)
    )
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    own, before = OpenMPPool(runtime, THREADS), signal.signal(signal.SIGUSR1, stop)
    try:
        for _ in range(3):
            with pytest.raises(_Stopped):
                own.run(itertools.chain, 10**9, ())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert own._fields[openmp._DONE] and not shown
    assert own._sync[sync.TICKET] == own._number * sync.TICKET_STEP + sync.CLOSED, "nobody waits for a ticket"


def test_kernel_error_has_its_traceback_and_no_references(network):
    """Calls after it work."""
    own, errors = OpenMPPool(Runtime(), THREADS), [_Stopped("text")]

    def kernel(*arguments):
        raise errors[0]

    for _ in range(2):
        with pytest.raises(_Stopped, match="text") as found:
            own.run(kernel, 10**9, ())
        assert found.value is errors[0] and [one.name for one in found.traceback][-1] == "kernel"
    gone = weakref.ref(errors.pop())
    del found
    gc.collect()
    assert gone() is None
    with thread_pool.thread_override(THREADS, own):
        found = results(network)
    assert_same(found, results(network))


def test_second_caller_runs_alone(network):
    expected, own = results(network), OpenMPPool(Runtime(), THREADS)

    def call(_):
        with thread_pool.thread_override(THREADS, own):
            return [results(network) for _ in range(3)]

    with ThreadPoolExecutor(4) as crowd:
        found = list(crowd.map(call, range(4)))
    for one in itertools.chain(*found):
        assert_same(one, expected)


IN_PYTORCH = """
import os
import torch
import rnnkit.torch
from rnnkit_kernels.machine import thread_pool
from rnnkit.torch import threads
torch.set_num_threads(2)
own = rnnkit.torch.GRU(64, 64, 2)
x = torch.randn(50, 32, 64)
def step():
    own.zero_grad()
    torch.mm(torch.ones(300, 300), torch.ones(300, 300))
    own(x)[0].sum().backward()
    return own.weight_hh_l0.grad.clone()
first = step()
lent = threads._pool(2)
assert lent is not None and lent._number >= 2 and thread_pool._pool is None, "not on PyTorch's threads"
assert torch.equal(step(), first)
output = own(x)[0].detach().numpy()
if os.fork() == 0:  # no operation of PyTorch's here, which would hang
    with threads.threads():
        alone = thread_pool._local.size == 2 and thread_pool._local.pool is None  # before a call, which would hang
    os._exit(0 if alone and (own(x)[0].detach().numpy() == output).all() else 1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
regions = lent._number
torch.set_num_threads(1)
assert torch.equal(step(), first) and lent._number == regions
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch has GNU's runtime on Linux only")
def test_pytorch_lends_its_threads_but_not_to_a_forked_child():
    """In which GNU's runtime would hang."""
    needs("torch")
    done = subprocess.run([sys.executable, "-c", IN_PYTORCH], capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr
