"""Compiles a network in C with the machine's compiler, and runs its test."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from rnnkit.errors import message

FLAGS = "-std=c99", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"
"""Of the compiler: what the header names."""


def check(folder: Path, name: str) -> str:
    """Compile and run the test of the files in a folder, with CC or cc; return what it prints. Raises RuntimeError."""
    compiler = shlex.split(os.environ.get("CC", "cc")) or ["cc"]  # may have options
    if shutil.which(compiler[0]) is None:
        raise RuntimeError(message("export_c", "check", "find a C compiler (CC, or cc)", f"no {compiler[0]}"))
    sources = [folder / f"{name}.c", folder / f"{name}_test.c"]
    with tempfile.TemporaryDirectory() as outside:
        program = Path(outside) / "test"
        for command in ([*compiler, *FLAGS, *sources, "-o", program, "-lm"], [program, folder / f"{name}.bin"]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                expected = "compile" if command[0] == compiler[0] else "have the bits of rnnkit"
                found = (done.stdout + done.stderr).strip()[:1000] or f"exit status {done.returncode}"
                raise RuntimeError(message("export_c", f"{name}.c", expected, found))
    return done.stdout.strip()
