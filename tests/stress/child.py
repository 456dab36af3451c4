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
from importlib import import_module
from pathlib import Path

from clock import Trial

HERE = Path(__file__).parent
LONGEST = 60.0  # seconds of work in one process, so that a long run starts many
LIMIT = 600.0  # seconds on top of the work before a process counts as hung; loads and compiles on a busy machine fit
_SHOWN = 6000  # characters of what a failed process wrote
_NO_NEWS = ("-W", "ignore:the matrix subclass:PendingDeprecationWarning")  # which is an argument all the same
_TICKS = os.sysconf("SC_CLK_TCK")


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
        if process.poll() is None:
            process.kill()
        _kill_group(process.pid)


def _kill_group(leader):
    """End what a process has left behind: its own children that hang."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        fields = _fields(status)
        if fields and int(fields[2]) == leader:
            _kill(int(status.parent.name))


def _kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _named(status):
    if status is None:
        return "no end (killed)"
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def _fields(path):
    """Fields of /proc/.../stat behind the name: state, parent, group, ...; empty for a process that is gone."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_seconds(pid):
    fields = _fields(Path(f"/proc/{pid}/stat"))
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else 0.0


def _running(pid):
    return any(_fields(stat)[:1] in (["R"], ["D"]) for stat in Path(f"/proc/{pid}/task").glob("*/stat"))


def exit_status_of_fork(pid, idle=60.0, cpu=300.0):
    """Wait for a forked child; one that sleeps for `idle` seconds without using the CPU, or spins, hangs: None.

    A busy machine cannot make a child that works look like one that hangs, however slow it is.
    """
    used, since = -1.0, time.monotonic()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        now = cpu_seconds(pid)
        if now != used or _running(pid):
            used, since = now, time.monotonic()
        if time.monotonic() - since > idle or now > cpu:
            os.kill(pid, signal.SIGABRT)  # faulthandler writes where it hangs
            os.waitpid(pid, 0)
            return None
        time.sleep(0.002)


def main():
    module, name, seed, seconds, options = json.loads(sys.argv[1])
    sys.path.insert(0, str(HERE.parent / "support"))
    trial = Trial(Counter(), seconds, seed)
    getattr(import_module(module), name)(trial, **options)
    sys.stdout.write("\n" + json.dumps(trial.tally) + "\n")


if __name__ == "__main__":
    main()
