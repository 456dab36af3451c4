"""Programs with weights of their own: a package's call, and the same with its network on the engine."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any, NamedTuple

from perf.programs.runner import CLOSE, Runner, arrays_of, deviation, repeated, seed


class Converted(NamedTuple):
    """The main use of a package that comes with a trained network, and a twin that runs the network through rnnkit.

    `calls` loads the weights, and returns the package's call and its twin. Both return an array or several. Like the
    functions of a `Program`, it is a module's own or a partial of such, and imports the package when it is called.
    """

    name: str  # package/model, as patterns and the report have it
    needs: tuple[str, ...]  # modules that are installed with the package
    calls: Callable[[], tuple[Callable[[], Any], Callable[[], Any]]]
    close: float = CLOSE  # a larger deviation, as a share of the largest value, is an error


class Comparison(NamedTuple):
    """What came out of a program: seconds of a call of the package, and of its twin."""

    package: float
    own: float
    deviation: float  # of the twin's results, as a share of the largest value
    close: float

    @property
    def equal(self) -> bool:
        """Whether the results are those of the package."""
        return self.deviation <= self.close


class Comparer(Runner):
    """What `Runner` is for a `Program`, for one of these."""

    def run(self, program: Converted, seconds: float) -> Comparison:
        return measure(program, seconds, self.threads)


def measure(program: Converted, seconds: float, threads: int) -> Comparison:
    """Run a program in this process: compare the results, then time both calls in turn; the least time counts.

    One thread is timed by its CPU time, which other processes change less. The CPU time of several adds up what they
    wait for each other, so they are timed by the clock.
    """
    seed()
    calls = dict(zip(("package", "rnnkit"), program.calls(), strict=True))
    results = {name: arrays_of(_tried(name, call)) for name, call in calls.items()}  # imports and compilation too
    clock = process_time if threads == 1 else perf_counter
    least = dict.fromkeys(calls, float("inf"))
    for _ in repeated(seconds):
        for name, call in calls.items():
            start = clock()
            call()
            least[name] = min(least[name], clock() - start)
    return Comparison(*least.values(), deviation(results["rnnkit"], results["package"]), program.close)


def _tried(name: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        raise RuntimeError(f"{name}: {type(error).__name__}: {error}") from error
