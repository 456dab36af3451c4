"""Ranks under mpiexec: sums and weights with the same bits everywhere, one batch on several ranks, and their ends."""

import os
import re
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from docstring_rules import assert_documents_its_parameters, assert_typed, section
from launched import PROGRAM, alone, assert_same_on_all_ranks, launch, mpi, said
from messages import says
from refused import refusals

from rnnkit import distributed
from rnnkit.distributed import aborting, allreduce_gradients, broadcast_weights, collectives, shard, share_cores, world
from rnnkit.distributed import ranks as ranks_module
from rnnkit.distributed.launch import LAUNCHERS
from rnnkit.errors import BackendError

SECONDS = 30  # within which ranks that wait for one that died must have ended; it takes less than one
two_or_three = pytest.mark.parametrize("ranks", [2, 3])
each_collective = pytest.mark.parametrize(("function", "name"), [(allreduce_gradients, "dw"), (broadcast_weights, "w")])


@mpi
@two_or_three
def test_sum_is_right_and_has_the_same_bits_everywhere(ranks):
    first = assert_same_on_all_ranks(launch(ranks, "sums"))
    assert len(first) == len({line.split()[-1] for line in first}) + 1 == 10  # two of them are empty
    assert assert_same_on_all_ranks(launch(ranks, "sums")) == first


@mpi
@two_or_three
def test_large_buffers_go_in_several_calls(ranks):
    said(launch(ranks, "blocks"))


@mpi
@two_or_three
def test_all_ranks_get_the_weights_of_the_root(ranks):
    (line,) = assert_same_on_all_ranks(launch(ranks, "broadcast"))
    got, sent = line.split()
    assert got == sent


@mpi
@two_or_three
def test_unequal_weights_are_refused_by_all_ranks(ranks):
    first, second = assert_same_on_all_ranks(launch(ranks, "unequal_weights"))
    where, expected = "broadcast_weights: w", ("rank 0", "10 elements of float32")
    assert re.search(says(where, *expected, "11 elements of float32 on rank 1"), first)
    assert re.search(says(where, *expected, "10 elements of float64 on rank 1"), second)


@mpi
@two_or_three
def test_ranks_with_shares_train_as_one_with_the_batch(ranks, tmp_path):
    one, several = tmp_path / "one.npy", tmp_path / "several.npy"
    single = said(alone(PROGRAM, "train", one))[0]
    steps = assert_same_on_all_ranks(launch(ranks, "train", several))  # bit-equal weights after every step
    assert len(set(steps)) == len(set(single)) == 50
    # Six rows are added up in another order, which changes weights below 1 by 3e-16, and the loss, 25, by 4e-15.
    np.testing.assert_allclose(np.load(several), np.load(one), rtol=0, atol=1e-13)
    assert assert_same_on_all_ranks(launch(ranks, "train", several)) == steps


@mpi
def test_shards_of_three_ranks_are_nearly_equal():
    assert said(launch(3, "unequal_shards")) == [["0 2"], ["2 5"], ["5 8"]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_shards_follow_one_another_and_leave_nothing_out(ranks):
    for size in range(ranks, 40):
        slices = [shard(size, SimpleNamespace(size=ranks, rank=rank)) for rank in range(ranks)]
        assert [item for part in slices for item in range(size)[part]] == list(range(size))
        sizes = [part.stop - part.start for part in slices]
        assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1
    with pytest.raises(ValueError, match=says("shard: size", f"ranks={ranks}", ranks - 1)):
        shard(ranks - 1, SimpleNamespace(size=ranks, rank=0))


@mpi
def test_more_ranks_than_items_are_refused():
    run = launch(3, "too_many_ranks")
    assert run.returncode != 0
    lines = run.stderr.splitlines()
    assert any(re.search(says("ValueError: shard: size", "ranks=3", 2), line) for line in lines), run.stderr


@mpi
@pytest.mark.cores(2)
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no way to bind a process to a core")
def test_ranks_share_the_cores_that_they_may_use():
    cores = len(os.sched_getaffinity(0))
    shared = [[str(max(1, cores // 2))]] * 2
    assert said(launch(2, "cores", NUMBA_NUM_THREADS=None)) == shared
    assert said(launch(2, "own_core", NUMBA_NUM_THREADS=None)) == [["1"], ["1"]]
    assert said(launch(2, "cores", NUMBA_NUM_THREADS="3")) == [["3"], ["3"]]


SHARED = [
    (range(4), [range(4)] * 2, 2),
    (range(2), [range(2), range(2, 4)], 2),
    (range(8), [range(8)] * 3, 2),
    (range(196), [range(196)] * 98, 2),  # floats do not add up 196 times 1/98 to 2, however carefully
    (range(4), [range(4), range(2, 4)], 3),
    (range(2), [range(2)] * 3, 1),
]


@pytest.mark.parametrize(("mine", "all_ranks", "threads"), SHARED)
def test_cores_are_divided_among_the_ranks_that_may_use_them(mine, all_ranks, threads, monkeypatch):
    import numba

    found = []
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    monkeypatch.setattr(numba, "set_num_threads", found.append)
    monkeypatch.setattr(ranks_module, "_cores", lambda: set(mine))
    monkeypatch.setattr(ranks_module, "_on_this_machine", lambda comm, value: list(map(set, all_ranks)))
    share_cores(Recorder([]))
    assert found == [threads]


def launch_in_time(*arguments):
    start = time.monotonic()
    run = launch(*arguments)
    assert time.monotonic() - start < SECONDS
    return run


@mpi
@two_or_three
def test_killed_rank_ends_the_others(ranks):
    assert launch_in_time(ranks, "killed").returncode != 0


@mpi
@two_or_three
def test_exception_of_one_rank_ends_all_and_is_seen_once(ranks):
    run = launch_in_time(ranks, "failing")
    assert run.returncode == 1
    assert re.search(rf"rank 1 of {ranks}\b.*\nTraceback \(most recent call last\):", run.stderr)
    assert run.stderr.count("ValueError: the data of this rank are spoilt") == 1


EXITS = [("message", 1, r"rank 1 of 2\b.*\nno such corpus\n"), ("status", 7, r"rank 1 of 2\b"), ("none", 0, r"\A\Z")]


@mpi
@pytest.mark.parametrize(("how", "status", "text"), EXITS)
def test_exit_of_a_rank_ends_all_with_its_status(how, status, text):
    run = launch(2, "leaving", how)
    assert run.returncode == status
    assert re.search(text, run.stderr)
    assert "Traceback" not in run.stderr


@mpi
def test_keyboard_interrupt_of_a_rank_ends_all_with_130():
    run = launch(2, "interrupted")
    assert run.returncode == 130
    assert run.stderr.count("KeyboardInterrupt") == 2  # a line of the traceback, and its last


@mpi
def test_buffers_that_mpi_cannot_take_are_refused():
    lines = assert_same_on_all_ranks(launch(2, "wrong_buffers"))
    expected = [says("ValueError broadcast_weights: root", "0..1", 2)]
    for function, name in (("allreduce_gradients", "dw"), ("broadcast_weights", "w")):
        where, cure = f"{function}: {name}", f"numpy.ascontiguousarray({name})"
        expected.append(says(f"TypeError {where}", "float32", "float64", "int64"))
        expected += [says(f"ValueError {where}", "C-contiguous", got, cure) for got in ((16,), (8, 24), (0,))]
        expected.append(says(f"TypeError {where}", "numpy.ndarray", "cupy.ndarray", "list"))
    for pattern in expected:
        assert any(re.search(pattern, line) for line in lines), pattern
    assert len(lines) == 13


@each_collective
def test_buffers_are_checked_in_a_single_process_too(function, name):
    buffer = np.arange(3.0)
    function(buffer, None)
    np.testing.assert_array_equal(buffer, np.arange(3.0))
    buffer.flags.writeable = False
    with pytest.raises(ValueError, match=says(f"{function.__name__}: {name}", "writeable", "read-only")):
        function(buffer, None)
    with pytest.raises(TypeError, match=says(f"{function.__name__}: comm", None, "mpi4py.MPI.Comm", "int")):
        function(np.zeros(3), 4)


@refusals(
    anywhere=[
        (lambda: broadcast_weights(np.zeros(3), None, root="a"), "TypeError broadcast_weights: root | int | str"),
        (lambda: broadcast_weights(np.zeros(3), Recorder([]), 0.0), "TypeError broadcast_weights: root | int | float"),
        (lambda: shard("8", None), "TypeError shard: size | int | str"),
        (lambda: shard(8.0, None), "TypeError shard: size | int | float"),
        (lambda: shard(True, None), "TypeError shard: size | int | bool"),
        (lambda: shard(8, 4), "TypeError shard: comm | None | mpi4py.MPI.Comm | int"),
        (lambda: share_cores("world"), "TypeError share_cores: comm | None | mpi4py.MPI.Comm | str"),
        (lambda: aborting(4).__enter__(), "TypeError aborting: comm | None | mpi4py.MPI.Comm | int"),
    ]
)
def test_arguments_of_other_types_are_refused(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()


def test_single_process_is_its_own_world(monkeypatch):
    import numba

    for launcher in LAUNCHERS:
        monkeypatch.delenv(launcher.rank, raising=False)
    monkeypatch.setattr(numba, "set_num_threads", lambda count: pytest.fail("the number of threads was changed"))
    assert world() is None
    assert shard(5, None) == slice(0, 5)
    assert share_cores(None) >= 1
    with pytest.raises(KeyError), aborting(None):
        raise KeyError


@pytest.mark.parametrize("name", distributed.__all__)
def test_functions_are_documented_and_typed(name):
    function = getattr(distributed, name)
    assert_documents_its_parameters(function, function.__doc__)
    assert_typed(function)
    returns = {"world": ["mpi4py.MPI.Comm or None"], "shard": ["slice"], "share_cores": ["int"]}
    assert section(function.__doc__, "Returns") == returns.get(name)


class Recorder:
    """A communicator that records which buffers it gets."""

    size, rank = 2, 0

    def __init__(self, synchronized):
        self.calls, self.synchronized = [], synchronized

    def Allreduce(self, send, receive):
        self.calls.append((receive, list(self.synchronized)))

    def Bcast(self, buffer, root):
        self.calls.append((buffer, list(self.synchronized)))

    def allgather(self, value):
        return [value] * self.size


@pytest.fixture
def gpu_array(monkeypatch):
    """A stand-in of a CuPy array, and the list that grows when its stream is synchronized."""
    import standin_cupy

    monkeypatch.setitem(sys.modules, "cupy", standin_cupy)
    synchronized = []
    stream = SimpleNamespace(synchronize=lambda: synchronized.append(True))
    monkeypatch.setattr(standin_cupy.cuda, "get_current_stream", lambda: stream)
    return standin_cupy.zeros(5, np.float32), synchronized


@mpi
@each_collective
def test_gpu_memory_is_refused_without_cuda_aware_mpi(function, name, gpu_array, monkeypatch):
    array, synchronized = gpu_array
    comm = Recorder(synchronized)
    monkeypatch.setattr(collectives, "cuda_aware", lambda: False)
    expected = says(f"{function.__name__}: {name}", "NumPy", "CUDA-aware", "CuPy", f"cupy.asnumpy({name})")
    with pytest.raises(BackendError, match=expected):
        function(array, comm)
    assert comm.calls == []


@mpi
@each_collective
def test_gpu_memory_is_passed_once_it_is_computed(function, name, gpu_array, monkeypatch):
    array, synchronized = gpu_array
    comm = Recorder(synchronized)
    monkeypatch.setattr(collectives, "cuda_aware", lambda: True)
    module = SimpleNamespace(IN_PLACE=object())
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    monkeypatch.setattr("mpi4py.MPI", module, raising=False)
    function(array, comm)
    ((buffer, before),) = comm.calls
    assert before == [True]
    assert np.may_share_memory(buffer.values, array.values) and buffer.shape == (5,)


CUDA_AWARE = "from rnnkit.distributed.collectives import cuda_aware; "
ANSWERS = [
    ("int MPIX_Query_cuda_support(void) { return 1; }", "True"),
    ("int MPIX_Query_cuda_support(void) { return 0; }", "False"),
    ("int nothing(void) { return 1; }", "False"),
]


@mpi
def test_mpich_of_the_wheels_is_not_cuda_aware():
    run = alone("-c", CUDA_AWARE + "print(cuda_aware())")
    assert (run.returncode, run.stdout) == (0, "False\n"), run.stderr


@mpi
@pytest.mark.parametrize(("source", "expected"), ANSWERS)
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler for a library that answers otherwise")
def test_cuda_awareness_is_what_the_library_answers(source, expected, tmp_path):
    library = tmp_path / "libanswer.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=source, text=True, check=True)
    fake = f"sys.modules['mpi4py.MPI'] = mpi4py.MPI = types.SimpleNamespace(__file__={str(library)!r}); "
    run = alone("-c", f"import types, sys, mpi4py; {CUDA_AWARE}{fake}print(cuda_aware())")
    assert (run.returncode, run.stdout) == (0, f"{expected}\n"), run.stderr
