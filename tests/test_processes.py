"""The same bits at any number of threads, from several Python threads and in a forked child."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DIGEST = Path(__file__).with_name("digest.py")


def digests(how, **environment):
    """The lines that digest.py prints; a child that fails or hangs raises here."""
    run = subprocess.run(
        [sys.executable, DIGEST, how],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, f"digest.py {how} ended with {run.returncode}:\n{run.stderr}"
    return run.stdout.split()


@pytest.fixture(scope="module")
def expected():
    found = digests("plain", NUMBA_NUM_THREADS="1")
    assert len(set(found)) == len(found), "two problems have one digest: they can not tell results apart"
    return found


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("how", ["plain", "threads", "fork"])
def test_bits_do_not_depend_on_threads_and_processes(how, threads, expected):
    assert digests(how, NUMBA_NUM_THREADS=threads) == expected
