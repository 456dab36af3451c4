"""Model inference on more cores than this machine has: what limits ds2, lm and stream on 8, 16 and 64 cores, and which
way to split the work wins. `python -m perf.many_cores` measures this machine, compares the model with it on 1 and 2
threads and on 4 threads that share 2 cores, and prints predictions for servers. It needs two idle cores.

The time of a layer is the time of its input products plus T steps. A step is its product (the longer of multiplying and
of reading the weights from their cache), the cell's equations, the hidden states from other cores' caches, and the
barriers. A barrier is one counter: each thread passes on a cache line.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import rnnkit
from perf import cases, peaks
from rnnkit.cpu.layer import layers_of
from rnnkit.cpu.rows import same_length
from rnnkit.cpu.scheduler import Scheduler
from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.registers import VECTOR_BYTES

CASES = "ds2/lstm", "lm/lstm", "stream/lstm"
CORES = 8, 16, 64
LINE, AT_ONCE = 64, 10  # bytes of a cache line, and the number of lines that a core fetches at once
CALL = 30e-6  # seconds of Python around a call
GIVES_WAY = 100e-6  # after which a thread at a barrier yields (`kernels.machine.sync`)


class Machine(NamedTuple):
    """Machine parameters of the model; times in seconds, rates per second."""

    multiply: float  # multiply-adds of a core, at 0.9 of its peak, which the products reach
    l2: float  # bytes that a core reads from its L2 cache, its L3 cache, and memory
    l3: float
    memory: float
    all_memory: float  # of all cores together
    near: float  # a cache line from a core that shares the L3 cache
    far: float  # from another one
    equation: float  # the equations of one unit and row
    l2_bytes: int = 1 << 20
    l3_bytes: int = 1 << 25
    sharing: int = 8  # cores that share an L3 cache


class Time(NamedTuple):
    """Breakdown of the seconds of a call."""

    multiply: float
    uneven: float  # idle time of others while the thread with the largest share multiplies
    read: float  # beyond the time of multiplying
    equations: float
    hidden: float
    barriers: float
    call: float = CALL

    @property
    def limit(self) -> str:
        """Return what takes the most time other than multiplying."""
        return max(self._fields[1:], key=lambda name: getattr(self, name))


def shared(machine: Machine, case: cases.Case, teams: int, size: int) -> Time:
    """So many teams, each with rows of the batch, whose threads share out the units."""
    panels = -(-case.desc.hidden_size * 4 // VECTOR_BYTES)
    rows, units = -(-case.batch_size // teams) / case.batch_size, -(-panels // size) / panels
    return _time(machine, case, rows, units, teams * size, size)


def planned(machine: Machine, case: cases.Case, threads: int) -> tuple[str, Time]:
    """Return the scheduler's choice, and its time."""
    scheduler = Scheduler(same_length(case.seq_len, case.batch_size), 4, threads)
    schedule = scheduler.forward(layers_of(case.desc)[:1], keeps_gates=False)
    teams = max(schedule.bounds.size - 1, 1)
    size = schedule.threads // teams
    return f"{teams} x {size}", shared(machine, case, teams, size)


def _time(machine: Machine, case: cases.Case, rows: float, units: float, threads: int, size: int) -> Time:
    """The time of a thread with such shares of the rows and units; teams of `size` threads meet once a step."""
    layer, count = layers_of(case.desc)[0], case.seq_len * case.batch_size
    work = count * layer.step_work
    whole = work / machine.multiply
    multiply = whole * rows * units
    mine, weights = layer.recurrent_weights * 4 * units, layer.recurrent_weights * 4
    memory = min(machine.memory, machine.all_memory / threads)
    rate = machine.l2 if mine <= machine.l2_bytes else machine.l3 if weights <= machine.l3_bytes else memory
    read = max(case.seq_len * mine / rate - multiply, 0.0)
    inputs = count * layer.input_work / machine.multiply
    panels = layer.sizes.hidden * 4 / VECTOR_BYTES * count  # of all chunks: rows and units come out even enough
    even = max(1 / threads, 1 / panels)
    equations = count * layer.sizes.hidden * machine.equation * rows * units
    lines = case.batch_size * rows * layer.sizes.hidden * 4 / LINE * (1 - units)
    line = machine.near if size <= machine.sharing else machine.far
    hidden = case.seq_len * lines * line / AT_ONCE
    lines_of_barrier = (machine.near if thread_id < machine.sharing else machine.far for thread_id in range(size))
    meeting = sum(lines_of_barrier) if size > 1 else 0.0
    barriers = case.seq_len * meeting
    ideal = whole / threads
    return Time(ideal + inputs * even, multiply - ideal, read, equations, hidden, barriers)


def crowded(machine: Machine, case: cases.Case, threads: int, cores: int) -> float:
    """Seconds with more threads than cores: whoever waits at a barrier for one without a core gives its own away."""
    name, _ = planned(machine, case, threads)
    meets = not name.endswith("x 1")
    return sum(shared(machine, case, 1, cores)) + case.seq_len * meets * GIVES_WAY


def this_machine() -> Machine:
    bandwidths = (peaks.read_bandwidth(size, 1) for size in (1 << 19, 1 << 23, 1 << 28))
    line = peaks.handover()
    multiply = 0.9 * peaks.fma_peak("float32", 1) / 2
    return Machine(multiply, *bandwidths, peaks.read_bandwidth(1 << 28, 2), line, line, equation=0.9e-9)


def server(machine: Machine) -> Machine:
    """The same cores, many of them: lines take 50 ns within 8 cores that share an L3 cache, 200 ns beyond; 12 channels
    of memory."""
    return machine._replace(near=50e-9, far=200e-9, all_memory=400e9)


def measured(case: cases.Case, threads: int) -> float:
    """Median seconds of an inference."""
    given = cases.problem(case, "infer")
    plan = rnnkit.prepare(given.desc, given.w)
    with thread_pool.thread_override(threads):
        times = []
        for _ in range(12):
            start = time.perf_counter()
            plan.infer(given.x)
            times.append(time.perf_counter() - start)
    return median(times[2:])


def rows(machine: Machine) -> Iterator[list[str]]:
    """Rows of the table: case, cores, what the scheduler takes, speedup over one core, limit; then what sharing
    out the rows alone and the units alone gives."""
    many = server(machine)
    for case in chosen():
        alone = sum(shared(many, case, 1, 1))
        for cores in CORES:
            name, time = planned(many, case, cores)
            ways = time, shared(many, case, cores, 1), shared(many, case, 1, cores)
            faster, *others = (f"{alone / sum(way):.1f}" for way in ways)
            yield [case.name, str(cores), name, faster, time.limit, *others]


def chosen() -> list[cases.Case]:
    return [case for case in cases.CASES if case.name in CASES]


def main() -> None:
    machine = this_machine()
    print(" ".join(f"{name}={value:.3g}" for name, value in machine._asdict().items()))
    for case in chosen():
        for threads in (1, 2, 4):
            own = crowded(machine, case, 4, 2) if threads == 4 else sum(planned(machine, case, threads)[1])
            seconds = measured(case, threads)
            print(f"{case.name} {threads} threads: measured {seconds * 1e3:.2f} ms, model {own * 1e3:.2f} ms")
    print("case | cores | teams x threads | speedup | limit | rows alone | units alone")
    for row in rows(machine):
        print(" | ".join(row))


if __name__ == "__main__":
    main()
