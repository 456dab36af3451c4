"""Forked children whose end is watched. Neither this module nor what it imports imports Numba."""

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback

import numpy as np
from child import exit_status_of_fork

WORKED, RAISED, WRONG = 0, 17, 18  # how a forked child ends


def fork(function):
    """The id of a forked child that calls the function and says by its exit status how that went."""
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = RAISED
    try:
        faulthandler.enable()
        function()
        status = WORKED
    except AssertionError:
        traceback.print_exc()
        status = WRONG
    except Exception:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def assert_works(pids):
    """All the children end, and have found nothing wrong; the count of those that raised."""
    found = []
    for number, pid in enumerate(pids):
        found.append(exit_status_of_fork(pid))
        if found[-1] is None:
            for other in pids[number + 1 :]:
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
            raise AssertionError(f"a forked child hangs, number {number} of {len(pids)}")
    assert set(found) <= {WORKED, RAISED}, f"forked children ended with {found}"
    return found.count(RAISED)


def fork_while_modules_load(trial):
    """A thread imports the engine's modules, by its first call; children are forked during that."""
    import rnnkit

    desc = rnnkit.RNNDescriptor("rnn_tanh", 3, 5)
    w, x = rnnkit.init_weights(desc, seed=0), np.ones((2, 3, 3), np.float32)

    def call():
        assert np.isfinite(rnnkit.infer(desc, w, x).y).all()

    thread = threading.Thread(target=call)
    thread.start()
    pids = []
    while thread.is_alive() and len(pids) < 12:
        time.sleep(trial.rng.uniform(0, 0.2))
        pids.append(fork(call))
    thread.join()
    pids.append(fork(call))
    trial.count(forks=len(pids), raised=assert_works(pids))
