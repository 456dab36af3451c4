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
from messages import says

from rnnkit_kernels.machine import cache, jit
from rnnkit_kernels.machine.cache import Folder
from rnnkit_kernels.machine.jit import kernel

needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a file to another user"
)
NOBODY = 65534


def _twice(x):
    return x + x


def _negative(x):
    return -x


def assert_runs(folder, function=_twice, argument=3.0, expected=6.0):
    """Compile the function as a new process would; returns whether its machine code came from the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "FOLDER", folder)
        compiled = kernel(function)
    assert compiled(argument) == expected
    return bool(compiled.stats.cache_hits)


def refusal(path, *facts):
    return says(f"kernel cache: {path}", *facts, "NUMBA_CACHE_DIR")


def assert_refused(folder, match):
    """The folder as it stands is not used, and one warning says why; twice, as by two processes."""
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match=match) as warned:
            found = assert_runs(folder, _twice), assert_runs(folder, _negative, 3.0, -3.0)
        assert found == (False, False)
        assert len(warned) == 1
        folder = anew(folder)


def anew(folder):
    """The same folder, of another process."""
    return Folder(folder.root, *folder.names)


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


def test_an_entry_is_found_again(folder, entry):
    assert assert_runs(folder)
    assert entries(folder) == [entry.name]


def test_what_is_made_is_for_its_owner_alone(folder):
    before = os.umask(0)
    assert_runs(folder)
    os.umask(before)
    made = [folder.root, Path(folder.path).parent, folder.path]
    assert [os.stat(path).st_mode & 0o777 for path in made] == [0o700] * 3
    [name] = entries(folder)
    assert os.stat(Path(folder.path, name)).st_mode & 0o777 == 0o600


def _flip(at):
    def flip(data):
        changed = bytearray(data)
        changed[at(len(data))] ^= 4
        return bytes(changed)

    return flip


DAMAGES = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "the digest alone": lambda data: data[:32],
    "half": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "one byte more": lambda data: data + b"\0",
    "flipped in the digest": _flip(lambda size: 3),
    "flipped in front": _flip(lambda size: 40),
    "flipped in the middle": _flip(lambda size: size // 2),
    "flipped at the end": _flip(lambda size: size - 1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_compiled_anew(folder, entry, damage):
    entry.write_bytes(damage(entry.read_bytes()))
    assert not assert_runs(folder)
    assert assert_runs(folder)


@pytest.mark.parametrize("data", [
    b"", b"no pickle", pickle.dumps(3), b"cno_such_module\nname\n.", b"crnnkit\nno_such_name\n.",
    pickle.dumps(((numba.float64,), ("of", "another", "numba"))),
    pickle.dumps(((numba.float64,), (("library", "object", (b"code", b"bitcode")), *range(8)))),
])
def test_an_entry_that_can_not_be_used_is_compiled_anew(folder, entry, data):
    folder.write(entry.name, data)
    assert not assert_runs(folder)
    assert assert_runs(folder)


def test_the_file_of_another_entry_is_not_taken(folder, entry):
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


def test_types_of_one_name_are_told_apart(folder):
    """A file is named after the names of the types."""
    for pair, expected in ((_Ascending.Pair(1.0, 2.0), 1.0), (_Descending.Pair(1.0, 2.0), 2.0)):
        assert not assert_runs(folder, _a_of_pair, pair, expected)
        assert assert_runs(folder, _a_of_pair, pair, expected)
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


def test_a_planted_entry_would_run(folder, mark):
    assert_runs(folder)
    assert mark.exists()


@needs_root
@at_each_level
def test_what_another_user_made_is_not_read(folder, entry, mark, level):
    path = level(entry)
    os.chown(path, NOBODY, -1)
    with pytest.warns(RuntimeWarning, match=refusal(path, "uid 0", f"uid {NOBODY}")):
        assert not assert_runs(folder)
    assert not mark.exists()


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
@at_each_level
def test_what_others_can_write_is_not_read(folder, entry, mark, level, mode):
    path = level(entry)
    path.chmod(mode)
    with pytest.warns(RuntimeWarning, match=refusal(path, "others", f"mode {mode:o}")):
        assert not assert_runs(folder)
    assert not mark.exists()


@at_each_level
def test_links_are_not_followed(folder, entry, mark, level, tmp_path):
    path = level(entry)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.warns(RuntimeWarning, match=refusal(folder.root)):
        assert not assert_runs(folder)
    assert not mark.exists()


def test_a_refused_file_is_replaced(folder, entry):
    entry.chmod(0o666)
    with pytest.warns(RuntimeWarning, match=refusal(entry, "others", "mode 666")):
        assert not assert_runs(folder)
    assert assert_runs(folder)


def test_a_refused_folder_stays_as_it_is(folder, entry):
    before = entry.read_bytes()
    entry.parent.chmod(0o777)
    assert_refused(folder, match=refusal(entry.parent, "others", "mode 777"))
    assert entry.read_bytes() == before
    assert entries(folder) == [entry.name]


@pytest.mark.parametrize("level", [LEVELS["rnnkit"], LEVELS["digest"]], ids=["rnnkit", "digest"])
def test_a_folder_that_is_changed_after_the_look_is_not_followed(folder, entry, mark, level, monkeypatch, tmp_path):
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


@needs_root
def test_root_leaves_nothing_in_the_folder_of_a_user(folder):
    os.mkdir(folder.root)
    os.chown(folder.root, NOBODY, -1)
    assert_refused(folder, match=refusal(folder.root, "root", f"uid {NOBODY}"))
    assert os.listdir(folder.root) == []


@needs_root
def test_others_may_use_the_folder_of_another_user(folder, monkeypatch):
    """Such as /tmp: what they make there is theirs."""
    os.mkdir(folder.root)
    os.chown(folder.root, NOBODY, -1)
    monkeypatch.setattr(cache, "_check_owner", lambda descriptor, path: None)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY - 1)
    assert not assert_runs(folder)
    assert assert_runs(folder)


@pytest.mark.parametrize("depth", [0, 1, 2], ids=["caches", "rnnkit", "digest"])
def test_a_file_in_the_place_of_a_folder(folder, depth):
    path = Path(folder.root, *folder.names[:depth])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    path.write_text("kept")
    assert_refused(folder, match=refusal(folder.root))
    assert path.read_text() == "kept"


@pytest.mark.parametrize("call", ["mkdir", "open", "replace"])
def test_an_error_of_the_system_costs_the_cache_alone(folder, monkeypatch, call):
    def fails(*arguments, **options):
        raise OSError(28, "No space left on device")

    os.mkdir(folder.root, 0o700)
    monkeypatch.setattr(os, call, fails)
    assert_refused(folder, match=refusal(folder.path, "'No space left on device'"))
    monkeypatch.undo()
    assert [path for path in Path(folder.root).rglob("*") if path.is_file()] == []


def test_an_entry_that_is_a_folder(folder, entry):
    entry.unlink()
    entry.mkdir()
    with pytest.warns(RuntimeWarning, match=refusal(folder.path, "Is a directory")):
        assert not assert_runs(folder)


def test_a_pipe_is_not_waited_for(folder, entry):
    entry.unlink()
    os.mkfifo(entry, 0o600)
    assert not assert_runs(folder)
    assert assert_runs(folder)


def test_a_folder_that_is_gone_is_made_again(folder, entry):
    shutil.rmtree(folder.root)
    assert not assert_runs(folder)
    assert assert_runs(folder)


def test_without_folders_that_can_be_opened(folder, monkeypatch):
    """As on Windows, where there is no user id either."""
    open_path = os.open

    def open_file(path, flags, mode=0o777, *, dir_fd=None):
        assert dir_fd is None and not os.path.isdir(path)
        return open_path(path, flags, mode)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(cache, "_HAS_DESCRIPTORS", False)
    monkeypatch.delattr(os, "geteuid")
    assert not assert_runs(folder)
    assert assert_runs(folder)
    [name] = entries(folder)
    path = Path(folder.path, name)
    path.write_bytes(path.read_bytes()[:-1])
    assert not assert_runs(folder)
    assert assert_runs(folder)


def test_recompile_takes_nothing_from_before(folder, entry, monkeypatch):
    monkeypatch.setattr(jit, "FOLDER", folder)
    compiled = kernel(_twice)
    compiled.compile((numba.float64,))
    compiled.recompile()
    assert sum(compiled.stats.cache_hits.values()) == 1
    assert compiled(2.0) == 4.0


def test_a_function_without_a_source_is_not_kept(folder):
    typed_in = {}
    exec("def thrice(x): return 3 * x", typed_in)
    assert not assert_runs(folder, typed_in["thrice"], 2.0, 6.0)
    assert not os.path.exists(folder.root)


_POINTER = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(_negative)


def _call_pointer(x):
    return _POINTER(x)


def test_addresses_of_this_process_are_not_kept(folder):
    assert not assert_runs(folder, _call_pointer, 2.0, -2.0)
    assert not os.path.exists(folder.root)


@pytest.mark.parametrize("root", ["", "here"])
def test_a_folder_that_is_not_absolute_is_not_used(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(Folder(root, "rnnkit", "digest"), match=refusal("", "absolute", f"'{root}'"))
    assert list(tmp_path.iterdir()) == []


def test_an_edited_source_is_compiled_anew(tmp_path, monkeypatch):
    """Numba itself would serve the stale kernel where only a file that it calls into has changed."""
    sources = tmp_path / "kernels"
    shutil.copytree(jit._SOURCES, sources)
    monkeypatch.setattr(jit, "_SOURCES", sources)
    assert jit._digest() == jit.DIGEST == jit.FOLDER.names[-1]
    (sources / "activations.py").write_text("# edited\n")
    assert jit._digest() != jit.DIGEST


def _scaled(scale):
    return scale.factor * 2.0


def test_the_edited_class_of_an_argument_is_compiled_anew(folder, tmp_path, monkeypatch):
    """That of a cell, say, whose equations are a part of the code."""
    source = tmp_path / "scales.py"
    source.write_text("import typing\n\nScale = typing.NamedTuple('Scale', [('factor', float)])\n")
    monkeypatch.syspath_prepend(tmp_path)
    scale = importlib.import_module("scales").Scale(1.5)
    assert not assert_runs(folder, _scaled, scale, 3.0)
    assert assert_runs(folder, _scaled, scale, 3.0)
    source.write_text(source.read_text() + "# edited\n")
    cache._source.cache_clear()  # as in a new process
    assert not assert_runs(folder, _scaled, scale, 3.0)
    monkeypatch.delitem(sys.modules, "scales")
