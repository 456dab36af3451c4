"""Programs of distributed_ranks.py, run by mpiexec or alone, and what their ranks say."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

PROGRAM = Path(__file__).with_name("distributed_ranks.py")
# The mpiexec beside this python is that of the wheel which mpi4py finds there.
MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
HANG = 300  # seconds: a program takes 2 to 20
OF_LAUNCHERS = "PMI", "OMPI_COMM_WORLD_", "SLURM_"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}

missing = not (MPIEXEC and find_spec("mpi4py"))
# In continuous integration these tests may not be skipped.
mpi = pytest.mark.skipif(missing and os.environ.get("CI") != "true", reason="needs mpi4py and mpiexec (extra mpi)")


def launch(ranks, *arguments, **environment):
    """Run a function of PROGRAM on several ranks; `said` is what each of them said, line by line."""
    return run([MPIEXEC, "-n", str(ranks), sys.executable, PROGRAM, *arguments], environment, ranks)


def alone(*arguments, **environment):
    return run([sys.executable, *arguments], environment)


def run(command, environment, ranks=1):
    environment = {**CLEAN, "NUMBA_NUM_THREADS": "1", **environment}
    environment = {name: value for name, value in environment.items() if value is not None}
    with TemporaryDirectory() as folder:
        environment["SAID"] = folder
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG, check=False)
        files = [Path(folder, str(rank)) for rank in range(ranks)]
        done.said = [file.read_text().splitlines() if file.exists() else [] for file in files]
    return done


def said(run):
    """What each rank of a program that succeeded has said."""
    assert run.returncode == 0, run.stdout + run.stderr
    return run.said


def assert_same_on_all_ranks(run):
    """Return what they all say."""
    found = said(run)
    assert found[0] and len(found) > 1
    for rank in range(1, len(found)):
        assert found[rank] == found[0], f"rank {rank} differs from rank 0"
    return found[0]
