"""Main loop of an engine's process: it serves requests over a pipe, one case at a time."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from perf import baselines, peaks
from perf.cases import Case
from perf.check import deviation
from perf.subject import Subject

_REPETITION = 0.04  # seconds of a repetition: many calls where one is short
_HOST_CALLS = 20  # the median of these is the host time
_LONG = 0.4  # seconds of a call that is a repetition without looking again
# Seconds: how often a process looks whether its threads still work, longer than a tick of the kernel, at which the time
# of threads that run on other cores is counted, and how long it does.
_QUIET, _RESTLESS = 0.025, 2.0


class Bench:
    """Requests that a worker serves; one case at a time."""

    def __init__(self, engine: str, threads: int, device: str = "cpu") -> None:
        self.engine, self.threads, self.device = engine, threads, device
        self.subject, self.calls = None, 1

    def reference(self, case: Case, pass_name: str, path: Path) -> None:
        """Compute a case in float64 and leave the results in a file, in the dtype of the case."""
        subject = baselines.reference(case, pass_name)
        results = subject.results(subject.run())
        np.savez(path, **{name: a.astype(case.desc.dtype) for name, a in results.items() if a is not None})

    def check(self, case: Case, pass_name: str, path: Path) -> str | None:
        """Return what is wrong with this engine's results, those of a second call, or None."""
        self.subject = None
        subject = self._prepare(case, pass_name)
        subject.run()
        with np.load(path) as expected:
            return deviation(subject.results(subject.run()), expected, case.desc, case.precision)

    def load(self, case: Case, pass_name: str) -> None:
        """Make a case ready and warm: compiled, its memory in place, the calls of a repetition counted."""
        release = self.subject.release if self.subject else int
        self.subject = None
        gc.collect()
        release()
        _reset_peak_memory()
        self.subject = self._prepare(case, pass_name)
        self.calls = 1
        if self._seconds() < _LONG:
            self._count_calls()
        _rest()

    def _prepare(self, case: Case, pass_name: str) -> Subject:
        return baselines.prepare(self.engine, case, pass_name, self.threads, self.device)

    def _count_calls(self) -> None:
        def undisturbed() -> float:
            return min(self._seconds() for _ in range(3))

        seconds = undisturbed()
        while seconds < _REPETITION / 4:
            self.calls *= 2
            seconds = undisturbed()
        self.calls = max(1, round(self.calls * _REPETITION / seconds))

    def time(self) -> tuple[float, float]:
        """Return the seconds of a call, and of the repetition, with all threads of this process at rest behind it."""
        if self.calls > 1:
            self.subject.run()  # wakes threads and warms caches
            self.subject.finish()
        seconds = self._seconds()
        _rest()
        return seconds / self.calls, seconds

    def peak_memory(self) -> int | None:
        """Return the most bytes that this process has held since the case was loaded, or None where that is unknown."""
        return self.subject.memory() if self.subject.memory else _peak_memory()

    def host_time(self) -> float:
        """Return the seconds after which a call comes back while the GPU works; nothing is waiting there before it."""
        found = []
        for _ in range(_HOST_CALLS):
            self.subject.finish()
            start = time.perf_counter()
            self.subject.run()
            found.append(time.perf_counter() - start)
        self.subject.finish()
        return median(found)

    def gpu_name(self) -> str:
        """Return what the GPU is."""
        return peaks.gpu_name()

    def gpu_peak(self, dtype: str) -> float:
        """Return the FLOP/s of a large product on the GPU."""
        return peaks.gpu_peak(dtype)

    def _seconds(self) -> float:
        run, finish = self.subject.run, self.subject.finish
        gc.disable()
        start = time.perf_counter()
        for _ in range(self.calls):
            run()
        finish()
        seconds = time.perf_counter() - start
        gc.enable()
        return seconds


def serve(engine: str, threads: int, device: str, pipe: Any, kind: type = Bench) -> None:
    """Answer each message, (method, arguments), with (result, None) or (None, error), until the pipe ends."""
    bench = kind(engine, threads, device)
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = getattr(bench, method)(*arguments), None
        except Exception as error:
            answer = None, f"{type(error).__name__}: {error}"
        pipe.send(answer)


def _rest() -> None:
    """Wait until no thread of this process uses the processor.

    OpenMP's threads spin for a while after a call. OMP_WAIT_POLICY=PASSIVE would keep them from it, but a small LSTM
    then takes PyTorch twice as long (measured), so competitors keep their defaults and are waited for instead.
    """
    deadline = time.perf_counter() + _RESTLESS
    while time.perf_counter() < deadline:
        used = time.process_time()
        time.sleep(_QUIET)
        if time.process_time() - used < 0.1 * _QUIET:
            return
    raise RuntimeError(f"threads still busy {_RESTLESS} s after a call")


def _reset_peak_memory() -> None:
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory() -> int | None:
    if sys.platform != "linux":
        return None
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024
