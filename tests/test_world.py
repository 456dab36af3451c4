"""Which launcher started a process: what each sets in the environment, and what is missing or does not fit."""

import re

import pytest
from launched import PROGRAM, alone, launch, mpi, said
from messages import says

from rnnkit.distributed.launch import LAUNCHERS


@pytest.mark.parametrize(("rank", "size"), [launcher[1:] for launcher in LAUNCHERS])
def test_the_only_rank_of_a_launcher_needs_no_mpi(rank, size):
    run = alone("-c", WITHOUT_MPI4PY + "print(world())", **{rank: "0", size: "1"})
    assert (run.returncode, run.stdout, run.stderr) == (0, "None\n", "")


def test_tasks_of_slurm_alone_are_no_ranks():
    run = alone("-c", WITHOUT_MPI4PY + "print(world())", SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="4", SLURM_NTASKS="4")
    assert (run.returncode, run.stdout, run.stderr) == (0, "None\n", "")


WITHOUT_MPI4PY = "import sys; sys.modules['mpi4py'] = None; from rnnkit.distributed import world; "


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "an mpiexec of MPICH's kind with 4 ranks (PMI_SIZE=4)"),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0"},
            "Open MPI's mpiexec with 2 ranks (OMPI_COMM_WORLD_SIZE=2)",
        ),
        ({"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "3"}, "a PMIx launcher with 3 ranks (SLURM_STEP_NUM_TASKS=3)"),
        ({"PMIX_RANK": "0"}, "a PMIx launcher"),
        # An mpirun within an srun: the inner one counts.
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "PMI_RANK": "0", "PMI_SIZE": "1"},
            "Open MPI's mpiexec with 2 ranks (OMPI_COMM_WORLD_SIZE=2)",
        ),
    ],
)
def test_ranks_without_mpi4py_are_told_what_to_install(variables, told):
    run = alone("-c", WITHOUT_MPI4PY + "world()", **variables)
    assert run.returncode == 1
    where = "rnnkit.errors.BackendError: world: mpi4py"
    facts = told, "ModuleNotFoundError", "pip install 'rnnkit[mpi]'", "mpiexec", "on a cluster"
    assert re.search(says(where, *facts), run.stderr.splitlines()[-1])


@mpi
def test_an_mpi_without_its_library_is_told_likewise():
    run = alone(PROGRAM, "told", PMI_RANK="0", PMI_SIZE="2", MPI4PY_LIBMPI="/nowhere")
    assert run.returncode == 1
    expected = says("rnnkit.errors.BackendError: world: mpi4py", "2 ranks", "cannot load MPI library")
    assert any(re.search(expected, line) for line in run.stderr.splitlines()), run.stderr


OTHER_MPI, CURE = "rnnkit.errors.BackendError: world: mpi4py", "python -m mpi4py --mpi-library"


@mpi
@pytest.mark.parametrize("module", [[], ["-m", "mpi4py"]])
def test_the_launcher_of_another_mpi_is_noticed(module):
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
def test_all_that_a_launcher_starts_is_the_world(ranks, expected):
    assert said(launch(ranks, "told")) == expected


@mpi
def test_what_a_rank_has_started_ends_with_it():
    assert said(launch(2, "ending")) == [["False True"]] * 2


@mpi
def test_an_mpi_that_runs_already_is_asked_without_a_launcher():
    code = "from mpi4py import MPI; from rnnkit.distributed import world; print(world(), MPI.Is_finalized())"
    run = alone("-c", code)
    assert (run.returncode, run.stdout) == (0, "None False\n"), run.stderr
