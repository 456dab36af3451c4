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
NETWORK = """
import hashlib
import numpy as np
import rnnkit
y = rnnkit.RNN(3, 4, seed=0).infer(np.ones((5, 2, 3), np.float32)).y
print(hashlib.sha256(y.tobytes()).hexdigest(), "-")
"""
CALLED = "_all_tanh-", "_all_sigmoid-", "serve-"  # files of what KERNELS calls; others are read to compile these
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


def assert_does_without(folder, expected, program=KERNELS):
    """A run that can write nothing, or not all, computes the same; the count of its warnings, 0 or 1."""
    digest, hits, warnings = finish(start(folder, program))
    assert (digest, hits) == (expected, "0")
    assert warnings <= 1
    return warnings


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


@pytest.mark.share(2)
def test_network_on_a_damaged_cache_is_right_and_mends_it(trial, tmp_path):
    digest, *_ = finish(start(NO_FOLDER, NETWORK))
    warm = tmp_path / "warm"
    assert_same(warm, digest, program=NETWORK)
    for _ in trial.rounds():
        folder = copy(warm, tmp_path / "cache")
        entries = files(folder.path)
        victims = trial.rng.choice(entries, int(trial.rng.integers(1, len(entries) + 1)), replace=False)
        for path in victims:
            path.write_bytes(damaged(path.read_bytes(), trial.rng))
        assert_same(folder.root, digest, program=NETWORK)
        assert all(folder.read(path.name) is not None for path in entries)  # mended
        trial.count(processes=1, inputs=len(victims))


# Around each of the calls by which the cache touches the disk, something is done with the given probability.
MEDDLE = """
import os, random, shutil, signal, time
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
PAUSE = "time.sleep(0.5 * dice.random())"
CALLS, LAST = ("open", "mkdir", "replace"), ("replace",)  # the last one of a write comes when the file beside is there


def meddled(trial, act, calls=CALLS, probability=None):
    probability = probability or trial.rng.choice([0.02, 0.2])
    return MEDDLE.format(seed=trial.rng.integers(1 << 30), probability=probability, act=act, calls=calls) + KERNELS


CPUS = ({}, *({"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": "+avx2,+fma"} for name in ("haswell", "skylake")))


@pytest.mark.share(3)
def test_four_processes_fill_an_empty_folder_at_once(trial, expected, tmp_path):
    """Of two CPU names, which share the folder; each of them finds all of its own code there afterwards.

    They pause in the middle of each write, so that those of one name write the same file at once.
    """
    for number in trial.rounds():
        folder = tmp_path / str(number)
        cpus = [CPUS[int(which)] for which in trial.rng.permutation(len(CPUS))[:2]]
        running = [start(folder, meddled(trial, PAUSE, LAST, 1), **cpu) for cpu in (*cpus, *cpus)]
        assert [finish(process)[::2] for process in running] == 4 * [(expected, 0)]
        for cpu in cpus:
            assert_same(folder, expected, hits=ALL, **cpu)
        assert [path for path in files(folder) if path.suffix != ".nbc"] == []
        trial.count(processes=6)


def test_each_cpu_name_has_its_own_entries(trial, expected, warm, tmp_path):
    known = {0}
    folder = copy(warm, tmp_path / "cache").root
    for number in trial.rounds():
        which = (number + 1) % len(CPUS)
        assert_same(folder, expected, hits=ALL if which in known else "0", **CPUS[which])
        known.add(which)
        trial.count(processes=1)


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system of so many kB, and again with other options; without the right to, the test is skipped."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False).returncode

    if not hasattr(os, "geteuid") or os.geteuid() != 0 or mount("size=1024k,mode=700") != 0:
        pytest.skip("only root can mount a file system, and not in every container")
    yield folder, lambda options: mount(f"remount,{options}")
    subprocess.run(["umount", folder], check=True)


@pytest.mark.share(2)
def test_full_disk_leaves_no_partial_entry(trial, expected, small_disk):
    folder, remount = small_disk
    for _ in trial.rounds():
        shutil.rmtree(folder / "rnnkit", ignore_errors=True)
        filler = folder / "filler"
        filler.write_bytes(bytes(int(trial.rng.integers(940, 1024)) << 10))
        warnings = assert_does_without(folder, expected)
        assert [path for path in files(folder) if path.suffix == ".tmp"] == []
        filler.unlink()
        assert_mended(folder, expected)
        trial.count(processes=3, full_disks=warnings)


def test_read_only_folder_is_read_and_warns_of_misses(trial, expected, warm, small_disk):
    folder, remount = small_disk
    for _ in trial.rounds():
        assert remount("rw,size=1024k") == 0
        removed = trial.rng.choice(files(copy(warm, folder / "cache").root))
        removed.unlink()
        assert remount("ro") == 0
        found = [finish(start(folder / "cache")) for _ in range(2)]
        assert found == 2 * [(expected, found[0][1], int(found[0][1] != ALL))]
        trial.count(processes=2)


SMALL_FILES = "import resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))\n"


def test_limited_file_size_warns_at_most_once(trial, expected, tmp_path):
    """What a quota is to one file."""
    pytest.importorskip("resource")
    for number in trial.rounds():
        folder = tmp_path / str(number)
        assert_does_without(folder, expected, SMALL_FILES.format(trial.rng.integers(30_000)) + KERNELS)
        assert_mended(folder, expected)
        trial.count(processes=3)


def test_folder_may_be_deleted_under_way(trial, expected, warm, tmp_path):
    for _ in trial.rounds():
        folder = copy(warm, tmp_path / "cache").root
        digest, _, warnings = finish(start(folder, meddled(trial, DELETE)))
        assert digest == expected
        assert warnings <= 1
        trial.count(processes=1)


def test_killed_process_leaves_a_usable_cache(trial, expected, warm, tmp_path):
    for _ in trial.rounds():
        folder = copy(warm, tmp_path / "cache").root
        for path in files(folder)[:: int(trial.rng.integers(1, 3))]:
            path.unlink()
        process = start(folder, meddled(trial, KILL, (CALLS, LAST)[trial.rng.integers(2)]))
        process.communicate()
        assert_mended(folder, expected)
        trial.count(processes=3, kills=process.returncode < 0)


def test_folder_of_another_owner_is_not_used(trial, expected, warm, tmp_path):
    """Of a folder: nothing is read or written. Of a file: it is replaced."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    for _ in trial.rounds():
        folder = copy(warm, tmp_path / "cache")
        called = [path for path in files(folder.path) if path.name.startswith(CALLED)]
        path = trial.rng.choice([Path(folder.root, folder.names[0]), Path(folder.path), *called])
        os.chown(path, int(trial.rng.integers(1, 1 << 16)), -1)
        before = [path.read_bytes() for path in files(folder.path)]
        assert_same(folder.root, expected, hits="2" if path in called else "0", warnings=1)
        if path in called:
            assert_same(folder.root, expected, hits=ALL)
        else:
            assert [path.read_bytes() for path in files(folder.path)] == before
        trial.count(processes=1)
