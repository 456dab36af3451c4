"""Where a part runs, what it writes, and how it times."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np


@dataclass
class Here:
    """What a part gets."""

    out: Path  # the folder of the report
    work: Path  # a folder for the lines of all parts
    part: str
    stand_in: bool = False  # simulators instead of CuPy and cuDNN: everything is slow, so sizes are smaller

    @property
    def device(self) -> str:
        """Of PyTorch's tensors."""
        return "cpu" if self.stand_in else "cuda"

    def smaller(self, size: int) -> int:
        return max(2, size // 16) if self.stand_in else size

    def add(self, name: str, **facts: Any) -> None:
        """Write a result at once, as a line of JSON: it stays if the part ends early."""
        with open(self.work / f"{self.part}.jsonl", "a") as file:
            file.write(json.dumps({"name": name, **facts}, default=str) + "\n")
        print(name, " ".join(f"{key}={short(value)}" for key, value in facts.items()), flush=True)

    @contextmanager
    def trying(self, name: str) -> Iterator[None]:
        """Add an exception as a result, and go on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            frames = traceback.extract_tb(error.__traceback__)
            frames = [frame for frame in frames if "rnnkit" in frame.filename][-2:] + frames[-1:]
            where = [f"{Path(frame.filename).name}:{frame.lineno} {frame.line}" for frame in frames]
            self.add(name, error=f"{type(error).__name__}: {error}"[:1500], where=where)

    def lines(self, part: str) -> list[dict[str, Any]]:
        """Return what a part has written, without a last line that was cut off."""
        found = []
        path = self.work / f"{part}.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", " ")[:200]


def deviation(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest deviation relative to the largest magnitude, at least 1; infinite for NaN."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    scale = max(1.0, np.abs(expected).max(initial=0))
    return float(np.abs(np.asarray(found, np.float64) - expected).max(initial=0) / scale)


def seconds_of(run: Callable[[], Any], calls: int) -> float:
    """Return the seconds of a call, by events on CuPy's current stream, which is PyTorch's default stream, too."""
    import cupy

    if not hasattr(cupy.cuda, "Event"):  # the simulator
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - start) / calls
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return cupy.cuda.get_elapsed_time(start, end) / 1e3 / calls


def alternate(runs: dict[str, Callable[[], Any]], rounds: int = 9, window: float = 0.012) -> dict[str, list[float]]:
    """Return the seconds of a call in each round, with the engines in turn, each for `window` seconds."""
    calls, times = {}, {name: [] for name in runs}
    for name, run in runs.items():
        seconds = min(seconds_of(run, 1) for _ in range(3))
        calls[name] = max(1, min(200, round(window / max(seconds, 1e-6))))
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds_of(run, calls[name]))
    return times


def medians(runs: dict[str, Callable[[], Any]], rounds: int = 9) -> dict[str, float]:
    """Return the median microseconds of a call of each engine."""
    return {f"{name} us": median(times) * 1e6 for name, times in alternate(runs, rounds).items()}


def host_seconds(run: Callable[[], Any]) -> float:
    """Return the seconds after which a call returns while the GPU is idle before it."""
    found = []
    for _ in range(9):
        seconds_of(int, 1)  # waits for the GPU
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    seconds_of(int, 1)
    return median(found)
