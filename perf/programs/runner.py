"""What runs in the process of a program."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from perf.programs.program import Program

PHASES = "fit", "predict"
_LEAST = 3  # rounds, and predictions in each
_PREDICTING = 0.2  # seconds for the predictions of a round, some of which take 5 ms
CLOSE = 1e-4  # of the largest value
_NOTHING = nullcontext()


class Phase(NamedTuple):
    """A phase of a program: seconds as it is and accelerated, and what recurrent modules do in the former."""

    name: str
    plain: float
    own: float
    share: float  # of the time that recurrent modules take
    calls: list[tuple[str, int]]  # their sizes, and how often, the most frequent first


class Outcome(NamedTuple):
    """What came out of a program."""

    phases: list[Phase]
    accelerated: int  # modules
    left: dict[str, str]  # kind of a module that was not accelerated -> why
    deviation: float  # of the results from those of PyTorch, as a share of the largest value
    noise: float  # the same of two runs with PyTorch

    @property
    def equal(self) -> bool:
        """Whether the results are those of PyTorch."""
        return self.deviation <= CLOSE


class Runner:
    """What `worker.Bench` is for an engine, for a program."""

    def __init__(self, name: str, threads: int, device: str) -> None:
        self.threads = threads

    def measure(self, program: Any, seconds: float, folder: str) -> Any:
        """Run the program in a folder of its own, without a word."""
        os.chdir(folder)
        silence = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silence, stream)
        sys.modules["mpi4py"] = None  # type: ignore[assignment]  # Lightning would start MPI where that is installed
        import torch

        torch.set_num_threads(self.threads)
        return self.run(program, seconds)

    def run(self, program: Program, seconds: float) -> Outcome:
        return measure(program, seconds)


def measure(program: Program, seconds: float) -> Outcome:
    """Run a program in this process: accelerated, then watched as it is, then both in turn."""
    from perf.programs.watch import Watch, modules_that_run
    from rnnkit.torch import accelerated

    plain, own = _Variant(program, "plain", nullcontext), _Variant(program, "accelerated", accelerated)
    with modules_that_run() as modules:
        for phase in PHASES:
            own.run(phase)  # the first of all: imports and compilation are over then
    watches = {phase: Watch() for phase in PHASES}
    watched = {phase: plain.run(phase, watch) for phase, watch in watches.items()}
    before = plain.results()
    least = {phase: dict.fromkeys((plain, own), float("inf")) for phase in PHASES}
    for _ in repeated(seconds):
        gc.collect()
        _run_in_turn("fit", least["fit"])
        for _ in repeated(_PREDICTING):
            _run_in_turn("predict", least["predict"])
    phases = [
        Phase(phase, *least[phase].values(), watch.seconds / watched[phase], watch.calls.most_common())
        for phase, watch in watches.items()
    ]
    expected = plain.results()
    return Outcome(phases, *_sorted(modules), deviation(own.results(), expected), deviation(before, expected))


class _Variant:
    """A program as it is, or accelerated."""

    def __init__(self, program: Program, name: str, around: Callable[[], AbstractContextManager[Any]]) -> None:
        self.program, self.name, self._around = program, name, around
        self._fitted: Any = None
        self._predicted: Any = None

    def run(self, phase: str, around: AbstractContextManager[Any] = _NOTHING) -> float:
        """Fit, or predict with what was fitted last, in the context; return the seconds."""
        if phase == "fit":
            self._fitted, time = self._timed(phase, self.program.fit, around)
        else:
            self._predicted, time = self._timed(phase, partial(self.program.predict, self._fitted), around)
        return time

    def results(self) -> list[np.ndarray]:
        """What is compared: the last run's predictions, or the parameters of a shorter fit."""
        shorter = self.program.parameters
        return arrays_of(self._predicted if shorter is None else self._timed("parameters", shorter)[0])

    def _timed(self, what: str, work: Callable[[], Any], around: Any = _NOTHING) -> tuple[Any, float]:
        seed()
        try:
            with self._around(), around:
                start = perf_counter()
                result = work()
                return result, perf_counter() - start
        except Exception as error:
            raise RuntimeError(f"{self.name} {what}: {type(error).__name__}: {error}") from error


def _run_in_turn(phase: str, least: dict[_Variant, float]) -> None:
    """Run a phase of each, and note the seconds where they are the least."""
    for variant, time in least.items():
        least[variant] = min(time, variant.run(phase))


def seed() -> None:
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def repeated(seconds: float) -> Iterator[None]:
    end, done = perf_counter() + seconds, 0
    while done < _LEAST or perf_counter() < end:
        yield
        done += 1


def _sorted(modules: dict[Any, None]) -> tuple[int, dict[str, str]]:
    """How many modules run on the engine, and of which kind the others are, and why."""
    from rnnkit.torch import accelerate

    left = {}
    for module in modules:
        done = accelerate(module)
        if done.changed:
            left[module] = "it was not created in `accelerated`, but by a copy or a pickle"
        elif done.left:
            left[module] = done.left[""]
    return len(modules) - len(left), {str(module): reason for module, reason in left.items()}


def arrays_of(found: Any) -> list[np.ndarray]:
    """Copies of an array or several in float64, which are compared."""
    if isinstance(found, dict):
        found = list(found.values())
    return [np.array(one, np.float64) for one in (found if isinstance(found, list | tuple) else [found])]


def deviation(arrays: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """The largest difference of arrays as a share of the expected array's largest value; NaN is equal to NaN."""
    if [one.shape for one in arrays] != [one.shape for one in expected]:
        return float("inf")
    found = 0.0
    for actual, right in zip(arrays, expected, strict=True):
        missing = np.isnan(right)
        if not np.array_equal(np.isnan(actual), missing):
            return float("inf")
        difference = np.abs(actual - right)[~missing].max(initial=0.0)
        found = max(found, difference / max(np.abs(right[~missing]).max(initial=0.0), np.finfo(np.float64).tiny))
    return float(found)
