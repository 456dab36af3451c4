"""The cache of compiled kernels: whatever becomes of its files, a call gets the right code, and never another's."""

import ctypes
import importlib
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import numba
import pytest
from kernel_cache import _negative, _twice, assert_refused, assert_runs, refusal

from rnnkit_kernels.machine import cache, jit
from rnnkit_kernels.machine.cache import Folder
from rnnkit_kernels.machine.jit import kernel

needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file to another user"
)
NOBODY = 65534


@pytest.fixture
def folder(tmp_path):
    return Folder(str(tmp_path / "caches"), "rnnkit", "digest")


def entries(folder):
    return sorted(path.name for path in Path(folder.path).iterdir())


@pytest.fixture
def entry(folder):
    """The file of the only entry."""
    assert not assert_runs(folder)
    [name] = entries(folder)
    return Path(folder.path, name)


def assert_compiled_once(folder, *call):
    """What the folder has is not used, and what is compiled instead is."""
    assert not assert_runs(folder, *call)
    assert assert_runs(folder, *call)


def test_entry_is_reused(folder, entry):
    assert assert_runs(folder)
    assert entries(folder) == [entry.name]


def test_files_and_folders_are_for_their_owner_only(folder):
    before = os.umask(0)
    assert_runs(folder)
    os.umask(before)
    [name] = entries(folder)
    made = folder.root, Path(folder.path).parent, folder.path, Path(folder.path, name)
    assert [os.stat(path).st_mode & 0o777 for path in made] == [0o700, 0o700, 0o700, 0o600]


def _flipped(data, at):
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


DAMAGES = {
    "empty": lambda data: b"",
    "one byte short": lambda data: data[:-1],
    "flipped in the digest": lambda data: _flipped(data, 3),
    "flipped at the end": lambda data: _flipped(data, len(data) - 1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_entry_is_recompiled(folder, entry, damage):
    entry.write_bytes(damage(entry.read_bytes()))
    assert_compiled_once(folder)


OTHER_VERSION = (numba.float64,), ("of", "another", "numba")
OTHER_CODE = (numba.float64,), (("library", "object", (b"code", b"bitcode")), *range(8))
UNUSABLE = [b"", b"no pickle", b"cno_such_module\nname\n.", b"crnnkit\nno_such_name\n."]
UNUSABLE += map(pickle.dumps, (3, OTHER_VERSION, OTHER_CODE))


@pytest.mark.parametrize("data", UNUSABLE)
def test_unusable_entry_is_recompiled(folder, entry, data):
    folder.write(entry.name, data)
    assert_compiled_once(folder)


def test_file_of_another_entry_is_not_used(folder, entry):
    assert_runs(folder, _negative, 3.0, -3.0)
    [other] = set(entries(folder)) - {entry.name}
    shutil.copy(Path(folder.path, other), entry)
    assert not assert_runs(folder)


class _Ascending:
    class Pair(NamedTuple):
        a: float
        b: float


class _Descending:
    class Pair(NamedTuple):
        b: float
        a: float


def _a_of_pair(pair):
    return pair.a


def test_types_of_the_same_name_are_told_apart(folder):
    """A file is named after the names of the types."""
    for pair, expected in ((_Ascending.Pair(1.0, 2.0), 1.0), (_Descending.Pair(1.0, 2.0), 2.0)):
        assert_compiled_once(folder, _a_of_pair, pair, expected)
    assert len(entries(folder)) == 1


class _Planted:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


LEVELS = {"rnnkit": lambda entry: entry.parents[1], "digest": lambda entry: entry.parent, "file": lambda entry: entry}
at_each_level = pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)


@pytest.fixture
def mark(folder, entry, tmp_path):
    """Appears when the entry, whole but somebody's own work, is unpickled."""
    mark = tmp_path / "mark"
    folder.write(entry.name, pickle.dumps(_Planted(mark)))
    return mark


def test_own_entry_is_unpickled(folder, mark):
    assert_runs(folder)
    assert mark.exists()


def _linked(path, elsewhere):
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


OTHERS = (lambda path, _: os.chown(path, NOBODY, -1)), ("uid 0", f"uid {NOBODY}")
SPOILED = [pytest.param(*OTHERS, marks=needs_root, id="owner"), pytest.param(_linked, (), id="link")]
SPOILED += [
    pytest.param(lambda path, _, mode=mode: path.chmod(mode), ("others", f"mode {mode:o}"), id=f"mode {mode:o}")
    for mode in (0o720, 0o702)
]


@pytest.mark.parametrize(("spoil", "facts"), SPOILED)
@at_each_level
def test_link_or_path_that_others_can_change_is_not_read(folder, entry, mark, level, spoil, facts, tmp_path):
    """A refused file is replaced, a refused folder stays as it is."""
    path, before = level(entry), entry.read_bytes()
    spoil(path, tmp_path / "elsewhere")
    with pytest.warns(RuntimeWarning, match=refusal(path if facts else folder.root, *facts)):
        assert not assert_runs(folder)
    assert not mark.exists()
    assert assert_runs(folder) == (entry.read_bytes() != before) == (path == entry)
    assert entries(folder) == [entry.name]


@pytest.mark.parametrize("level", [LEVELS["rnnkit"], LEVELS["digest"]], ids=["rnnkit", "digest"])
def test_folder_swapped_after_its_check_is_not_followed(folder, entry, mark, level, monkeypatch, tmp_path):
    """Its parent's owner can rename it at any time, and put a link in its place."""
    checked, path = cache._check_owner, str(level(entry))
    kept = entry.read_bytes()
    shutil.copytree(folder.root, tmp_path / "evil")
    folder.write(entry.name, b"ours")

    def swap(descriptor, looked_at):
        checked(descriptor, looked_at)
        if looked_at == path and not os.path.islink(path):
            os.rename(path, tmp_path / "away")
            os.symlink(tmp_path / "evil" / os.path.relpath(path, folder.root), path)

    monkeypatch.setattr(cache, "_check_owner", swap)
    assert folder.read(entry.name) == b"ours"
    assert entry.read_bytes() == kept  # the link is there: whoever goes by the path reads the other file


@pytest.fixture
def others_root(folder):
    """The folder of caches belongs to another user."""
    os.mkdir(folder.root)
    os.chown(folder.root, NOBODY, -1)


@needs_root
def test_root_writes_nothing_to_the_folder_of_a_user(folder, others_root):
    assert_refused(folder, match=refusal(folder.root, "root", f"uid {NOBODY}"))
    assert os.listdir(folder.root) == []


@needs_root
def test_folder_of_another_user_is_shared(folder, others_root, monkeypatch):
    """Such as /tmp: what they make there is theirs."""
    monkeypatch.setattr(cache, "_check_owner", lambda descriptor, path: None)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY - 1)
    assert_compiled_once(folder)


@pytest.mark.parametrize("depth", [0, 1, 2], ids=["caches", "rnnkit", "digest"])
def test_file_in_place_of_a_folder_is_refused(folder, depth):
    path = Path(folder.root, *folder.names[:depth])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    path.write_text("kept")
    assert_refused(folder, match=refusal(folder.root))
    assert path.read_text() == "kept"


@pytest.mark.parametrize("call", ["mkdir", "open", "replace"])
def test_system_error_disables_only_the_cache(folder, monkeypatch, call):
    def fails(*arguments, **options):
        raise OSError(28, "No space left on device")

    os.mkdir(folder.root, 0o700)
    monkeypatch.setattr(os, call, fails)
    assert_refused(folder, match=refusal(folder.path, "'No space left on device'"))
    monkeypatch.undo()
    assert [path for path in Path(folder.root).rglob("*") if path.is_file()] == []


def test_folder_in_place_of_an_entry_is_refused(folder, entry):
    entry.unlink()
    entry.mkdir()
    with pytest.warns(RuntimeWarning, match=refusal(folder.path, "Is a directory")):
        assert not assert_runs(folder)


def test_named_pipe_is_not_waited_for(folder, entry):
    entry.unlink()
    os.mkfifo(entry, 0o600)
    assert_compiled_once(folder)


def test_cache_works_without_folder_descriptors(folder, monkeypatch):
    """As on Windows, where there is no user id either."""
    open_path = os.open

    def open_file(path, flags, mode=0o777, *, dir_fd=None):
        assert dir_fd is None and not os.path.isdir(path)
        return open_path(path, flags, mode)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(cache, "_HAS_DESCRIPTORS", False)
    monkeypatch.delattr(os, "geteuid")
    assert_compiled_once(folder)
    [name] = entries(folder)
    path = Path(folder.path, name)
    path.write_bytes(path.read_bytes()[:-1])
    assert_compiled_once(folder)


def test_recompile_does_not_load_old_code(folder, entry, monkeypatch):
    monkeypatch.setattr(jit, "FOLDER", folder)
    compiled = kernel(_twice)
    compiled.compile((numba.float64,))
    compiled.recompile()
    assert sum(compiled.stats.cache_hits.values()) == 1
    assert compiled(2.0) == 4.0


_POINTER, _TYPED_IN = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(_negative), {}
exec("def opposite(x): return -x", _TYPED_IN)


def _call_pointer(x):
    return _POINTER(x)


@pytest.mark.parametrize("function", [_TYPED_IN["opposite"], _call_pointer], ids=["no source", "address"])
def test_unreproducible_function_is_not_cached(folder, function):
    assert not assert_runs(folder, function, 2.0, -2.0)
    assert not os.path.exists(folder.root)


@pytest.mark.parametrize("root", ["", "here"])
def test_relative_folder_is_not_used(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(Folder(root, "rnnkit", "digest"), match=refusal("", "absolute", f"'{root}'"))
    assert list(tmp_path.iterdir()) == []


def test_digest_of_edited_sources_is_another(tmp_path, monkeypatch):
    """Numba itself would serve the stale kernel where only a file that it calls into has changed."""
    sources = tmp_path / "kernels"
    shutil.copytree(jit._SOURCES, sources)
    monkeypatch.setattr(jit, "_SOURCES", sources)
    assert jit._digest() == jit.DIGEST == jit.FOLDER.names[-1]
    (sources / "activations.py").write_text("# edited\n")
    assert jit._digest() != jit.DIGEST


def _scaled(scale):
    return scale.factor * 2.0


def test_edited_class_of_an_argument_is_recompiled(folder, tmp_path, monkeypatch):
    """That of a cell, say, whose equations are a part of the code."""
    source = tmp_path / "scales.py"
    source.write_text("import typing\n\nScale = typing.NamedTuple('Scale', [('factor', float)])\n")
    monkeypatch.syspath_prepend(tmp_path)
    scale = importlib.import_module("scales").Scale(1.5)
    assert_compiled_once(folder, _scaled, scale, 3.0)
    source.write_text(source.read_text() + "# edited\n")
    cache._source.cache_clear()  # as in a new process
    assert not assert_runs(folder, _scaled, scale, 3.0)
    monkeypatch.delitem(sys.modules, "scales")
