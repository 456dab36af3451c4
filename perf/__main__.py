"""The command line: run, table, compare, plot, cpu, startup."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rnnkit.common.extras import to_install, to_install_extra


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    from perf.report import ReportError

    args = build_parser().parse_args(arguments)
    try:
        return args.command(args)
    except OSError as error:
        print(f"perf: {error.filename}: {error.strerror}" if error.filename else f"perf: {error}", file=sys.stderr)
        return 2
    except ReportError as error:
        print(f"perf: {error}", file=sys.stderr)
        return 2


_PRINTING = {
    "calls": "call_suite",
    "derivatives": "derivative_suite",
    "episodes": "episode_suite",
    "jax": "jax_suite",
    "keras": "keras_suite",
    "masks": "mask_suite",
    "native": "native_suite",
    "norms": "norm_suite",
    "subnormals": "subnormal_suite",
}
"""Modules of suites that print their rows."""


def _run(args: argparse.Namespace) -> int:
    from perf import compare, report

    needs_torch = args.suite not in ("engines", "jax", "keras", "reduced", "masks", "native")
    if needs_torch and find_spec("torch") is None:
        rows = f"--suite {args.suite} needs PyTorch: {to_install('torch')}"
    elif (needed := {"jax": "flax", "keras": "keras"}.get(args.suite)) and find_spec(needed) is None:
        rows = f"--suite {args.suite} needs {needed.capitalize()}: {to_install(needed)}"
    elif args.suite == "gallery":
        return _run_gallery(args)
    elif args.suite in _PRINTING:
        suite = import_module(f"perf.{_PRINTING[args.suite]}")
        return _run_printing(args, suite.run, suite.CASES[0].name, getattr(suite, "COMPILED", None))
    elif args.suite == "programs":
        return _run_programs(args)
    else:
        rows = (_torch_rows if args.suite == "torch" else _rows)(args)
    if isinstance(rows, str):
        print(f"perf: {rows}", file=sys.stderr)
        return 2
    fused = compare.fused(rows)
    if fused:
        print(fused)
    return 0 if all(row["rnnkit"] == report.OK for row in rows) else 1


def _rows(args: argparse.Namespace) -> list[dict[str, Any]] | str:
    """Measure against the other engines; return the rows, or a text that says why it cannot."""
    from perf import cases, cell_suite, reduced_suite, run

    if args.device == "cuda" and not _gpu():
        return f"--device cuda needs a GPU that CuPy can use: {to_install_extra('cuda13')}"
    among = {"cells": cell_suite.CASES, "reduced": reduced_suite.CASES}.get(args.suite)
    pairs = cases.select(args.cases, args.passes, args.device, among)
    if args.tf32:
        pairs = [(case.with_tf32(), name) for case, name in pairs if case.desc.dtype == "float32"]
    if not pairs:
        example = "ds2/lstm/infer" if among is None else cases.row_name(among[0], among[0].passes[0])
        return f"--cases must match a name such as {example}, got {args.cases!r}"
    threads = args.threads if args.device == "cpu" else args.threads[:1]  # that of the reference
    return run.run(pairs, args.against, threads, args.seconds, args.out, args.device)


def _run_gallery(args: argparse.Namespace) -> int:
    """Time cells of papers against torchrecurrent's; return the exit status."""
    from perf import gallery_suite

    if find_spec("torchrecurrent") is None:
        print(f"perf: --suite gallery needs torchrecurrent: {to_install('torchrecurrent')}", file=sys.stderr)
        return 2
    return _run_printing(args, gallery_suite.run, gallery_suite.names()[0], gallery_suite.COMPILED)


def _run_printing(args: argparse.Namespace, run: Callable[..., Any], example: str, compiled: str | None = None) -> int:
    """Run a suite that prints its rows; one that has another competitor, `compiled`, is told whether it is wanted."""
    is_compiled = compiled is not None and args.against == [compiled]
    wrong = _foreign(args, "device", "tf32", "passes", "out", *(() if is_compiled else ("against",)))
    if wrong is None:
        given = args.cases, args.threads, args.seconds, *(() if compiled is None else (is_compiled,))
        wrong = None if run(*given) else f"--cases must match a name such as {example}, got {args.cases!r}"
    if wrong is not None:
        print(f"perf: {wrong}", file=sys.stderr)
    return 0 if wrong is None else 2


def _run_programs(args: argparse.Namespace) -> int:
    """Time programs, plain and accelerated; return 0 only if one ran, and all that ran had equal results."""
    from perf.programs import suite, table

    wrong = _foreign(args, "device", "tf32", "against", "passes", "out")
    equal = suite.run(args.cases, args.threads, args.seconds) if wrong is None else []
    if equal is None:
        wrong = f"--cases must match a name such as {table.PROGRAMS[0].name}, got {args.cases!r}"
    if wrong is not None:
        print(f"perf: {wrong}", file=sys.stderr)
        return 2
    return 0 if equal and all(equal) else 1


def _foreign(args: argparse.Namespace, *names: str) -> str | None:
    """What is wrong where one of these options is given, which the suite does not have."""
    default = build_parser().parse_args(["run"])
    given = [f"--{name}" for name in names if getattr(args, name) != getattr(default, name)]
    return f"--suite {args.suite} has no choice of {', '.join(given)}" if given else None


def _torch_rows(args: argparse.Namespace) -> list[dict[str, Any]] | str:
    """Measure the training steps of PyTorch's models; return the rows, or why there can be none."""
    from perf import cases, run, torch_suite

    wrong = _foreign(args, "device", "tf32", "against", "passes")
    if wrong is not None:
        return wrong
    pairs = cases.select(args.cases, (torch_suite.PASS,), among=torch_suite.CASES)
    if not pairs:
        return f"--cases must match a name such as small/gru/fit, got {args.cases!r}"
    return run.run(pairs, ["torch"], args.threads, args.seconds, args.out, own=torch_suite.measure)


def _gpu() -> bool:
    try:
        import cupy
    except ImportError:
        return False
    return cupy.cuda.is_available()


def _table(args: argparse.Namespace) -> int:
    from perf.compare import tables

    print(tables(args.file))
    return 0


def _compare(args: argparse.Namespace) -> int:
    from perf.compare import compare

    print(compare(args.before, args.after))
    return 0


def _plot(args: argparse.Namespace) -> int:
    from perf.plot import plot

    plot(args.file, args.out or os.path.splitext(args.file)[0] + ".png")
    return 0


def _cpu(args: argparse.Namespace) -> int:
    from perf.cpu_page import add

    print(add(args.file, args.kind, args.note))
    return 0


def _startup(args: argparse.Namespace) -> int:
    from perf.startup import startup

    startup(args.modes)
    return 0


def build_parser() -> argparse.ArgumentParser:
    from perf.baselines import COMPETITORS
    from perf.cases import PASSES
    from rnnkit.descriptor.descriptor import MODES

    parser = argparse.ArgumentParser(prog="python -m perf", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("run", help="time rnnkit beside the competitors")
    command.set_defaults(command=_run)
    suite = "engines: networks beside other engines (default); cells: cells that are no modes beside loops over time; "
    suite += "gallery: cells of papers beside torchrecurrent's; torch, calls, programs: training steps of PyTorch's "
    suite += "models, calls of its modules and whole programs with and without rnnkit.torch; episodes: resets in one "
    suite += "call beside a loop over the steps; masks: steps to skip beside lengths; norms: cells with layer norm and "
    suite += "noise beside plain ones and a loop; subnormals: what subnormal numbers slow down; derivatives: second "
    suite += "ones, and those of each sample, beside PyTorch; jax: networks in JAX beside loops and Flax; "
    suite += "reduced: plans with quantized weights; native: a step of the network in C"
    suites = "engines", "cells", "gallery", "torch", "programs", "reduced", *_PRINTING
    command.add_argument("--suite", choices=suites, default="engines", help=suite)
    cases = "globs of names such as ds2/lstm/infer, lm/IndRNN/train for cells, small/gru/fit for torch, "
    cases += "gru-t1-n1-h32-l1/train for calls, lstm-n8-h64-e5 for episodes, lstm-t50-n16-h128-left/* for masks, "
    cases += "zoneout-lstm-* for norms, skorch/gru for programs, lstm-t200-n16-h128 for subnormals, "
    cases += "penalty-* for derivatives, train-lstm-t20-* for jax, lstm-h32 for native, or ds2-int8/lstm/infer for "
    cases += "reduced, with commas "
    cases += "(default: all)"
    command.add_argument("--cases", default="*", metavar="GLOB", help=cases)
    device = "where: NumPy arrays, or CuPy arrays beside PyTorch on the same GPU (default: cpu)"
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help=device)
    command.add_argument("--tf32", action="store_true", help="allow TensorFloat-32 on the GPU, in both engines")
    _names(command, "--against", COMPETITORS, COMPETITORS, "competitors")
    _names(command, "--passes", PASSES, PASSES, "passes")
    threads = f"numbers of threads, with commas (default: {_threads()})"
    command.add_argument("--threads", type=_numbers, default=_threads(), metavar="N", help=threads)
    seconds = "time for the repetitions of a row, at least three of each engine (default: 1)"
    command.add_argument("--seconds", type=float, default=1.0, metavar="S", help=seconds)
    command.add_argument("--out", metavar="FILE.csv", help="report to write")
    command = commands.add_parser("table", help="print a report as Markdown tables")
    command.set_defaults(command=_table)
    command.add_argument("file", metavar="FILE.csv")
    command = commands.add_parser("compare", help="set two reports beside each other")
    command.set_defaults(command=_compare)
    command.add_argument("before", metavar="A.csv")
    command.add_argument("after", metavar="B.csv")
    command = commands.add_parser("plot", help="draw a report: share of the peak, and growth with T, N, H and L")
    command.set_defaults(command=_plot)
    command.add_argument("file", metavar="FILE.csv")
    command.add_argument("--out", metavar="FILE.png", help="picture to write (default: the report's name with .png)")
    command = commands.add_parser("cpu", help="add a report to the table of CPUs, and write that page of the docs anew")
    command.set_defaults(command=_cpu)
    command.add_argument("file", metavar="FILE.csv", nargs="?", help="report of run (default: only write the page)")
    command.add_argument("--kind", metavar="NAME", help="kind of CPU (default: by the report's family and model)")
    note = "what else a reader must know, such as a busy machine (default: the note in the report's header)"
    command.add_argument("--note", metavar="TEXT", help=note)
    command = commands.add_parser("startup", help="time the import and the first calls in fresh processes")
    command.set_defaults(command=_startup)
    _names(command, "--modes", tuple(MODES), tuple(MODES), "modes")
    return parser


def _names(command: argparse.ArgumentParser, option: str, known: tuple, default: tuple, what: str) -> None:
    """Add an option that takes comma-separated names."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"must be of {', '.join(known)}, got {', '.join(unknown)}")
        return names

    text = f"{what}, with commas (default: {','.join(default)})"
    command.add_argument(option, type=parse, default=list(default), metavar="NAMES", help=text)


def _threads() -> str:
    """Return the default thread counts: all processors, and one."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{count},1" if count > 1 else "1"


def _numbers(text: str) -> list[int]:
    numbers = [int(number) for number in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
