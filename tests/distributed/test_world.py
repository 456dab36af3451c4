"""Which launcher started a process: what each sets in the environment, and what is missing or does not fit."""

import re

import pytest
from launched import PROGRAM, alone, launch, mpi, said
from messages import says

from rnnkit.distributed.launch import LAUNCHERS

WITHOUT_MPI4PY = "import sys; sys.modules['mpi4py'] = None; from rnnkit.distributed import world; "
ALONE = [{launcher.rank: "0", launcher.size: "1"} for launcher in LAUNCHERS]
TASKS = dict(SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="4", SLURM_NTASKS="4")  # of Slurm alone: no ranks


@pytest.mark.parametrize("variables", [*ALONE, TASKS])
def test_process_alone_needs_no_mpi(variables):
    run = alone("-c", WITHOUT_MPI4PY + "print(world())", **variables)
    assert (run.returncode, run.stdout, run.stderr) == (0, "None\n", "")


OPEN_MPI = dict(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2")
TWO = "Open MPI's mpiexec with 2 ranks (OMPI_COMM_WORLD_SIZE=2)"
RANKS = [
    (dict(PMI_RANK="0", PMI_SIZE="4"), "an mpiexec of MPICH's kind with 4 ranks (PMI_SIZE=4)"),
    (OPEN_MPI | dict(PMIX_RANK="0"), TWO),
    (dict(PMIX_RANK="0", SLURM_STEP_NUM_TASKS="3"), "a PMIx launcher with 3 ranks (SLURM_STEP_NUM_TASKS=3)"),
    (dict(PMIX_RANK="0"), "a PMIx launcher"),
    (OPEN_MPI | dict(PMI_RANK="0", PMI_SIZE="1"), TWO),  # an mpirun within an srun: the inner one counts
]


@pytest.mark.parametrize(("variables", "told"), RANKS)
def test_ranks_without_mpi4py_are_told_what_to_install(variables, told):
    run = alone("-c", WITHOUT_MPI4PY + "world()", **variables)
    assert run.returncode == 1
    where = "rnnkit.errors.BackendError: world: mpi4py"
    facts = told, "ModuleNotFoundError", "pip install 'rnnkit[mpi]'", "mpiexec", "on a cluster"
    assert re.search(says(where, *facts), run.stderr.splitlines()[-1])


@mpi
def test_mpi_without_its_library_is_refused():
    run = alone(PROGRAM, "told", PMI_RANK="0", PMI_SIZE="2", MPI4PY_LIBMPI="/nowhere")
    assert run.returncode == 1
    expected = says("rnnkit.errors.BackendError: world: mpi4py", "2 ranks", "cannot load MPI library")
    assert any(re.search(expected, line) for line in run.stderr.splitlines()), run.stderr


OTHER_MPI, CURE = "rnnkit.errors.BackendError: world: mpi4py", "python -m mpi4py --mpi-library"


@mpi
@pytest.mark.parametrize("module", [[], ["-m", "mpi4py"]])
def test_launcher_of_another_mpi_is_noticed(module):
    """A launcher that MPI does not know leaves each process alone in its world."""
    run = alone(*module, PROGRAM, "told", PMI_RANK="0", PMI_SIZE="4")
    assert run.returncode != 0
    expected = says(OTHER_MPI, "mpiexec of MPICH's kind", "4 ranks", "PMI_SIZE=4", "1 rank", CURE)
    assert any(re.search(expected, line) for line in run.stderr.splitlines()), run.stderr


@mpi
def test_open_mpi_s_launcher_is_noticed_before_mpich_ends_the_process():
    if not alone("-m", "mpi4py", "--mpi-lib-version").stdout.startswith("MPICH"):
        pytest.skip("mpi4py has another MPI than that of the extra mpi")
    run = alone(PROGRAM, "told", OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="4", PMIX_RANK="0")
    assert run.returncode == 1
    expected = says(OTHER_MPI, "Open MPI's mpiexec", "4 ranks", "OMPI_COMM_WORLD_SIZE=4", "MPICH", CURE)
    assert re.search(expected, run.stderr.splitlines()[-1]), run.stderr


@mpi
@pytest.mark.parametrize(("ranks", "expected"), [(1, [["None"]]), (2, [["2"], ["2"]])])
def test_world_has_all_ranks_of_a_launcher(ranks, expected):
    assert said(launch(ranks, "told")) == expected


@mpi
def test_ranks_finalize_mpi_at_exit():
    assert said(launch(2, "ending")) == [["False True"]] * 2


@mpi
def test_world_without_launcher_leaves_running_mpi():
    code = "from mpi4py import MPI; from rnnkit.distributed import world; print(world(), MPI.Is_finalized())"
    run = alone("-c", code)
    assert (run.returncode, run.stdout) == (0, "None False\n"), run.stderr
