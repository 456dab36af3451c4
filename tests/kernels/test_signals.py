"""Signals during a compilation or an import: their handlers run after it, unless they come twice."""

import signal
import sys
import threading

import numpy as np
import pytest
from numba import types
from numba.extending import intrinsic

from rnnkit_kernels.machine.imports import imported
from rnnkit_kernels.machine.jit import kernel
from rnnkit_kernels.machine.signals import held


@pytest.fixture
def came():
    """Handle SIGTERM by a note of how many came so far."""
    came = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    yield came
    signal.signal(signal.SIGTERM, before)


def test_signal_waits_for_the_end_and_a_second_one_does_not(came):
    for number in (1, 2):
        came.clear()
        with held():
            for _ in range(number):
                signal.raise_signal(signal.SIGTERM)
            assert len(came) == number - 1
        assert len(came) == number


def test_handlers_are_restored_and_new_ones_kept(came):
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    with held():
        pass
    assert [signal.getsignal(number) for number in signal.valid_signals()] == before
    with held():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_other_threads_hold_nothing(came):
    before, found = signal.getsignal(signal.SIGTERM), []

    def compile_nothing():
        with held():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=compile_nothing)
    thread.start()
    thread.join()
    assert found == [before]


def test_interrupted_kernel_is_compiled_to_its_end():
    @intrinsic
    def interrupt(typingctx, value):
        def generate(context, builder, signature, arguments):
            signal.raise_signal(signal.SIGINT)
            return arguments[0]

        return types.float64(types.float64), generate

    @kernel
    def copy_one(x, y):
        y[0] = interrupt(x[0])

    x, y = np.ones(1), np.zeros(1)
    with pytest.raises(KeyboardInterrupt):
        copy_one(x, y)
    assert len(copy_one.overloads) == 1
    copy_one(x, y)
    assert y[0] == 1


def test_import_is_not_interrupted(tmp_path, monkeypatch):
    """Here the signal would be lost: packages have such code."""
    text = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
    is_whole = True
except:
    is_whole = False
"""
    (tmp_path / "raises_sigint.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        imported("raises_sigint")
    assert sys.modules["raises_sigint"].is_whole and imported("raises_sigint") is sys.modules.pop("raises_sigint")
