"""The tests marked gpu, each result as it comes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from gpu_run.here import Here

ROOT = Path(__file__).resolve().parents[2]
ROOMS = "cuda", "training", "torch", "network", "perf"
WORKERS = 12  # processes on one GPU: each takes half a gigabyte of it
OUTCOME = re.compile(r"^\[gw\d+\].* (PASSED|FAILED|ERROR|SKIPPED) (\S.*)$")


def run(here: Here) -> None:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "-n", str(2 if here.stand_in else WORKERS), "-rfE"]
    command += ["--tb=short", "-o", "faulthandler_timeout=100", *(f"tests/{room}" for room in ROOMS)]
    counts, start = Counter(), time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            if outcome := OUTCOME.match(line.strip()):
                verdict, test = outcome.groups()
                counts[verdict] += 1
                if verdict in ("FAILED", "ERROR"):
                    here.add("failed", test=test, ok=False)
            elif line.startswith(("FAILED ", "ERROR ")):  # of the summary, with the reason
                here.add("reason", text=line.strip()[:600])
    facts = {"code": process.returncode, "seconds": time.perf_counter() - start, **counts}
    here.add("tests", **facts, ok=process.returncode == 0 and counts["PASSED"] > 0)
