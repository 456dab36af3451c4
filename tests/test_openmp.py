"""Kernels on the threads of an OpenMP runtime: one that stands in for it, and PyTorch's own."""

import ctypes
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import rnnkit
from rnnkit.kernels.machine import openmp, sync, team
from rnnkit.kernels.machine.openmp import OpenMPTeam

pytestmark = pytest.mark.cores(2)

THREADS = 3


class Runtime:
    """GNU's entry points, with threads that Python starts; `absent` ones do not come."""

    def __init__(self, absent=0):
        self._number, self.absent, self.regions = threading.local(), absent, []
        self.omp_get_thread_num = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: self._number.value)
        self.GOMP_parallel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_uint] * 2)(self._parallel)

    def _parallel(self, function, data, size, flags):
        self.regions.append(size)
        entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)

        def run(number):
            self._number.value = number
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


@pytest.mark.parametrize("absent", [0, 1, 2], ids=["all", "one late", "alone"])
def test_bits_are_those_of_every_other_team(network, absent):
    expected, runtime = results(network), Runtime(absent)
    with team.thread_override(THREADS, OpenMPTeam(runtime, THREADS)):
        assert team.wanted_size() == THREADS
        assert_same(results(network), expected)
    assert set(runtime.regions) == {THREADS} and len(runtime.regions) >= 5


def test_other_threads_of_a_region_take_part(network):
    """In one call of many at least: who comes late, as most do on a busy machine, stays out."""
    own, seen = OpenMPTeam(Runtime(), THREADS), 0
    with team.thread_override(THREADS, own):
        for _ in range(2000):
            results(network)
            seen = own._sync[sync.TICKET] % sync.TICKET_STEP - sync.CLOSED
            if seen > 1:
                return
    raise AssertionError("each call was done by its caller alone")


@pytest.mark.parametrize("seq_len", [1, 20])
def test_small_work_opens_no_region(seq_len):
    """Neither what is brief nor what would pay with helpers that are awake: 77,000 multiply-adds, and 1.5 million."""
    desc, runtime = rnnkit.RNNDescriptor("gru", 24, 40), Runtime()
    with team.thread_override(THREADS, OpenMPTeam(runtime, THREADS)):
        rnnkit.infer(desc, rnnkit.init_weights(desc, seed=0), np.ones((seq_len, 10, 24), np.float32))
    assert runtime.regions == []


def test_a_number_of_threads_is_lent_to_one_thread_for_a_while():
    before, seen = team.wanted_size(), []
    with team.thread_override(7):
        other = threading.Thread(target=lambda: seen.append(team.wanted_size()))
        other.start()
        other.join()
        with team.thread_override(5):
            seen.append(team.wanted_size())
        seen.append(team.wanted_size())
    assert seen == [before, 5, 7] and team.wanted_size() == before


class _Stopped(BaseException):
    """What a signal's handler may raise."""


def test_an_error_in_a_region_is_raised_behind_it(network):
    own = OpenMPTeam(Runtime(), THREADS)

    def kernel(*arguments):
        raise _Stopped

    with pytest.raises(_Stopped):
        own.run(kernel, 10**9, ())
    with team.thread_override(THREADS, own):
        found = results(network)
    assert_same(found, results(network))


class _Interrupted(OpenMPTeam):
    def _call(self):
        raise _Stopped


def test_a_region_that_is_interrupted_before_it_begins_does_not_pass_for_done(monkeypatch):
    """What a callback raises, ctypes shows and drops."""
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    with pytest.raises(KeyboardInterrupt):
        _Interrupted(Runtime(), THREADS).run(None, 10**9, ())
    assert shown[0].exc_type is _Stopped


def test_a_second_caller_runs_alone(network):
    expected, own, found = results(network), OpenMPTeam(Runtime(), THREADS), []

    def call():
        with team.thread_override(THREADS, own):
            found.extend(results(network) for _ in range(3))

    crowd = [threading.Thread(target=call) for _ in range(4)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert len(found) == 12
    for one in found:
        assert_same(one, expected)


IN_PYTORCH = """
import os
import torch
import rnnkit.torch
from rnnkit.kernels.machine import team
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
lent = threads._team(2)
assert lent is not None and lent._number >= 2 and team._team is None, "not on PyTorch's threads"
assert torch.equal(step(), first)
output = own(x)[0].detach().numpy()
if os.fork() == 0:  # no operation of PyTorch's here, which would hang
    with threads.threads():
        alone = team._local.size == 2 and team._local.team is None  # before a call, which would hang
    os._exit(0 if alone and (own(x)[0].detach().numpy() == output).all() else 1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
regions = lent._number
torch.set_num_threads(1)
assert torch.equal(step(), first) and lent._number == regions
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch has GNU's runtime on Linux only")
def test_pytorch_lends_its_threads():
    """And none to a forked child, in which GNU's runtime would hang."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", IN_PYTORCH], capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr


def test_every_field_of_a_region_is_given():
    assert len(OpenMPTeam(Runtime(), 2)._fields) == openmp._FIELDS
