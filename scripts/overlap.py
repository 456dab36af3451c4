"""Test whether MPI reduces while the program computes: `mpiexec -n 2 python scripts/overlap.py`, one line per size.

It starts an Iallreduce, computes for about twice the time of an Allreduce, then waits for the result. With
MPIR_CVAR_ASYNC_PROGRESS=1 MPICH has a thread for it.
"""

import sys
from statistics import median
from time import perf_counter

import numpy as np
from mpi4py import MPI

REPEATS = 9


def timed(comm, work):
    """The median seconds of each of the steps that `work` yields after."""
    times = []
    for _ in range(REPEATS):
        comm.Barrier()
        marks = [perf_counter(), *(perf_counter() for _ in work())]
        times.append([stop - start for start, stop in zip(marks, marks[1:], strict=False)])
    return [median(column) for column in zip(*times, strict=True)]


def main(sizes):
    comm = MPI.COMM_WORLD
    values = np.random.default_rng(0).random((200, 200), np.float32)
    for size in sizes:
        gradient = np.zeros(size, np.float32)

        def reduce(gradient=gradient):
            yield comm.Allreduce(MPI.IN_PLACE, gradient)

        def compute(size=size):
            for _ in range(size // 2000):
                np.multiply(values, values)
            yield

        def both(gradient=gradient, compute=compute):
            request = comm.Iallreduce(MPI.IN_PLACE, gradient)
            yield from compute()
            yield request.Wait()

        (reducing,), (computing,) = timed(comm, reduce), timed(comm, compute)
        computing_meanwhile, waiting = timed(comm, both)
        if comm.rank == 0:
            milliseconds = [f"{1e3 * one:.2f}" for one in (reducing, waiting, computing, computing_meanwhile)]
            text = "{} floats: Allreduce {} ms, Wait {} ms; computing alone {} ms, after Iallreduce {} ms"
            print(text.format(size, *milliseconds), flush=True)


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [500_000, 5_000_000, 20_000_000])
