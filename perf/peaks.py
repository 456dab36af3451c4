"""Measure this machine's peaks: multiply-adds in registers, and reading from the caches."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from rnnkit_kernels.machine.registers import REGISTERS, VECTOR_BYTES, emit_fma
from rnnkit_kernels.machine.sync import load, store

_CHAINS = REGISTERS - 8  # independent sums: they and the two factors fit into registers, and hide the FMA's latency
_REPETITIONS = 15
_SECONDS = 0.01  # of one repetition
_PATIENCE = 50_000_000  # total reads of a cache line, some 20 ms: on one core each turn takes a scheduler tick
_LINE = 16  # int64 apart: two cache lines, which are fetched together
NEAR = 110e-9
"""Seconds up to which two cores are near each other: they share a cache, and a line takes 25 to 60 ns from one to the
other, 165 and more where they do not (Zen 5). A virtual machine may have either, now the one and then the other."""
_GPU_SIZE, _GPU_REPETITIONS = 8192, 5  # a product of 1.1e12 FLOPs: some 20 ms on a large GPU


@intrinsic
def _multiply_add(typingctx, turns, factor):
    """`turns` times one fused multiply-add in each of the chains; returns an element of their sum."""

    def generate(context, builder, signature, arguments):
        turns, factor = arguments
        i64, i32 = ir.IntType(64), ir.IntType(32)
        kind = ir.VectorType(factor.type, VECTOR_BYTES * 8 // signature.args[1].bitwidth)
        first = builder.insert_element(ir.Constant(kind, ir.Undefined), factor, i32(0))
        zeros = ir.Constant(ir.VectorType(i32, kind.count), [i32(0)] * kind.count)
        factors = builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)
        before = builder.block
        loop, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
        builder.branch(loop)
        builder.position_at_end(loop)
        turn = builder.phi(i64)
        turn.add_incoming(i64(0), before)
        sums = [builder.phi(kind) for _ in range(_CHAINS)]
        following = [emit_fma(builder, value, factors, factors) for value in sums]
        for number, (phi, value) in enumerate(zip(sums, following, strict=True)):
            phi.add_incoming(ir.Constant(kind, [float(number)] * kind.count), before)
            phi.add_incoming(value, loop)
        count = builder.add(turn, i64(1))
        turn.add_incoming(count, loop)
        builder.cbranch(builder.icmp_signed("<", count, turns), loop, after)
        builder.position_at_end(after)
        total = following[0]
        for value in following[1:]:
            total = builder.fadd(total, value)
        return builder.extract_element(total, i32(0))

    return factor(types.int64, factor), generate


@numba.njit(nogil=True)
def _compute(turns, factor):
    return _multiply_add(turns, factor)


@numba.njit(nogil=True, fastmath=True)
def _read(array, turns):
    total = array.dtype.type(0)
    for _ in range(turns):
        part = array.dtype.type(0)
        for i in range(array.size):
            part += array[i]
        total = part - total  # every pass over the array is needed
    return total


@numba.njit(nogil=True)
def _hand_over(flags, own, turns):
    """Wait until the other one has counted up, then count up; `turns` times, or until its patience ends. Returns how
    often it did."""
    spins = 0
    for turn in range(turns):
        while load(flags, _LINE * (1 - own)) < turn + own:
            spins += 1
            if spins > _PATIENCE:
                return turn
        store(flags, _LINE * own, turn + 1)
    return turns


def fma_peak(dtype: str, threads: int) -> float:
    """Return the FLOP/s of fused multiply-adds on registers, on `threads` threads at once."""
    real = np.dtype(dtype).type
    lanes = VECTOR_BYTES // real().itemsize
    turns = _calibrated(lambda count: _compute(count, real(0.5)))
    seconds = _together([lambda: _compute(turns, real(0.5))] * threads)
    return 2 * lanes * _CHAINS * turns * threads / seconds


def gpu_name() -> str:
    """Return the name of the current GPU, its memory, and the versions of CUDA."""
    import cupy

    runtime = cupy.cuda.runtime
    found = runtime.getDeviceProperties(runtime.getDevice())
    versions = f"driver {runtime.driverGetVersion()}, CUDA {runtime.runtimeGetVersion()}"
    return f"{found['name'].decode()}, {found['totalGlobalMem'] >> 30} GiB, {versions}"


def gpu_peak(dtype: str) -> float:
    """Return the FLOP/s of cuBLAS on a large product, without TensorFloat-32."""
    import cupy

    a = cupy.ones((_GPU_SIZE, _GPU_SIZE), dtype)
    out = a @ a
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    seconds = []
    for _ in range(_GPU_REPETITIONS):
        start.record()
        cupy.matmul(a, a, out=out)
        end.record()
        end.synchronize()
        seconds.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
    return 2 * _GPU_SIZE**3 / min(seconds)


def read_bandwidth(nbytes: int, threads: int) -> float:
    """Return the bytes/s at which `threads` threads read `nbytes` again and again, each its own part."""
    parts = np.array_split(np.ones(max(nbytes // 4, threads), np.float32), threads)
    parts = [part.copy() for part in parts]
    turns = _calibrated(lambda count: _read(parts[0], count))
    seconds = _together([lambda part=part: _read(part, turns) for part in parts])
    return sum(part.nbytes for part in parts) * turns / seconds


def handover() -> float:
    """Return the seconds in which a cache line that one core has written comes to another; nan on a single core."""
    turns = 10_000
    _hand_over(np.full(2 * _LINE, turns), 0, 1)  # compiled
    games, done = [np.zeros(2 * _LINE, np.int64) for _ in range(_REPETITIONS)], []

    def player(own: int) -> Callable[[], None]:
        rest = iter(games)
        return lambda: done.append(_hand_over(next(rest), own, turns))

    seconds = _together([player(0), player(1)])
    return seconds / turns / 2 if max(done) == turns else math.nan


def _calibrated(work) -> int:
    """How many turns take the seconds of a repetition."""
    work(1)  # compiled
    turns = 1
    while True:
        start = time.perf_counter()
        work(turns)
        seconds = time.perf_counter() - start
        if seconds > _SECONDS / 4:
            return max(1, round(turns * _SECONDS / seconds))
        turns *= 2


def _together(works: list) -> float:
    """Run all works at once, each on a Python thread; return the seconds of the quickest repetition."""
    starts = np.zeros((_REPETITIONS, len(works)))
    ends = np.zeros_like(starts)
    barrier = threading.Barrier(len(works))

    def member(number: int) -> None:
        for repetition in range(_REPETITIONS):
            barrier.wait()
            starts[repetition, number] = time.perf_counter()
            works[number]()
            ends[repetition, number] = time.perf_counter()

    helpers = [threading.Thread(target=member, args=(number,)) for number in range(len(works))]
    for helper in helpers:
        helper.start()
    for helper in helpers:
        helper.join()
    return float((ends.max(axis=1) - starts.min(axis=1)).min())
