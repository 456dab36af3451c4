"""Print a digest of every result of a fixed set of problems: `python digest.py plain|threads|fork CELL...`.

Run in processes of its own by test_processes.py, because the number of threads is fixed once a process has begun and
because a fork is only as safe as what its parent has already done.
"""

import hashlib
import multiprocessing
import sys
from concurrent.futures import ThreadPoolExecutor

from problems import CELLS, Problem

# Small ones that one thread does alone, and large ones whose work is shared out.
SMALL = dict(num_layers=2, bidirectional=True, hidden_size=17, lengths=(4, 0, 2), dropout=0.5)
LARGE = dict(num_layers=2, bidirectional=True, hidden_size=130, input_size=70, seq_len=6, batch_size=21, dropout=0.5)
WIDE = dict(hidden_size=300, input_size=300, seq_len=4, batch_size=7)
LONG = dict(bidirectional=True, hidden_size=65, input_size=40, seq_len=75, batch_size=21)  # in several chunks
PROBLEMS = [
    Problem(**CELLS[name], **shape, dtype=dtype)
    for name in sys.argv[2:]
    for shape, dtype in (*((shape, "float32") for shape in (SMALL, LARGE, WIDE, LONG)), (SMALL, "float64"))
]


def digest(problem):
    """The bytes of all outputs and gradients, as a hexadecimal number."""
    outputs = problem.forward()
    arrays = [*outputs[:3], *problem.backward(outputs.workspace), *problem.infer()]
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays if array is not None)).hexdigest()


def plain():
    return [digest(problem) for problem in PROBLEMS]


def in_threads():
    """Every problem four times, eight calls at a time; all four must agree."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(digest, PROBLEMS * 4))
    runs = [found[k :: len(PROBLEMS)] for k in range(len(PROBLEMS))]
    assert all(len(set(run)) == 1 for run in runs), "the threads disagree with each other"
    return [run[0] for run in runs]


def in_a_fork():
    """In a child of a process that has called the engine, whose parent goes on calling it."""
    before = plain()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map(digest, PROBLEMS)
    assert before == plain(), "the parent disagrees with itself after the fork"
    return found


if __name__ == "__main__":
    chosen = {"plain": plain, "threads": in_threads, "fork": in_a_fork}[sys.argv[1]]
    sys.stdout.write("\n".join(chosen()) + "\n")
