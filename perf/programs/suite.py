"""Programs from PyPI, as they are and with their recurrent modules on the engine: `run --suite programs`.

Each has a process of its own. There it runs once accelerated, and once as it is and watched, which also warms it up.
Then it runs in turn as it is and in `rnnkit.torch.accelerated`, at least three times each; the least time counts. A
program that comes with its weights (`Converted`) runs in turn as it is and as a twin that uses rnnkit.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from importlib.util import find_spec
from tempfile import TemporaryDirectory

from perf.programs.converted import Comparer, Comparison, Converted
from perf.programs.program import Program
from perf.programs.runner import Outcome, Phase, Runner
from perf.programs.table import PROGRAMS
from perf.timing import Worker, WorkerError

_LIMIT = 600.0  # seconds that a program may take
_SIZES = 4  # of calls, that are printed


def run(pattern: str, threads: list[int], seconds: float) -> list[bool] | None:
    """Time the programs whose names match one of the patterns; print what comes out of each.

    Returns for each that is installed whether it ran and had PyTorch's results, or None if no name matches.
    """
    programs = [one for one in PROGRAMS if any(fnmatchcase(one.name, glob) for glob in pattern.split(","))]
    equal = []
    for count in threads:
        for program in programs:
            missing = [name for name in program.needs if find_spec(name) is None]
            if missing:
                print(f"{program.name}: not installed: {', '.join(missing)}", flush=True)
                continue
            try:
                outcome = measure(program, count, seconds)
            except WorkerError as error:
                print(f"failed: {error}", flush=True)
                equal.append(False)
            else:
                print("\n".join(_lines(program, count, outcome)), flush=True)
                equal.append(outcome.equal)
    return equal if programs else None


def measure(program: Program | Converted, threads: int, seconds: float, limit: float = _LIMIT) -> Outcome | Comparison:
    """Run a program in a process of its own. WorkerError says what went wrong there, or that the limit passed."""
    with TemporaryDirectory() as folder:
        worker = Worker(program.name, threads, kind=Comparer if isinstance(program, Converted) else Runner)
        try:
            return worker.call("measure", program, seconds, folder, limit=limit)
        finally:
            worker.close()


def _lines(program: Program | Converted, threads: int, outcome: Outcome | Comparison) -> list[str]:
    start = f"{program.name:34} {threads} threads"
    if isinstance(outcome, Comparison):
        verdict = "equal" if outcome.equal else f"NOT EQUAL (limit {outcome.close:.0e})"
        return [
            f"{start}  call     {_times('package', outcome.package, outcome.own)}",
            f"    results {verdict}, {outcome.deviation:.0e} apart",
        ]
    verdict = "equal" if outcome.equal else f"NOT EQUAL (PyTorch twice: {outcome.noise:.0e})"
    return [
        *(f"{start}  {_figures(phase)}" for phase in outcome.phases),
        f"    results {verdict}, {outcome.deviation:.0e} apart; {outcome.accelerated} modules accelerated",
        *(f"    left: {module}: {reason}" for module, reason in outcome.left.items()),
        *(f"    {phase.name}: {_calls(phase)}" for phase in outcome.phases if phase.calls),
    ]


def _figures(phase: Phase) -> str:
    return f"{phase.name:7}  {_times('PyTorch', phase.plain, phase.own)}  recurrent {phase.share:4.0%}"


def _times(name: str, theirs: float, own: float) -> str:
    return f"{name} {theirs:8.4f} s  rnnkit {own:8.4f} s  {theirs / own:5.2f}x"


def _calls(phase: Phase) -> str:
    text = "; ".join(f"{count} {sizes}" for sizes, count in phase.calls[:_SIZES])
    rest = phase.calls[_SIZES:]
    return f"{text}; {sum(count for _, count in rest)} of {len(rest)} other sizes" if rest else text
