"""Files of named arrays: NumPy's .npz, uncompressed and without pickle.

Nothing that a file says of itself is believed: a member is read only after its dtype and shape were found right, and
it is never larger than the file itself.  A file is written beside its place, looked at as its reader does, and renamed.
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
except ImportError:  # on Windows, where the files of a killed saver stay
    fcntl = None

MAGIC = b"PK\x03\x04"
# The header of an .npy file, version 1.0, as NumPy writes it for plain arrays.  NumPy's own reader evaluates it, which
# with hostile text ends in exceptions of a dozen kinds, and in warnings.
NPY_MAGIC = b"\x93NUMPY\x01\x00"
NPY_HEADER = re.compile(
    r"\{'descr': '([<>|][?biufcSUVO]\d{0,9})', 'fortran_order': (True|False), "
    r"'shape': \((|\d{1,19},|\d{1,19}(?:, \d{1,19})+)\), \} *\n"
)
TEXT_BYTES = 1 << 24  # of the longest text, 4 a character
NAME_BYTES = 65535 - len(".npy")  # of the longest name: a file has 16 bits for its length
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
    """What a member says of itself."""

    dtype: np.dtype
    shape: tuple[int, ...]
    order: str
    start: int  # of the data, in bytes from the member's start


class _InChunks(io.BufferedReader):
    """Refuses to read more at once than a chunk: zipfile reads the whole directory, of whatever size it claims to be,
    and makes objects of it that take twenty times the memory."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > CHUNK:
            raise ValueError(f"a directory of {size} bytes")
        return super().read(size)


class Reader:
    """An open file, whose members are looked at before they are read.

    Every method raises ValueError where the file is damaged.
    """

    def __init__(self, function: str, path: str | bytes, file: BinaryIO):
        self._function, self._where = function, f"path {path!r}"
        self._size = file.seek(0, os.SEEK_END)
        file.seek(0)
        with self._damage():
            whole = file.read(len(MAGIC)) == MAGIC and zipfile.is_zipfile(file)
        if not whole:
            raise self.refusal("be a complete .npz file", "a cut-off one or another kind")
        with self._damage():
            self._zip = zipfile.ZipFile(file)

    def refusal(self, expected: str, got: Any) -> ValueError:
        """Return the error that says what the file must do."""
        return ValueError(message(self._function, self._where, expected, got))

    def names(self) -> list[str]:
        """Return the names of all members."""
        return [entry.filename.removesuffix(".npy") for entry in self._zip.infolist()]

    def require(self, names: tuple[str, ...]) -> None:
        """Raise ValueError unless each of the members is there, and once."""
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
                raise ValueError(f"a compressed {name}")
            if entry.file_size > self._size:
                raise ValueError(f"a {name} of {entry.file_size} bytes in a file of {self._size}")
            with self._zip.open(entry) as member:
                header = _read_header(name, member)
            nbytes = prod(header.shape) * header.dtype.itemsize
            if nbytes != entry.file_size - header.start or not header.dtype.itemsize:
                raise ValueError(f"{entry.file_size - header.start} bytes for a {name} of {nbytes}")
        return header

    def array(self, name: str) -> np.ndarray:
        """Read a member; the memory that this takes is at most the size of the file."""
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
        """Read a member of this dtype and shape."""
        found = self.header(name)
        if (found.dtype, found.shape) != (dtype, shape):
            got = f"dtype {found.dtype} and shape {found.shape}"
            raise self.refusal(f"hold {name} of dtype {dtype} and shape {shape}", got)
        return self.array(name)

    def text(self, name: str) -> str:
        """Read a member that is one text."""
        dtype, shape, *_ = self.header(name)
        if dtype.kind != "U" or shape != () or dtype.itemsize > TEXT_BYTES:
            expected = f"hold {name} as one text of at most {TEXT_BYTES // 4} characters"
            raise self.refusal(expected, f"dtype {dtype} and shape {shape}")
        value = self.array(name)
        with self._damage():
            return str(value)

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Name the file in whatever zipfile and NumPy raise on hostile bytes; only a device's own errors stay."""
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
        raise ValueError(f"a {name} with the header {text[:80]!r}")
    descr, fortran_order, shape = found.groups()
    if "O" in descr:
        raise ValueError(f"Object arrays cannot be loaded, and {name} is one")
    sizes = tuple(int(size) for size in shape.split(",") if size)
    return Header(np.dtype(descr), sizes, "F" if fortran_order == "True" else "C", len(begin) + size)


@contextmanager
def naming(path: str | bytes | PathLike[str]) -> Iterator[None]:
    """Give an error of the system the name that the caller knows, where it has another one or none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = os.fspath(path)
        raise


@contextmanager
def opened(function: str, path: str | PathLike[str]) -> Iterator[Reader]:
    """Open a file for reading; raise OSError without one, ValueError if it is of another kind or damaged."""
    with naming(path), _InChunks(open_regular(function, path).detach()) as file:
        yield Reader(function, name_of(function, path), file)


def open_regular(function: str, path: str | PathLike[str]) -> io.BufferedReader:
    """Open a regular file for reading; whatever else stands there is refused."""
    _status(function, name_of(function, path))
    return open(path, "rb")


def name_of(function: str, path: Any) -> str | bytes:
    """Return the name of a file; raise what is wrong with the argument."""
    if not isinstance(path, (str, bytes, PathLike)):
        raise wrong_type(function, "path", "a str or path-like", path)
    name = os.fspath(path)
    if os.fsencode(name).count(0):
        raise ValueError(message(function, "path", "hold no null character", repr(name)))
    return name


def write(path: str | PathLike[str], members: dict[str, Any]) -> None:
    """Write the members under their names, as `replacing` does; what could not be read again is refused."""
    for name in members:
        _check_name(name)
    with replacing("save", path) as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name, value in members.items():  # not by numpy.savez, which has no member "file", and pickles objects
                array = np.asanyarray(value)
                # Of long ones alone: versions of Python differ in what they write for it.
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
    """Raise ValueError unless the file has the members; their data, which may be long, are not looked at."""
    file.require(tuple(members))
    for name, value in members.items():
        file.header(name)
        if isinstance(value, str):
            file.text(name)


@contextmanager
def replacing(function: str, path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing: nobody ever sees half of it, and a failure leaves what was there before."""
    with _temporary(name_of(function, path), function) as (file, target):
        yield file
        file.flush()
        os.fsync(file.fileno())  # else a power cut after the rename could leave an empty file
        file.close()
        os.replace(file.name, target)


def check_target(path: str | PathLike[str]) -> None:
    """Raise what `write` would raise about the place: before the work whose result is to be written there."""
    with _temporary(name_of("save", path)):
        pass


def _status(function: str, name: str | bytes) -> os.stat_result:
    """Return the status of a regular file; whatever else stands there is refused."""
    found = os.stat(name)
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise ValueError(message(function, f"path {name!r}", "name a regular file", kind))
    return found


@contextmanager
def _temporary(name: str | bytes, function: str = "save") -> Iterator[tuple[BinaryIO, str]]:
    """Open a new file in the folder of the target, with its mode; in the end it is removed, unless it was renamed."""
    known = None
    with suppress(FileNotFoundError):
        known = _status(function, name)
    if not os.path.basename(name):
        raise ValueError(message(function, f"path {name!r}", "name a file", "a folder or nothing"))
    target = os.fsdecode(os.path.realpath(name))  # symbolic links stay, and what they point to is written
    temporary = ""
    try:
        with naming(name):
            file, lock = _create(os.path.dirname(target))
            temporary = file.name
            with file, lock:
                if known:
                    _set_owner_and_mode(temporary, known)
                yield file, target
    finally:
        with suppress(FileNotFoundError):
            os.remove(temporary)


def _create(folder: str) -> tuple[BinaryIO, BinaryIO]:
    """Make a file of a short name of its own; return it, and the same file locked for as long as that one is open."""
    _remove_stale(folder)
    while True:
        temporary = os.path.join(folder, PREFIX + secrets.token_hex(8) + SUFFIX)
        file = open(temporary, "x+b")
        lock = os.fdopen(os.dup(file.fileno()), "rb")
        try_lock(lock, wait=True)
        if os.path.exists(temporary):  # else another saver took it for one that was left
            return file, lock
        file.close()
        lock.close()


def _remove_stale(folder: str) -> None:
    """Remove the files of savers that were killed: nobody holds their locks any more."""
    with suppress(OSError):  # a folder that cannot be listed, or is not there
        for entry in os.scandir(folder):
            if entry.name.startswith(PREFIX) and entry.name.endswith(SUFFIX):
                with suppress(OSError), open(entry.path, "rb", opener=_open_nonblocking) as file:
                    if try_lock(file, wait=False):
                        os.remove(entry.path)


def _open_nonblocking(name: str, flags: int) -> int:
    """Open neither a link nor, waiting for its other end, a FIFO."""
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def try_lock(file: BinaryIO, wait: bool) -> bool | None:
    """Lock an open file until it is closed; False: another has, None: the file system or the machine knows no locks."""
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
        with suppress(OSError):  # only root gives files away; the group may be one of the user's
            os.chown(temporary, known.st_uid, known.st_gid)
    os.chmod(temporary, stat.S_IMODE(known.st_mode))
