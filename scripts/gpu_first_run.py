"""Run rnnkit on an NVIDIA GPU for the first time: versions, small networks, tests, speed beside PyTorch, experiments.

    python3 scripts/gpu_first_run.py --out FOLDER [--minutes 8] [--only networks,speed]

Needs CuPy, cuDNN, PyTorch and pytest; rnnkit need not be installed. Each part is a process with its own time limit that
writes each result at once: a crash or a hang costs the rest of that part only. FOLDER gets report.json with everything,
bench.csv, and a log of each part. The exit status is 0 if the networks and the tests have passed. --stand-in tries the
script without a GPU, on the simulators of the tests.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Modules of the parts, in order, and their shares of the time. Each part leaves what it does not need to the next ones.
PARTS = {
    "gpu_run.versions": 1.0,
    "gpu_run.networks": 2.5,
    "gpu_run.device_tests": 4.0,
    "gpu_run.cells": 2.0,
    "gpu_run.speed": 3.5,
    "gpu_run.questions": 2.0,
}
MUST_PASS = "networks", "device_tests"


def main(arguments: list[str] | None = None, parts: dict[str, float] = PARTS) -> int:
    """Run the parts and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument("--minutes", type=float, default=8.0, help="limit of all parts together (default: 8)")
    parser.add_argument("--only", help="names of parts, with commas between them")
    parser.add_argument("--stand-in", action="store_true", help="use simulators of CuPy and cuDNN")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.part:
        _run_here(args)
        return 0
    if args.only:
        wanted = args.only.split(",")
        unknown = set(wanted) - {_title(name) for name in parts}
        if unknown:
            parser.error(f"--only must name parts of {', '.join(map(_title, parts))}, got {', '.join(sorted(unknown))}")
        parts = {name: share for name, share in parts.items() if _title(name) in wanted}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through `finally`
    report: dict[str, Any] = {"started": time.strftime("%Y-%m-%dT%H:%M:%S"), "arguments": sys.argv[1:], "parts": {}}
    try:
        with tempfile.TemporaryDirectory(prefix="gpu-first-run-") as work:
            _run_parts(args, parts, Path(work), report)
    finally:
        _save(args.out, report)
        print(_summary(report), flush=True)
    return 0 if _has_passed(report, parts) else 1


def _run_parts(args: argparse.Namespace, parts: dict[str, float], work: Path, report: dict[str, Any]) -> None:
    deadline, left = time.monotonic() + 60 * args.minutes, sum(parts.values())
    for name, share in parts.items():
        seconds = max(0.0, deadline - time.monotonic()) * share / left
        left -= share
        print(f"{_title(name)}: at most {seconds:.0f} s", flush=True)
        part = report["parts"][_title(name)] = {"code": "did not end", "seconds": 0.0, "results": []}
        start = time.monotonic()
        try:
            part["code"] = _run_part(args, name, work, seconds)
        finally:
            part["seconds"] = time.monotonic() - start
            from gpu_run.here import Here

            part["results"] = Here(args.out, work, _title(name)).lines(_title(name))
            _save(args.out, report)


def _run_part(args: argparse.Namespace, name: str, work: Path, seconds: float) -> int | str:
    """Run a part in its own process group, and end the whole group when it ends or at its limit."""
    command = [sys.executable, __file__, "--part", name, "--out", str(args.out), "--work", str(work)]
    command += ["--stand-in"] if args.stand_in else []
    own = [str(ROOT / folder) for folder in ("", "kernels", "tests/support")]
    paths = [*own, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    environment |= {"PYTHONFAULTHANDLER": "1", "CUDNN_LOGLEVEL_DBG": "1", "CUDNN_LOGDEST_DBG": "stdout"}
    environment.setdefault("NUMBA_CACHE_DIR", str(work / "numba"))
    with open(args.out / f"{_title(name)}.log", "w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "time is up"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):  # the latter in a hanging call of the driver
                pass


def _run_here(args: argparse.Namespace) -> None:
    """Run a part in this process."""
    from gpu_run.here import Here

    here = Here(args.out, args.work, _title(args.part), args.stand_in)
    with ExitStack() as stack:
        if args.stand_in:
            from gpu_standin import standin_gpu

            stack.enter_context(standin_gpu())
        with here.trying(here.part):
            importlib.import_module(args.part).run(here)


def _title(name: str) -> str:
    return name.rpartition(".")[2]


def _save(out: Path, report: dict[str, Any]) -> None:
    (out / "report.json").write_text(json.dumps(report, indent=1, default=str))


def _is_bad(result: dict[str, Any]) -> bool:
    return "error" in result or result.get("ok") is False


def _summary(report: dict[str, Any]) -> str:
    """Return what failed, and how fast it is."""
    from gpu_run.here import short

    lines = []
    for name, part in report["parts"].items():
        lines.append(f"{name}: code {part['code']}, {part['seconds']:.0f} s, {len(part['results'])} results")
        bad = [one for one in part["results"] if _is_bad(one)]
        for one in bad[:12]:
            lines.append(f"  BAD {one['name']}: {short(one.get('error', one))}")
            lines += [f"      {one['where'][0][:150]}"] if one.get("where") else []
        lines += [f"  and {len(bad) - 12} more"] if len(bad) > 12 else []
    for row in report["parts"].get("speed", {}).get("results", ()):
        if "ratio" in row:
            both = f"{row['rnnkit_us']:9.1f} us, torch {row['torch_us']:9.1f} us, {row['ratio']:.2f}x"
            host = f"host {row['rnnkit_host_us']:.0f} and {row['torch_host_us']:.0f} us"
            lines.append(f"  {row['case']:24} {both}, {host}, share of limit {short(row['share_of_limit'])}")
    for one in report["parts"].get("questions", {}).get("results", ()):
        lines.append("  " + " ".join(f"{key}={short(value)}" for key, value in one.items())[:400])
    return "\n".join(lines)


def _has_passed(report: dict[str, Any], parts: dict[str, float]) -> bool:
    wanted = [report["parts"][_title(name)] for name in parts if _title(name) in MUST_PASS]
    results = [one for part in wanted for one in part["results"]]
    return all(part["code"] == 0 and part["results"] for part in wanted) and not any(map(_is_bad, results))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # not through the cleanup of libraries, which may hang
