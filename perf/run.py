"""Measure the peaks, then each case and pass: compare with the reference, then time against the competitors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from perf import baselines, cases, peaks, report
from perf.baselines import RNNKIT, UNFUSED
from perf.cases import Case
from perf.timing import Worker, WorkerError, alternate, ratios

_CHECKED_FLOPS = 4e10  # larger cases are compared only over their first steps, which take the reference a second


class Engines:
    """The workers of one number of threads, each started when it is first needed."""

    def __init__(self, threads: int, make: Callable[[str, int, str], Any] = Worker, device: str = "cpu") -> None:
        self.threads, self.device, self._make = threads, device, make
        self._workers: dict[str, Any] = {}

    def __getitem__(self, engine: str) -> Any:
        if engine not in self._workers:
            self._workers[engine] = self._make(engine, self.threads, self.device)
        return self._workers[engine]

    def drop(self, engine: str) -> None:
        """Start a new process next time."""
        self._workers.pop(engine).close()

    def close(self) -> None:
        """End all processes."""
        for engine in list(self._workers):
            self.drop(engine)


def run(
    pairs: list[tuple[Case, str]],
    against: list[str],
    threads: list[int],
    seconds: float,
    out: str | None,
    device: str = "cpu",
    *,
    own: Callable[..., dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Measure the cases and passes at each number of threads; print and return the rows, and write them to `out`.

    A suite with a way of its `own` to measure gives it in place of `measure`.
    """
    dtypes = sorted({case.desc.dtype for case, _ in pairs})
    facts, limits = (_peaks if device == "cpu" else _gpu_peaks)(dtypes, threads)
    header = report.machine() | facts
    for key, value in header.items():
        print(f"{key}: {value}", flush=True)
    rows = []
    with ExitStack() as stack:
        writer = report.Writer(stack.enter_context(Path(out).open("w")), header) if out else None
        for count in threads:
            engines = Engines(count, device=device)
            stack.callback(engines.close)
            for case, pass_name in pairs:
                asked = [engine for engine in against if engine != UNFUSED or count == max(threads)]
                limit = limits[case.desc.dtype, count]
                row = (own or measure)(case, pass_name, engines, asked, limit, seconds)
                rows.append(row)
                print(_line(row), flush=True)
                if writer:
                    writer.write(row)
            engines.close()
    return rows


_Limits = tuple[dict[str, str], dict[tuple[str, int], float]]  # for the header, and FLOP/s by dtype and threads


def _peaks(dtypes: list[str], threads: list[int]) -> _Limits:
    limits = {(dtype, count): peaks.fma_peak(dtype, count) for count in threads for dtype in dtypes}
    header = {f"fma_peak_{dtype}_{count}_threads": f"{peak / 1e9:.1f} GF/s" for (dtype, count), peak in limits.items()}
    return header, limits


def _gpu_peaks(dtypes: list[str], threads: list[int]) -> _Limits:
    """Return the peaks of a GPU, measured in a separate process."""
    worker = Worker(RNNKIT, threads[0], "cuda")
    try:
        limits = {(dtype, threads[0]): worker.call("gpu_peak", dtype) for dtype in dtypes}
        header = {f"gemm_peak_{dtype}_without_tf32": f"{peak / 1e9:.1f} GF/s" for (dtype, _), peak in limits.items()}
        return {"gpu": worker.call("gpu_name"), **header}, limits
    finally:
        worker.close()


def measure(
    case: Case, pass_name: str, engines: Engines, against: list[str], peak: float, seconds: float
) -> dict[str, Any]:
    """Return the row of a case and pass: no figure without right results."""
    row = report.facts(case, pass_name, engines.threads)
    refusals = {engine: baselines.refusal(engine, case, pass_name, engines.device) for engine in against}
    willing = [RNNKIT, *(engine for engine, why in refusals.items() if why is None)]
    row |= refusals | _verdicts(case, pass_name, engines, willing)
    timed = [engine for engine in willing if row[engine] == report.OK]
    if RNNKIT in timed:
        row |= _handover("before", engines)
        times = alternate({engine: engines[engine] for engine in timed}, seconds)
        row |= _handover("after", engines) | _figures(case, pass_name, times, engines, peak)
    return row


def _handover(when: str, engines: Engines) -> dict[str, float]:
    """Return how far apart the cores are now, if several CPU threads are used."""
    on_cores = engines.device == "cpu" and engines.threads > 1
    return {f"handover_{when}": peaks.handover()} if on_cores else {}


def shortened(case: Case, pass_name: str) -> Case:
    """Return the case, or its first steps where the reference would take long."""
    steps = int(case.seq_len * _CHECKED_FLOPS / cases.flops(case, pass_name))
    return case._replace(seq_len=max(1, case.shortest or 1, min(case.seq_len, steps)))


def _verdicts(case: Case, pass_name: str, engines: Engines, willing: list[str]) -> dict[str, str]:
    """Have each engine ready and warm if its results are the reference's: OK, or what is wrong."""
    part = shortened(case, pass_name)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "expected.npz"
        engines[UNFUSED].call("reference", part, pass_name, path)
        return {
            engine: _attempt(engines, engine, "check", part, pass_name, path)
            or _attempt(engines, engine, "load", case, pass_name)
            or report.OK
            for engine in willing
        }


def _attempt(engines: Engines, engine: str, method: str, *arguments: Any) -> str | None:
    """Call a worker; if the engine fails, report it in its cell and start a new process next time."""
    try:
        return engines[engine].call(method, *arguments)
    except WorkerError as error:
        engines.drop(engine)
        return f"failed: {error}"


def _figures(case: Case, pass_name: str, times: dict, engines: Engines, peak: float) -> dict[str, Any]:
    row = speed(case, pass_name, times, peak) | {"peak_memory_bytes": engines[RNNKIT].call("peak_memory")}
    on_gpu = engines.device == "cuda"
    if on_gpu:
        row["host_seconds"] = engines[RNNKIT].call("host_time")
    elif pass_name == "step" or (pass_name == "infer" and case.batch_size == 1):
        bandwidth = peaks.read_bandwidth(cases.streamed_bytes(case, pass_name), engines.threads)
        row["share_of_limit"] = cases.least_seconds(case, pass_name, peak, bandwidth) / row["seconds"]
    for engine in times.keys() - {RNNKIT}:
        row |= beside(engine, times) | {f"{engine}_peak_memory_bytes": engines[engine].call("peak_memory")}
        if on_gpu:
            row[f"{engine}_host_seconds"] = engines[engine].call("host_time")
    return row


def speed(case: Case, pass_name: str, times: dict[str, list[float]], peak: float) -> dict[str, Any]:
    """Return rnnkit's own figures of a row."""
    own = median(times[RNNKIT])
    work = cases.flops(case, pass_name)
    return {
        "rounds": len(times[RNNKIT]),
        "seconds": own,
        "gflops": work / own / 1e9,
        "share_of_peak": work / own / peak,
        "samples_per_s": case.batch_size / own,
    }


def beside(engine: str, times: dict[str, list[float]]) -> dict[str, float]:
    """Return the figures of another engine: its time, and how many times as long as rnnkit it took."""
    least, middle, most = ratios(times[RNNKIT], times[engine])
    return {
        f"{engine}_seconds": median(times[engine]),
        f"{engine}_ratio_min": least,
        f"{engine}_ratio_median": middle,
        f"{engine}_ratio_max": most,
    }


def _line(row: dict[str, Any]) -> str:
    """Format a row for printing."""
    start = f"{row['name']:28} {row['threads']} threads "
    if "seconds" not in row:
        return start + row[RNNKIT]
    parts = [f"{row['seconds'] * 1e6:12,.1f} us {row['gflops']:6.1f} GF/s  peak {row['share_of_peak']:4.2f}"]
    if "share_of_limit" in row:
        parts.append(f"limit {row['share_of_limit']:4.2f}")
    if "host_seconds" in row:
        parts.append(f"host {row['host_seconds'] * 1e6:6.1f} us")
    if "handover_before" in row:
        parts.append(f"cores {_placement([row['handover_before'], row['handover_after']])}")
    for engine in baselines.COMPETITORS:
        if f"{engine}_ratio_median" in row:
            least, middle, most = (row[f"{engine}_ratio_{which}"] for which in ("min", "median", "max"))
            parts.append(f"{engine} {middle:.2f}x ({least:.2f}-{most:.2f})")
        elif not row.get(engine, report.OK).startswith((report.OK, "not asked", "only ")):
            parts.append(f"{engine} {row[engine]}")
    return start + "  ".join(parts)


def _placement(handovers: list[float]) -> str:
    """How far apart two cores were, in words; there is no time where something else was at work on them."""
    words = ("busy" if one != one else "near" if one <= peaks.NEAR else "far" for one in handovers)
    return f"{' then '.join(dict.fromkeys(words))} ({', '.join(f'{one * 1e9:.0f}' for one in handovers)} ns)"
