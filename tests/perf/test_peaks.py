"""What a machine can do: that each peak counts what was computed or read, over the time of the quickest repetition."""

import threading
from types import SimpleNamespace

import numba
import numpy as np
import pytest

from perf import peaks


def test_chains_compute_multiply_adds():
    for real in (np.float32, np.float64):
        sums = np.arange(peaks._CHAINS, dtype=real)
        for _ in range(3):
            sums = sums * real(0.5) + real(0.5)
        assert peaks._compute(3, real(0.5)) == sums.sum()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_peak_counts_multiply_adds_of_all_threads_twice(monkeypatch, dtype, threads):
    lanes, emit_fma, computed = [], peaks.emit_fma, []

    def counted(builder, *arguments):
        lanes.append(arguments[0].type.count)
        return emit_fma(builder, *arguments)

    monkeypatch.setattr(peaks, "emit_fma", counted)
    numba.njit(lambda turns, factor: peaks._multiply_add(turns, factor))(1, np.dtype(dtype).type(1))
    monkeypatch.setattr(peaks, "_compute", lambda turns, factor: computed.append((turns, factor.dtype.name)))
    monkeypatch.setattr(peaks, "_calibrated", lambda work: 1000)
    monkeypatch.setattr(peaks, "_together", lambda works: [work() for work in works] and 0.5)
    assert peaks.fma_peak(dtype, threads) == 2 * sum(lanes) * 1000 * threads / 0.5
    assert computed == [(1000, dtype)] * threads


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bandwidth_counts_the_bytes_of_all_threads(monkeypatch, threads):
    read = []
    monkeypatch.setattr(peaks, "_read", lambda array, turns: read.append((array.nbytes, turns)))
    monkeypatch.setattr(peaks, "_calibrated", lambda work: 7)
    monkeypatch.setattr(peaks, "_together", lambda works: [work() for work in works] and 0.5)
    assert peaks.read_bandwidth(1200, threads) == 1200 * 7 / 0.5
    assert read == [(1200 // threads, 7)] * threads


def test_every_element_is_read_in_every_turn():
    numbers = np.arange(1, 1001, dtype=np.float32)
    assert peaks._read(numbers, 1) == peaks._read(numbers, 3) == 500500
    assert peaks._read(numbers, 2) == 0  # what a turn finds, less what the one before left


def test_repetition_lasts_long_enough_for_the_clock(monkeypatch):
    done = []
    monkeypatch.setattr(peaks, "time", SimpleNamespace(perf_counter=lambda: sum(done) * 1e-4))
    assert peaks._calibrated(done.append) == round(peaks._SECONDS / 1e-4)
    assert done == [1, 1, 2, 4, 8, 16, 32]  # the first one compiles


def test_quickest_repetition_counts_from_first_start_to_last_end(monkeypatch):
    # Each thread's times, start and end of three repetitions: 5, 4 and 6 seconds from the first start to the last end.
    times = [[0.0, 3.0, 10.0, 14.0, 20.0, 21.0], [1.0, 5.0, 10.5, 11.0, 24.0, 26.0]]
    own, worked = threading.local(), []

    def perf_counter():
        if not hasattr(own, "times"):
            own.times = iter(times.pop())
        return next(own.times)

    monkeypatch.setattr(peaks, "_REPETITIONS", 3)
    monkeypatch.setattr(peaks, "time", SimpleNamespace(perf_counter=perf_counter))
    assert peaks._together([lambda: worked.append("a"), lambda: worked.append("b")]) == 4.0
    assert sorted(worked) == ["a", "a", "a", "b", "b", "b"]


def test_two_threads_compute_and_read():
    assert peaks.fma_peak("float64", 2) > 1e9
    assert peaks.read_bandwidth(100_000, 2) > 1e8
