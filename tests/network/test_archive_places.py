"""What `save` writes `load` reads: where the file may stand, what others see meanwhile, and names in it."""

import os
import signal
import socket
import stat
import subprocess
import sys
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from messages import raises
from traced import traced_bytes

from rnnkit import GRU, LSTM, RNNDescriptor, load
from rnnkit.common import archive
from rnnkit.language_model import files
from rnnkit.language_model.checkpoint import load as load_run
from rnnkit.language_model.configuration import parsed
from rnnkit.language_model.corpus import read_files
from rnnkit.language_model.model import TextModel
from rnnkit.language_model.options import add_train_options
from rnnkit.language_model.report import read_log


def saved(path, seed=0):
    """A network that is in the file from now on."""
    net = GRU(3, 2, seed=seed)
    net.save(path)
    return net


def assert_loads(path, *nets):
    """Raise unless the file has the weights of one of these networks."""
    assert load(path).weights.tobytes() in {net.weights.tobytes() for net in nets}


def test_file_that_is_not_regular_is_refused_and_left(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(tmp_path / "socket"))
    for name, kind in {"fifo": "FIFO", "folder": "folder", "socket": "socket"}.items():
        path = tmp_path / name
        before = path.stat()
        for call in (GRU(3, 2).save, load):
            with raises(ValueError, f"{call.__name__}: path '{path}' | regular file | {kind}"):
                call(path)
        assert (path.stat().st_ino, path.stat().st_mode) == (before.st_ino, before.st_mode)
    assert sorted(os.listdir(tmp_path)) == ["fifo", "folder", "socket"]


@pytest.mark.parametrize("name", ["", "missing/"])
def test_path_without_a_file_name_is_refused(name, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with raises(ValueError, f"save: path '{name}' | file | folder"):
        GRU(3, 2).save(name)
    assert os.listdir(tmp_path) == ["here"] and os.listdir(tmp_path / "here") == []


def test_symbolic_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "folder").mkdir()
    os.symlink("folder/net", tmp_path / "link")
    for seed in (0, 1):  # at first it points to nothing
        net = saved(tmp_path / "link", seed)
        assert os.readlink(tmp_path / "link") == "folder/net"
        assert_loads(tmp_path / "folder" / "net", net)
    assert os.listdir(tmp_path / "folder") == ["net"] and sorted(os.listdir(tmp_path)) == ["folder", "link"]


@pytest.mark.parametrize("mode", [0o640, 0o444])
def test_saved_file_has_the_old_mode_from_the_first_byte(mode, tmp_path, monkeypatch):
    path, seen, write_array = tmp_path / "net", [], np.lib.format.write_array
    GRU(3, 2).save(path)
    path.chmod(mode)

    def watched(*arguments, **options):
        seen.extend(stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob(".rnnkit-*"))
        write_array(*arguments, **options)

    monkeypatch.setattr(np.lib.format, "write_array", watched)
    LSTM(3, 2).save(path)
    assert seen == [mode] * 3 and stat.S_IMODE(path.stat().st_mode) == mode
    assert type(load(path)) is LSTM


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_saved_file_has_the_old_owner(tmp_path):
    path = tmp_path / "net"
    saved(path)
    os.chown(path, 1234, 2345)
    saved(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o002, 0o664)])
def test_new_file_has_the_mode_of_the_umask(mask, mode, tmp_path, umask):
    umask(mask)
    GRU(3, 2).save(tmp_path / "net")
    assert stat.S_IMODE((tmp_path / "net").stat().st_mode) == mode


@pytest.mark.parametrize("name", [b"net", b"n\xff", "x" * 255, "ü" * 127], ids=["bytes", "undecodable", "long", "wide"])
def test_file_may_have_every_name_of_the_system(name, tmp_path):
    path = os.path.join(os.fsencode(tmp_path), os.fsencode(name))
    path = path if isinstance(name, bytes) else os.fsdecode(path)
    assert_loads(path, saved(path))
    assert os.listdir(os.fsencode(tmp_path)) == [os.fsencode(name)]


KILLED = """
import os, signal, sys
import numpy as np
import rnnkit

def half_written(member, *others, **options):
    member.write(b"PK")
    os.kill(os.getpid(), signal.SIGKILL)

np.lib.format.write_array = half_written
rnnkit.GRU(3, 2).save(sys.argv[1])
"""


def test_next_save_removes_the_file_of_a_killed_one(tmp_path):
    net = saved(tmp_path / "net")
    for _ in range(2):  # the second removes what the first has left
        done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "net"], check=False)
        assert done.returncode == -signal.SIGKILL
        left, name = sorted(os.listdir(tmp_path))
        assert name == "net" and left.startswith(".rnnkit-") and left.endswith(".tmp")
    assert_loads(tmp_path / "net", net)
    net.save(tmp_path / "other")
    assert sorted(os.listdir(tmp_path)) == ["net", "other"]


def test_save_leaves_the_file_that_another_save_writes(tmp_path):
    with archive._temporary(os.fspath(tmp_path / "net")) as (file, _):
        for close in (lambda: None, file.close):  # it is closed before it is renamed
            close()
            saved(tmp_path / "net")
            assert sorted(os.listdir(tmp_path)) == [os.path.basename(file.name), "net"]
    assert os.listdir(tmp_path) == ["net"]


def test_temporary_file_removed_by_another_save_is_made_again(tmp_path, monkeypatch):
    lock, taken = archive.try_lock, []

    def removed_first(file, wait):
        if wait and not taken:
            taken.extend(tmp_path.glob(".rnnkit-*.tmp"))
            os.remove(taken[0])
        return lock(file, wait)

    monkeypatch.setattr(archive, "try_lock", removed_first)
    GRU(3, 2).save(tmp_path / "net")
    assert len(taken) == 1 and os.listdir(tmp_path) == ["net"]
    load(tmp_path / "net")


def test_save_removes_no_other_files(tmp_path):
    os.mkfifo(tmp_path / ".rnnkit-fifo.tmp")  # nobody writes: to open it would wait for ever
    (tmp_path / "precious").write_text("text")
    os.symlink("precious", tmp_path / ".rnnkit-link.tmp")
    (tmp_path / ".rnnkit-folder.tmp").mkdir()
    names = ["net.1234.tmp", "rnnkit-1.tmp", ".rnnkit-1"]
    for name in names:
        (tmp_path / name).write_text("text")
    GRU(3, 2).save(tmp_path / "net")
    names += ["precious", "net", ".rnnkit-link.tmp", ".rnnkit-folder.tmp"]
    assert set(names) <= set(os.listdir(tmp_path))


def test_savers_at_once_leave_one_whole_file(tmp_path):
    nets = [GRU(3, 2, seed=seed) for seed in range(4)]

    def save(net):
        for _ in range(25):
            net.save(tmp_path / "net")
            load(tmp_path / "net")

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(save, net) for net in nets]:
            done.result()
    assert os.listdir(tmp_path) == ["net"]
    assert_loads(tmp_path / "net", *nets)


def test_check_target_changes_nothing(tmp_path):
    archive.check_target(tmp_path / "net")
    assert os.listdir(tmp_path) == []
    saved(tmp_path / "net")
    before = (tmp_path / "net").stat()
    archive.check_target(tmp_path / "net")
    assert (tmp_path / "net").stat() == before and os.listdir(tmp_path) == ["net"]


def test_missing_file_or_folder_is_named_as_the_caller_did(tmp_path):
    path = tmp_path / "missing" / "net"
    for call in (archive.check_target, GRU(3, 2).save, load):
        with pytest.raises(FileNotFoundError) as caught:
            call(path)
        assert caught.value.filename == os.fspath(path)


def test_relative_path_is_written_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved("net")
    assert os.listdir(tmp_path) == ["net"]


def assert_refused_and_kept(path, text, net=None, **arrays):
    net, before = net or GRU(3, 2, seed=1), path.read_bytes()
    with raises(ValueError, text):
        net.save(path, **arrays)
    assert path.read_bytes() == before and [found.name for found in path.parent.iterdir()] == [path.name]


@pytest.fixture
def path(tmp_path):
    GRU(3, 2, seed=0).save(tmp_path / "net")
    return tmp_path / "net"


NAMES = {
    "nul": ("a\0b", r"'a\x00b'"),
    "nul alone": ("\0", r"'\x00'"),
    "surrogate": ("a\ud800", r"'a\ud800'"),
    "long": ("x" * 70_000, repr("x" * 80)),
    "wide": ("ü" * 33_000, repr("ü" * 80)),
}


@pytest.mark.parametrize("kind", NAMES)
def test_name_that_no_member_can_have_is_refused(path, kind):
    name, got = NAMES[kind]
    assert_refused_and_kept(path, f"save: name | 65531 | UTF-8 | NUL | {got}", **{name: np.zeros(3)})


def test_name_that_is_no_text_is_refused(path):
    net = GRU(3, 2, seed=1)
    net.arrays[1] = net.arrays["1"] = np.zeros(3)
    with raises(TypeError, "save: name | text | int"):
        net.save(path)
    assert load(path) == GRU(3, 2, seed=0)


def test_every_other_name_is_read_back(path):
    names = ["x" * 65_531, "ü" * 32_765, "", "a/b", "../a", "a.npy", ".npy", " ", "\n", "C:\\a", "self "]
    GRU(3, 2).save(path, **dict.fromkeys(names, np.arange(3)))
    assert list(load(path).arrays) == names


def test_more_names_than_a_directory_holds_are_refused(path):
    """Members whose names together are longer than what `load` reads of a directory."""
    arrays = {f"{number:060000}": np.zeros(3) for number in range(20)}
    assert_refused_and_kept(path, f"save: path '{path}' | .npz | directory", **arrays)


def test_text_that_load_would_refuse_is_not_saved(path, monkeypatch):
    model = TextModel.random(RNNDescriptor("gru", 2, 2), 0)
    model.trained_with = {"text": "x" * 1000}
    monkeypatch.setattr(files, "MAX_CHARS", 999)
    assert_refused_and_kept(path, f"save: path '{path}' | trained_with | text | 999 | 1012", model)


def test_weights_are_not_copied_to_be_checked(path):
    weights = np.zeros(1 << 25, np.float32)
    _, peak = traced_bytes(lambda: GRU(3, 2).save(path, weights_of_another=weights))
    assert peak < weights.nbytes / 4


MEMORY = "/proc/self/mem"  # a file that is opened and cannot be read


def configuration(path):
    return parsed(add_train_options, Namespace(config=path))


@pytest.mark.skipif(not os.path.exists(MEMORY), reason="only Linux has it")
@pytest.mark.parametrize("read", [load, load_run, read_log, lambda path: read_files([path]), configuration])
def test_error_while_a_file_is_read_names_it(read):
    with pytest.raises(OSError) as caught:
        read(MEMORY)
    assert caught.value.filename == MEMORY
