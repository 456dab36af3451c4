"""Run engines in separate processes, one at a time, while the others are idle."""

from __future__ import annotations

import multiprocessing
import os
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

from perf.worker import Bench, serve

_THREAD_VARIABLES = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerError(RuntimeError):
    """The engine raised, or its process ended."""


class Ratios(NamedTuple):
    """How many times as long one engine took as another, repetition by repetition."""

    least: float
    median: float
    most: float


class Worker:
    """An engine in a process of its own, with a number of threads; `call` runs a method of `worker.Bench` there.

    Of another `kind` than that where it is given.
    """

    def __init__(self, engine: str, threads: int, device: str = "cpu", kind: type = Bench) -> None:
        context = multiprocessing.get_context("spawn")
        self.engine = engine
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve, args=(engine, threads, device, other, kind), daemon=True)
        with _environment(dict.fromkeys(_THREAD_VARIABLES, str(threads))):
            self._process.start()
        other.close()

    def call(self, method: str, *arguments: Any, limit: float | None = None) -> Any:
        """Return what the method returns; this process is blocked meanwhile, for at most `limit` seconds."""
        try:
            self._pipe.send((method, arguments))
            if not self._pipe.poll(limit):
                self._process.kill()
                raise WorkerError(f"{self.engine}: took more than {limit:g} s")
            result, error = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            raise WorkerError(f"{self.engine}: its process ended with {self._process.exitcode}") from None
        if error is not None:
            raise WorkerError(f"{self.engine}: {error}")
        return result

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join()


@contextmanager
def _environment(variables: dict[str, str]):
    """A new process starts with the variables of its parent."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def alternate(workers: dict[str, Any], seconds: float, rounds: int = 15) -> dict[str, list[float]]:
    """Let the engines run in turn, A B A B, until `seconds` are spent; return the seconds of a call in each round."""
    times = {name: [] for name in workers}
    spent = 0.0
    for done in range(rounds):
        if done >= 3 and spent > seconds:
            break
        for name, worker in workers.items():
            per_call, total = worker.call("time")
            times[name].append(per_call)
            spent += total
    return times


def ratios(times: list[float], others: list[float]) -> Ratios:
    """Return others / times, pair by pair: above 1 the first engine is the faster one."""
    pairs = [other / own for own, other in zip(times, others, strict=True)]
    return Ratios(min(pairs), median(pairs), max(pairs))
