"""Run a function of a test in a fresh process: its exit status is checked, what it wrote is shown with a failure.

A crash, an access between guard pages, a hang or a limit of memory then ends that process and not the tests.
`python child.py REQUEST` is the other side: it calls `work(trial, **options)` and prints what was tried.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
LONGEST = 60.0  # seconds of work in one process, so that a long run starts many
LIMIT = 600.0  # seconds on top of the work before a process counts as hung; loads and compiles on a busy machine fit
_SHOWN = 6000  # characters of what a failed process wrote
_NO_NEWS = ("-W", "ignore:the matrix subclass:PendingDeprecationWarning")  # which is an argument all the same


class Trial:
    """What a test, or a process that it starts, works with: rounds until the time is spent, `rng`, and a tally."""

    def __init__(self, tally, seconds, seed):
        self.tally, self._end = tally, time.monotonic() + seconds
        self.seed, self.rng = seed, np.random.default_rng(seed)

    @property
    def seconds_left(self):
        return max(self._end - time.monotonic(), 0.0)

    def rounds(self, least=1, most=None):
        """Number the rounds from 0 until the time is spent, or until there were `most`; at least `least`."""
        number = 0
        while number < least or (self.seconds_left > 0 and number != most):
            yield number
            number += 1

    def count(self, **tried):
        """Add to what is printed at the end: calls, threads, forks, inputs, bytes, ..."""
        self.tally.update(tried)


def run_children(trial, work, **options):
    """`run_child`, until the time of the trial is spent."""
    for _ in trial.rounds():
        run_child(trial, work, **options)


def run_child(trial, work, *, threads=None, most=None, limit=LIMIT, environment=None, meanwhile=None, **options):
    """Call `work(trial, **options)` of a module in this folder in a process of its own; add up what it counted.

    The engine has so many `threads` in it. It has `most` seconds or what is left of this trial's, and a seed drawn from
    this trial. `meanwhile(pid, rng)` is called again and again while it runs.
    """
    seed = int(trial.rng.integers(2**32))
    seconds = min(trial.seconds_left, LONGEST if most is None else most)
    environment = (environment or {}) | ({} if threads is None else {"NUMBA_NUM_THREADS": str(threads)})
    request = [Path(work.__code__.co_filename).stem, work.__name__, seed, seconds, options]
    command = [sys.executable, "-X", "faulthandler", "-W", "error", *_NO_NEWS, __file__, json.dumps(request)]
    with tempfile.TemporaryFile("w+") as written, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=written, stderr=errors, env={**os.environ, **environment}, start_new_session=True
        )
        status = _wait(process, seconds + limit, meanwhile, trial.rng)
        what = f"{work.__name__}({options}) with seed {seed}, {environment}"
        errors.seek(0)
        assert status == 0, f"{what} ended with {_named(status)}:\n{errors.read()[-_SHOWN:]}"
        written.seek(0)
        trial.count(processes=1, **json.loads(written.read().splitlines()[-1]))


def _wait(process, limit, meanwhile, rng):
    """The exit status; a process that does not end writes where its threads are, and is killed with its children."""
    end = time.monotonic() + limit
    try:
        while meanwhile and process.poll() is None and time.monotonic() < end:
            meanwhile(process.pid, rng)
        return process.wait(max(end - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGABRT)  # faulthandler writes the threads' stacks
        process.wait(30)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its own children that hang, too
        process.wait()


def _named(status):
    if status is None:
        return "no end (killed)"
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def main():
    module, name, seed, seconds, options = json.loads(sys.argv[1])
    sys.path.insert(0, str(HERE.parent / "support"))
    trial = Trial(Counter(), seconds, seed)
    getattr(import_module(module), name)(trial, **options)
    sys.stdout.write("\n" + json.dumps(trial.tally) + "\n")


if __name__ == "__main__":
    main()
