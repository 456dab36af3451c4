"""What one rank does for tests/distributed/test_ranks.py: each function is a program, named on the command line.

A rank says what it found in a file of its own, as launchers mix what ranks print; what is wrong raises.
"""

import hashlib
import os
import signal
import sys

import numpy as np

import rnnkit
from rnnkit.distributed import aborting, allreduce_gradients, broadcast_weights, collectives, shard, share_cores, world
from rnnkit.training import Adam

T, N, STEPS = 7, 6, 50


def say(comm, *words):
    with open(os.path.join(os.environ["SAID"], str(comm.rank if comm else 0)), "a") as file:
        print(*words, file=file)


def digest(array):
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


def drawn(seed, size=1000, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(size).astype(dtype)


def sums(comm):
    """Sums of both dtypes and any shape, in one call and in blocks, are right and have one set of bits."""
    for dtype in (np.float32, np.float64):
        for size in (0, 1, 5, 1000, 300_000):
            shares = [drawn(rank, size, dtype) for rank in range(comm.size)]
            found = shares[comm.rank].copy()
            address = found.ctypes.data
            allreduce_gradients(found, comm)
            assert found.ctypes.data == address
            exact = np.sum(shares, axis=0, dtype=np.float64)
            tolerance = comm.size * np.finfo(dtype).eps * np.sum(np.abs(shares), axis=0, dtype=np.float64)
            assert np.all(np.abs(found - exact) <= tolerance)
            say(comm, dtype.__name__, size, digest(found))
    matrix = np.full((3, 4), comm.rank + 1.0)
    allreduce_gradients(matrix, comm)
    assert np.all(matrix == comm.size * (comm.size + 1) / 2)


def blocks(comm):
    """More elements than one call takes."""
    collectives.MAX_COUNT = 7
    found = np.arange(23.0) + comm.rank
    allreduce_gradients(found, comm)
    assert np.all(found == comm.size * np.arange(23.0) + comm.size * (comm.size - 1) / 2)
    found[:] = comm.rank
    broadcast_weights(found, comm, root=1)
    assert np.all(found == 1)


def broadcast(comm):
    for root in range(comm.size):
        w = drawn(comm.rank)
        broadcast_weights(w, comm, root)
        assert np.array_equal(w, drawn(root))
    w = drawn(comm.rank)
    broadcast_weights(w, comm)
    say(comm, digest(w), digest(drawn(0)))


def unequal_weights(comm):
    """What differs between the ranks is refused by all of them, and nothing is changed."""
    for size, dtype in ((10 + comm.rank, np.float32), (10, (np.float32, np.float64)[comm.rank % 2])):
        w = drawn(comm.rank, size, dtype)
        kept = w.copy()
        try:
            broadcast_weights(w, comm)
        except ValueError as error:
            say(comm, error)
        assert np.array_equal(w, kept)


def train(comm):
    """Fifty steps of Adam on all rows, each rank on its own; every step's weights, and the last ones."""
    desc = rnnkit.RNNDescriptor("lstm", 3, 8, 2, dtype="float64")
    w = rnnkit.init_weights(desc, seed=comm.rank if comm else 0)
    broadcast_weights(w, comm)
    sums, optimizer = np.zeros(w.size + 1), Adam(w, beta2=0.99)
    dw, rows = sums[:-1], shard(N, comm)
    for step in range(1, STEPS + 1):
        rng = np.random.default_rng(step)
        x, target = rng.standard_normal((T, N, 3))[:, rows], rng.standard_normal((T, N, 8))[:, rows]
        y, _, _, workspace = rnnkit.forward(desc, w, x)
        sums[:] = 0
        rnnkit.backward(desc, w, workspace, (y - target) / N, dw=dw)
        sums[-1] = np.square(y - target).sum() / (2 * N)
        allreduce_gradients(sums, comm)
        optimizer.step(dw, 0.01)
        say(comm, "step", step, digest(w))
    if not comm or comm.rank == 0:
        np.save(sys.argv[2], np.append(w, sums[-1]))


def too_many_ranks(comm):
    with aborting(comm):
        shard(comm.size - 1, comm)


def unequal_shards(comm):
    rows = shard(8, comm)
    say(comm, rows.start, rows.stop)


def cores(comm):
    say(comm, share_cores(comm))


def own_core(comm):
    """Each rank has a core of its own: that is all its share."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[comm.rank % 2]})
    say(comm, share_cores(comm))


def wait_for_all(comm):
    allreduce_gradients(np.zeros(3), comm)


def killed(comm):
    wait_for_all(comm)
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for_all(comm)


def failing(comm):
    wait_for_all(comm)
    with aborting(comm):
        if comm.rank == 1:
            raise ValueError("the data of this rank are spoilt")
        wait_for_all(comm)


def leaving(comm):
    """sys.exit with a message, with a status, and without."""
    with aborting(comm):
        if comm.rank == 1:
            sys.exit({"message": "no such corpus", "status": 7, "none": None}[sys.argv[2]])
        if sys.argv[2] != "none":
            wait_for_all(comm)


def interrupted(comm):
    with aborting(comm):
        if comm.rank == 1:
            raise KeyboardInterrupt
        wait_for_all(comm)


def wrong_buffers(comm):
    for dw in (np.zeros(3, int), np.zeros(6)[::2], np.zeros((2, 3)).T, np.broadcast_to(0.0, 3), [0.0], np.float64(1)):
        for function in (allreduce_gradients, broadcast_weights):
            try:
                function(dw, comm)
            except (TypeError, ValueError) as error:
                say(comm, type(error).__name__, error)
    try:
        broadcast_weights(np.zeros(3), comm, root=comm.size)
    except ValueError as error:
        say(comm, type(error).__name__, error)


def ending(comm):
    """Open MPI's launcher reports a failure where nothing calls MPI_Finalize; mpi4py does at exit, if so told."""
    import mpi4py

    say(comm, mpi4py.rc.initialize, mpi4py.rc.finalize)


def told(comm):
    say(comm, comm and comm.size)


if __name__ == "__main__":
    globals()[sys.argv[1]](world())
