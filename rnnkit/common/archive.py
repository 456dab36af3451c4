"""Files of named arrays: NumPy's .npz, uncompressed and without pickle.

Files are untrusted: the dtype and shape of a member are checked before it is read, and a member is never larger than
its file.  Writing is atomic: to a temporary file in the same folder, which is checked like a
file to load and then renamed.
"""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import stat
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import prod
from os import PathLike
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from rnnkit.errors import message, wrong_type

try:
    import fcntl
except ImportError:  # on Windows, where temporary files of killed processes remain
    fcntl = None

MAGIC = b"PK\x03\x04"
# The header of an .npy file, version 1.0, as NumPy writes it for plain arrays.  NumPy's own reader evaluates the text:
# hostile text then raises exceptions of a dozen kinds, and warnings.
NPY_MAGIC = b"\x93NUMPY\x01\x00"
NPY_HEADER = re.compile(
    r"\{'descr': '([<>|][?biufcSUVO]\d{0,9})', 'fortran_order': (True|False), "
    r"'shape': \((|\d{1,19},|\d{1,19}(?:, \d{1,19})+)\), \} *\n"
)
TEXT_BYTES = 1 << 24  # of the longest text, 4 bytes a character
NAME_BYTES = 65535 - len(".npy")  # of the longest name: a zip file has 16 bits for its length
CHUNK = 1 << 20  # bytes read at once
PREFIX, SUFFIX = ".rnnkit-", ".tmp"  # of a file that is being written
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


class Header(NamedTuple):
    """The header of a member."""

    dtype: np.dtype
    shape: tuple[int, ...]
    order: str
    start: int  # of the data, in bytes from the start of the member


class _InChunks(io.BufferedReader):
    """A reader that rejects single reads above the chunk size.

    zipfile reads the directory at once, whatever size it claims to have, and makes objects of 20 times that size.
    """

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > CHUNK:
            raise ValueError(f"a directory of {size} bytes")
        return super().read(size)


class Reader:
    """An open file, whose members are validated before they are read.

    Every method raises ValueError if the file is damaged.
    """

    def __init__(self, function: str, path: str | bytes, file: BinaryIO):
        self._function, self._where = function, f"path {path!r}"
        self._size = file.seek(0, os.SEEK_END)
        file.seek(0)
        with self._damage():
            whole = file.read(len(MAGIC)) == MAGIC and zipfile.is_zipfile(file)
        if not whole:
            raise self.refusal("be a complete .npz file", "a truncated file or another format")
        with self._damage():
            self._zip = zipfile.ZipFile(file)

    def refusal(self, expected: str, got: Any) -> ValueError:
        """Return a ValueError about the file, to raise."""
        return ValueError(message(self._function, self._where, expected, got))

    def names(self) -> list[str]:
        """Return the names of all members."""
        return [entry.filename.removesuffix(".npy") for entry in self._zip.infolist()]

    def require(self, names: tuple[str, ...]) -> None:
        """Raise ValueError unless the file has each of the members exactly once."""
        found = Counter(entry.filename for entry in self._zip.infolist())
        missing = [name for name in names if f"{name}.npy" not in found]
        if missing:
            raise self.refusal(f"hold {', '.join(names)}", f"no {', '.join(missing)}")
        twice = [name for name in names if found[f"{name}.npy"] > 1]
        if twice:
            raise self.refusal(f"hold {', '.join(names)} once", f"more than one {', '.join(twice)}")

    def header(self, name: str) -> Header:
        """Return a member's dtype and shape, without reading its data."""
        entry = self._zip.getinfo(f"{name}.npy")
        with self._damage():
            if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
                raise ValueError(f"the compressed member {name}")
            if entry.file_size > self._size:
                raise ValueError(f"member {name} of {entry.file_size} bytes in a file of {self._size} bytes")
            with self._zip.open(entry) as member:
                header = _read_header(name, member)
            nbytes = prod(header.shape) * header.dtype.itemsize
            if nbytes != entry.file_size - header.start or not header.dtype.itemsize:
                raise ValueError(f"{entry.file_size - header.start} bytes for {name}, which needs {nbytes}")
        return header

    def array(self, name: str) -> np.ndarray:
        """Read a member; this takes at most as much memory as the file is large."""
        dtype, shape, order, start = self.header(name)
        array = np.empty(prod(shape), dtype)
        with self._damage(), self._zip.open(f"{name}.npy") as member:
            member.read(start)
            left = memoryview(array.view(np.uint8))
            while left:
                count = member.readinto(left[:CHUNK])
                if not count:
                    raise EOFError(f"the end of the file in {name}")
                left = left[count:]
            return array.reshape(shape, order=order)

    def array_of(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Read a member; raise ValueError unless it has this dtype and shape."""
        found = self.header(name)
        if (found.dtype, found.shape) != (dtype, shape):
            got = f"dtype {found.dtype} and shape {found.shape}"
            raise self.refusal(f"hold {name} of dtype {dtype} and shape {shape}", got)
        return self.array(name)

    def text(self, name: str) -> str:
        """Read a member that is a single text."""
        dtype, shape, *_ = self.header(name)
        if dtype.kind != "U" or shape != () or dtype.itemsize > TEXT_BYTES:
            expected = f"hold {name} as one text of at most {TEXT_BYTES // 4} characters"
            raise self.refusal(expected, f"dtype {dtype} and shape {shape}")
        value = self.array(name)
        with self._damage():
            return str(value)

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Convert all exceptions of zipfile and NumPy on corrupt bytes to `refusal`; I/O errors pass through."""
        try:
            yield
        except Exception as error:
            failed = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)  # EINVAL: an absurd offset
            if failed or isinstance(error, MemoryError):
                raise
            got = str(error)[:200] or type(error).__name__
            raise self.refusal("be an undamaged .npz file of plain arrays", got) from error


def _read_header(name: str, member: BinaryIO) -> Header:
    begin = member.read(len(NPY_MAGIC) + 2)
    size = int.from_bytes(begin[len(NPY_MAGIC) :], "little")
    text = member.read(size).decode("latin1")
    found = NPY_HEADER.fullmatch(text)
    if not begin.startswith(NPY_MAGIC) or not found:
        raise ValueError(f"member {name} with the header {text[:80]!r}")
    descr, fortran_order, shape = found.groups()
    if "O" in descr:
        raise ValueError(f"the object array {name}, which cannot be loaded")
    sizes = tuple(int(size) for size in shape.split(",") if size)
    return Header(np.dtype(descr), sizes, "F" if fortran_order == "True" else "C", len(begin) + size)


@contextmanager
def naming(path: str | bytes | PathLike[str]) -> Iterator[None]:
    """Set `path` as the filename of an OSError: it may have another one, or none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = os.fspath(path)
        raise


@contextmanager
def opened(function: str, path: str | PathLike[str]) -> Iterator[Reader]:
    """Open a file for reading; raise OSError if it cannot be opened, ValueError if it is not an intact .npz file."""
    with naming(path), _InChunks(open_regular(function, path).detach()) as file:
        yield Reader(function, name_of(function, path), file)


def open_regular(function: str, path: str | PathLike[str]) -> io.BufferedReader:
    """Open a regular file for reading; raise ValueError for anything else."""
    _status(function, name_of(function, path))
    return open(path, "rb")


def name_of(function: str, path: Any) -> str | bytes:
    """Return the file name of a path argument; raise TypeError or ValueError if it is invalid."""
    if not isinstance(path, (str, bytes, PathLike)):
        raise wrong_type(function, "path", "a str or path-like", path)
    name = os.fspath(path)
    if os.fsencode(name).count(0):
        raise ValueError(message(function, "path", "hold no null character", repr(name)))
    return name


def write(path: str | PathLike[str], members: dict[str, Any]) -> None:
    """Write the members to a file atomically; raise ValueError for names and texts that `Reader` would reject."""
    for name in members:
        _check_name(name)
    with replacing("save", path) as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name, value in members.items():  # numpy.savez cannot have a member "file", and pickles objects
                array = np.asanyarray(value)
                # Only for large members: versions of Python write different bytes with it.
                with archive.open(f"{name}.npy", "w", force_zip64=array.nbytes > 1 << 30) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        file.flush()
        with _InChunks(io.FileIO(file.fileno(), closefd=False)) as again:
            _check_members(Reader("save", os.fspath(path), again), members)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise wrong_type("save", "name", "a text", name)
    stored = name.encode(errors="ignore")
    if stored.decode() != name or b"\0" in stored or len(stored) > NAME_BYTES:
        expected = f"be a text of at most {NAME_BYTES} bytes in UTF-8, without NUL"
        raise ValueError(message("save", "name", expected, repr(name[:80])))


def _check_members(file: Reader, members: dict[str, Any]) -> None:
    """Raise ValueError unless the file has the members. Their data may be large and are not read."""
    file.require(tuple(members))
    for name, value in members.items():
        file.header(name)
        if isinstance(value, str):
            file.text(name)


@contextmanager
def replacing(function: str, path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for an atomic write: a failed write keeps the old file."""
    with _temporary(name_of(function, path), function) as (file, target):
        yield file
        file.flush()
        os.fsync(file.fileno())  # else a power cut after the rename could leave an empty file
        file.close()
        os.replace(file.name, target)


def check_target(path: str | PathLike[str]) -> None:
    """Raise early, before long work, if `write` could not write to this path."""
    with _temporary(name_of("save", path)):
        pass


def _status(function: str, name: str | bytes) -> os.stat_result:
    """Return the status of a regular file; raise ValueError for anything else."""
    found = os.stat(name)
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise ValueError(message(function, f"path {name!r}", "name a regular file", kind))
    return found


@contextmanager
def _temporary(name: str | bytes, function: str = "save") -> Iterator[tuple[BinaryIO, str]]:
    """Open a temporary file in the folder of the target, with the target's mode; remove it unless it was renamed."""
    known = None
    with suppress(FileNotFoundError):
        known = _status(function, name)
    if not os.path.basename(name):
        raise ValueError(message(function, f"path {name!r}", "name a file", "a folder or nothing"))
    target = os.fsdecode(os.path.realpath(name))  # a symbolic link stays: the file that it points to is replaced
    temporary = ""
    try:
        with naming(name):
            folder, opened = os.path.dirname(target), None
            _remove_stale(folder)
            while opened is None:
                # The name is known before the file is there: a signal may end the program in between.
                temporary = os.path.join(folder, PREFIX + secrets.token_hex(8) + SUFFIX)
                opened = _create(temporary)
            file, lock = opened
            with file, lock:
                if known:
                    _set_owner_and_mode(temporary, known)
                yield file, target
    finally:
        with suppress(OSError):  # it was renamed, or could not be created
            os.remove(temporary)


def _create(temporary: str) -> tuple[BinaryIO, BinaryIO] | None:
    """Create a temporary file; return it, and a second handle that holds a lock until it is closed.

    None: another process removed the file as stale, before it was locked.
    """
    file = open(temporary, "x+b")
    lock = os.fdopen(os.dup(file.fileno()), "rb")
    try_lock(lock, wait=True)
    if os.path.exists(temporary):
        return file, lock
    file.close()
    lock.close()
    return None


def _remove_stale(folder: str) -> None:
    """Remove temporary files of killed processes: their locks are free."""
    with suppress(OSError):  # a folder that cannot be listed, or is not there
        for entry in os.scandir(folder):
            if entry.name.startswith(PREFIX) and entry.name.endswith(SUFFIX):
                with suppress(OSError), open(entry.path, "rb", opener=_open_nonblocking) as file:
                    if try_lock(file, wait=False):
                        os.remove(entry.path)


def _open_nonblocking(name: str, flags: int) -> int:
    """Open a file without following a symbolic link or blocking on a FIFO."""
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def try_lock(file: BinaryIO, wait: bool) -> bool | None:
    """Lock an open file until it is closed. False: it is locked elsewhere. None: locks are not supported here."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _set_owner_and_mode(temporary: str, known: os.stat_result) -> None:
    if hasattr(os, "chown"):
        with suppress(OSError):  # only root can change the owner; the group may be one of the user's groups
            os.chown(temporary, known.st_uid, known.st_gid)
    os.chmod(temporary, stat.S_IMODE(known.st_mode))
