"""The cache of compiled kernels under damage, crowds, full disks and foreign hands: always the bits of a cold run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import SUPPORT, TESTS

from rnnkit_kernels.machine.cache import Folder

KERNELS = """
import hashlib
import numpy as np
from test_kernels import _all_sigmoid, _all_tanh
from rnnkit_kernels.machine import sync
x = np.linspace(-9, 9, 1000, dtype=np.float32)
digest, hits = hashlib.sha256(), 0
for kernel in (_all_tanh, _all_sigmoid):
    y = np.empty_like(x)
    kernel(x, y)
    digest.update(y)
    hits += sum(kernel.stats.cache_hits.values())
assert sync.serve(np.zeros(sync.sync_size(1), np.int64), 3, 0) == 3
hits += sum(sync.serve.stats.cache_hits.values())
print(digest.hexdigest(), hits)
"""
ALL = "3"  # hits, where all of KERNELS comes from the cache
NO_FOLDER = "/dev/null"


def start(folder, program=KERNELS, **environment):
    """Run the program in a process of its own, with its kernels cached below this folder."""
    path = {"PYTHONPATH": f"{SUPPORT}{os.pathsep}{TESTS}/kernels", "PYTHONDONTWRITEBYTECODE": "1"}
    environment = os.environ | path | {"NUMBA_CACHE_DIR": str(folder)} | environment
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen([sys.executable, "-c", program], env=environment, **pipes)


def finish(process):
    """What a process computed, how much of it came from the cache, and how often it warned."""
    said, warned = process.communicate()
    assert process.returncode == 0, warned
    digest, hits = said.split()
    return digest, hits, warned.count("RuntimeWarning: kernel cache:")


def assert_same(folder, expected, hits=None, warnings=0, **options):
    found = finish(start(folder, **options))
    assert found == (expected, found[1] if hits is None else hits, warnings)


def assert_mended(folder, expected):
    """The next run computes the same whatever is there, and the one after that finds all of it."""
    assert_same(folder, expected)
    assert_same(folder, expected, hits=ALL)


@pytest.fixture(scope="module")
def expected():
    """The digest that a run without a cache computes."""
    digest, hits, warnings = finish(start(NO_FOLDER))
    assert (hits, warnings) == ("0", 1)
    return digest


@pytest.fixture(scope="module")
def warm(tmp_path_factory, expected):
    folder = tmp_path_factory.mktemp("warm")
    assert_same(folder, expected, hits="0")
    assert_same(folder, expected, hits=ALL)
    return folder


def files(folder):
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


def copy(warm, folder):
    """A copy of the warm cache in a folder of its own, and the folder of its entries."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(warm, folder)
    [inner] = {path.parent for path in files(folder)}
    return Folder(str(folder), *inner.relative_to(folder).parts)


def damaged(data, rng):
    """The data cut off, gone on with, one bit flipped, or some bytes overwritten, at a random place."""
    at = int(rng.integers(len(data)))
    forms = {
        "cut": lambda: data[:at],
        "longer": lambda: data + rng.bytes(at + 1),
        "flipped": lambda: data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1 :],
        "overwritten": lambda: data[:at] + bytes(255 - byte for byte in data[at : at + 64]) + data[at + 64 :],
        "zeros": lambda: data[:at] + bytes(len(data) - at) + b"\0",
    }
    return forms[rng.choice(list(forms))]()


@pytest.mark.share(2)
def test_damaged_entry_is_recompiled(trial, warm, expected, tmp_path):
    """Each time in one entry: all damages are noticed before the entry is unpickled, one is run with and mended."""
    for _ in trial.rounds():
        folder = copy(warm, tmp_path / "cache")
        path = trial.rng.choice(files(folder.path))
        whole = path.read_bytes()
        assert folder.read(path.name) is not None
        for _ in range(200):
            path.write_bytes(damaged(whole, trial.rng))
            assert folder.read(path.name) is None
            trial.count(inputs=1, bytes=len(whole))
        assert_mended(folder.root, expected)
        trial.count(processes=2)


# Around each of the calls by which the cache touches the disk, something is done with the given probability.
MEDDLE = """
import os, random, shutil, signal
dice = random.Random({seed})
def around(call):
    def meddle(*arguments, **options):
        if dice.random() < {probability}:
            {act}
        return call(*arguments, **options)
    return meddle
from rnnkit_kernels.machine import cache
import test_kernels
for name in {calls}:
    setattr(os, name, around(getattr(os, name)))
"""
DELETE = "shutil.rmtree(os.environ['NUMBA_CACHE_DIR'], ignore_errors=True)"
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
READ_ONLY = "if arguments[1] & os.O_CREAT: raise OSError(30, 'Read-only file system')"
CALLS, LAST = ("open", "mkdir", "replace"), ("replace",)  # the last one of a write comes when the file beside is there


def meddled(trial, act, calls=CALLS, probability=None):
    probability = probability or trial.rng.choice([0.02, 0.2])
    return MEDDLE.format(seed=trial.rng.integers(1 << 30), probability=probability, act=act, calls=calls) + KERNELS


SMALL_FILES = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))\n"  # what a quota is to one file
TROUBLES = {
    "deleted": lambda trial: meddled(trial, DELETE),
    "killed": lambda trial: meddled(trial, KILL, (CALLS, LAST)[trial.rng.integers(2)]),
    "read-only": lambda trial: meddled(trial, READ_ONLY, ("open",), 1),
    "full": lambda trial: SMALL_FILES.format(trial.rng.integers(30_000)) + KERNELS,
}


@pytest.mark.share(2)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_cache_is_usable_after_trouble_under_way(trial, expected, warm, trouble, tmp_path):
    for _ in trial.rounds():
        folder = copy(warm, tmp_path / "cache").root
        for path in files(folder)[:: int(trial.rng.integers(1, 3))]:
            path.unlink()
        process = start(folder, TROUBLES[trouble](trial))
        if trouble == "killed":
            process.communicate()
        else:
            digest, _, warnings = finish(process)
            assert digest == expected and warnings <= 1
        assert_mended(folder, expected)
        trial.count(processes=3, kills=process.returncode < 0)
