"""Where machine code is kept between processes: one file an entry, read only where nobody else can have written it.

Numba's own cache keeps an index beside the files of a function. Two processes that add to it at once can leave an index
that names the other's file, one cut off fails every later process, and whoever can write into its folder has his code
run. Here the name of a file is a digest of all that its code depends on, and its first bytes are one of the rest.
"""

import errno
import hashlib
import io
import logging
import os
import pickle
import secrets
import stat
import sys
import warnings
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import llvmlite
import numba
from llvmlite.binding import address_of_symbol
from numba.core.caching import FunctionCache
from numba.core.compiler import CompileResult
from numba.core.serialize import NumbaPickler

from ..cells.activations import Activation
from ..cells.source import code_key, is_shipped
from ..cells.uses import Unresolved

_LOGGER = logging.getLogger("rnnkit")
_DIGEST_BYTES = 32
_VERSIONS = numba.__version__, llvmlite.__version__, sys.implementation.cache_tag, getattr(sys, "abiflags", "")
# Windows opens no folders and has no owners as POSIX has: there the access lists of the user's profile are the guard.
_HAS_DESCRIPTORS = os.open in os.supports_dir_fd


def _flags(*names):
    """Those of the flags that this system has; a pipe must not be waited for, bytes not translated."""
    return sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY", *names))


_ROOT = _flags("O_RDONLY", "O_DIRECTORY")
_FOLDER = _flags("O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW")
_READ = _flags("O_RDONLY", "O_NOFOLLOW")
_WRITE = _flags("O_WRONLY", "O_CREAT", "O_EXCL")


def root():
    """Return the user's folder of caches: NUMBA_CACHE_DIR, else XDG_CACHE_HOME, else that in HOME; "" without any.

    As the XDG specification has it, a relative path is no folder: it would be another one in each working directory. It
    is passed over, but for NUMBA_CACHE_DIR, which was meant for us: `Folder` refuses it.
    """
    home = os.path.expanduser("~") if os.environ.get("HOME") != "" else ""  # "~" where nobody knows
    inherited = os.environ.get("XDG_CACHE_HOME", ""), os.path.join(home, ".cache")
    return os.fspath(numba.config.CACHE_DIR) or next(filter(os.path.isabs, inherited), "")


class _Refusal(OSError):
    """What could be used, but must not; its text reads on from the path."""


class Folder:
    """A folder of files that this user alone can have written, below one that may be anybody's.

    Every access walks down anew, from each folder's descriptor to the next: what was looked at is what is used, whoever
    renames a folder above meanwhile. Whatever goes wrong is an OSError.
    """

    def __init__(self, root, *names):
        self.root, self.names = root, names
        self.path = os.path.join(root, *names)
        self.warned = False

    def read(self, name):
        """Return the bytes last written under this name; None where there are none, or not those that were written."""
        try:
            with self._opened() as (folder, at):
                stream = open(at(name), "rb", opener=lambda path, _: os.open(path, _READ, dir_fd=folder))
        except FileNotFoundError:
            return None
        with stream:
            _check_owner(stream.fileno(), os.path.join(self.path, name))
            digest, data = stream.read(_DIGEST_BYTES), stream.read()
        return data if digest == _digest(name, data) else None

    def write(self, name, data):
        """Write beside and rename: another process finds all of it, or what was there before."""
        with self._opened(make=True) as (folder, at):
            beside = at(f"{name}.{secrets.token_hex(8)}.tmp")
            file = os.open(beside, _WRITE, 0o600, dir_fd=folder)
            try:
                with open(file, "wb") as stream:
                    stream.write(_digest(name, data) + data)
                os.replace(beside, at(name), src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(beside, dir_fd=folder)
                raise

    @contextmanager
    def _opened(self, make=False):
        """Give the folder's descriptor, and what makes of a name in it a path from there."""
        if not os.path.isabs(self.root):
            raise _Refusal(errno.EPERM, f"must be an absolute path, got {self.root!r}", "the folder of caches")
        if make:
            self._make_root()
        if not _HAS_DESCRIPTORS:
            if make:
                os.makedirs(self.path, exist_ok=True)
            yield None, Path(self.path).joinpath
            return
        path, folder = self.root, os.open(self.root, _ROOT)
        try:
            for name in self.names:
                path = os.path.join(path, name)
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=folder)
                above, folder = folder, _open_folder(name, folder, path)
                os.close(above)
                _check_owner(folder, path)
            yield folder, str
        finally:
            os.close(folder)

    def _make_root(self):
        """Make the folder of caches, but not as root in a user's home (sudo): it would shut the user out."""
        root = Path(self.root)
        if _HAS_DESCRIPTORS and os.geteuid() == 0:
            existing = next(folder for folder in (root, *root.parents) if folder.exists())
            if (owner := existing.stat().st_uid) != 0:
                raise _Refusal(errno.EPERM, f"must belong to root, who runs this, got uid {owner}", str(existing))
        root.mkdir(mode=0o700, parents=True, exist_ok=True)


def _open_folder(name, above, path):
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except NotADirectoryError:
        raise _Refusal(errno.EPERM, "must be a folder, got a file or a link", path) from None


def _check_owner(descriptor, path):
    """Refuse a folder or file that another user made, or could have written."""
    if not _HAS_DESCRIPTORS:
        return
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise _Refusal(errno.EPERM, f"must belong to uid {os.geteuid()}, got uid {found.st_uid}", path)
    if found.st_mode & 0o022:
        raise _Refusal(errno.EPERM, f"must not be writable by others, got mode {stat.S_IMODE(found.st_mode):o}", path)


def _digest(name, data):
    """What stands before the data, so that neither damage nor another entry's file is taken for code."""
    return hashlib.blake2b(name.encode() + data, digest_size=_DIGEST_BYTES).digest()


@cache
def _source(path):
    """Digest of a source file; None where a function has none, such as one typed in."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def _classes(types):
    """The classes of named tuples among the types of a call, and among those of their fields."""
    for one in types:
        if hasattr(one, "instance_class"):
            yield one.instance_class
        yield from _classes(getattr(one, "types", ()))  # of a tuple, or of bound arguments


def _source_of(named_tuple):
    """Digest of what a class of named tuples says, which is a part of the code; None if nobody knows that.

    Of a user's cell or activation that is what it computes, and not its file: another one may be in `__main__` now.
    """
    if not _is_own(named_tuple):
        return _source(getattr(sys.modules.get(named_tuple.__module__), "__file__", ""))
    try:
        return code_key(named_tuple)
    except Unresolved as error:
        _say_that_it_is_not_kept(named_tuple.__qualname__.rpartition(".")[2], str(error))
        return None


def _is_own(kind):
    """Whether something is the class of a user's cell, or of an activation of his."""
    if not isinstance(kind, type) or is_shipped(kind):
        return False
    return hasattr(kind, "declaration") or issubclass(kind, Activation)


@cache
def _say_that_it_is_not_kept(name, why):
    warnings.warn(f"kernel cache: {name} {why}; each process compiles it anew", RuntimeWarning, stacklevel=2)


@cache
def _say_that_it_takes_a_while():
    """Once a process: a first call is silent for seconds otherwise."""
    ahead = "`python -m rnnkit warmup` does it ahead, with --precision of quantized ones, but not for cells of your own"
    _LOGGER.info(f"compiling kernels for this machine, some seconds a mode; {ahead}")


def _foreign_symbols(library):
    """Names of what the code of a library refers to and does not have: Python's functions, say."""
    module = library._final_module
    symbols = (*module.functions, *module.global_variables)
    return [each.name for each in symbols if each.is_declaration and not each.name.startswith("llvm.")]


class _Pickler(NumbaPickler):
    """Writes of a user's cell that it is one: each process has another class for it, which computes the same."""

    def persistent_id(self, value):
        return code_key(value) if _is_own(value) else None


class _Unpickler(pickle.Unpickler):
    """Puts the classes that the call came with in their places."""

    def __init__(self, data, sig):
        super().__init__(io.BytesIO(data))
        self._own = {code_key(kind): kind for kind in _classes(sig) if _is_own(kind)}

    def persistent_load(self, digest):
        return self._own[digest]


def _dumps(value):
    stream = io.BytesIO()
    _Pickler(stream, protocol=4).dump(value)
    return stream.getvalue()


_suppliers = {}


def supplies(prefix):
    """Let the decorated function be called with each symbol of this beginning that machine code refers to, before that
    is loaded: it defines the symbol, where it is not."""
    return lambda supply: _suppliers.setdefault(prefix, supply)


def _supply(symbols):
    for symbol in symbols:
        for prefix, supply in _suppliers.items():
            if symbol.startswith(prefix):
                supply(symbol)


class Cache(FunctionCache):
    """The compiled signatures of one function, for its dispatcher; where it fails, the call is compiled for."""

    def __init__(self, function, folder):
        self._py_func, self._name, self._folder, self._cache_path = function, repr(function), folder, folder.path
        self.enable()

    def load_overload(self, sig, target_context):
        """Return the compile result that was saved for the signature on such a CPU, or None."""
        name = self._entry(sig, target_context.codegen())
        data = self._try(self._folder.read, name) if name else None
        try:
            saved, symbols, payload = _Unpickler(data, sig).load() if data else (None, (), None)
            if saved == sig:
                _supply(symbols)
                if any(address_of_symbol(symbol) is None for symbol in symbols):
                    target_context.refresh()  # brings all that Numba knows to compile, half of the time of a warm call
                return CompileResult._rebuild(target_context, *payload)
        except Exception:  # whole, but not for this process: it names a class that is elsewhere now, say
            pass
        _say_that_it_takes_a_while()
        return None

    def save_overload(self, sig, data):
        """Keep a compile result, unless addresses of this process are in it."""
        name = self._entry(sig, data.codegen)
        if name and not data.library.has_dynamic_globals:
            self._try(self._folder.write, name, _dumps((sig, _foreign_symbols(data.library), data._reduce())))

    def flush(self):
        """Read and write nothing more: whoever recompiles wants no code of before."""
        self.disable()

    def _entry(self, sig, codegen):
        """Name of the file: after all that the code depends on, the CPU's name and features among it."""
        code = self._py_func.__code__
        sources = _source(code.co_filename), *map(_source_of, _classes(sig))
        if not self._enabled or None in sources:
            return None
        place = self._py_func.__module__, self._py_func.__qualname__, code.co_firstlineno, sources
        key = repr((place, self._index_key(sig, codegen), _VERSIONS))
        return f"{code.co_name.strip('<>')}-{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.nbc"

    def _try(self, access, *arguments):
        """What the access returns; None, and one warning for all of the folder, where it fails."""
        try:
            return access(*arguments)
        except OSError as error:
            if not self._folder.warned:
                self._folder.warned = True
                refused = isinstance(error, _Refusal)
                path = error.filename if refused else self._folder.path
                problem = error.strerror if refused else f"must be usable, got {error.strerror!r}"
                cure = "set NUMBA_CACHE_DIR to a folder of your own, or each process compiles anew"
                warnings.warn(f"kernel cache: {path} {problem}; {cure}", RuntimeWarning, stacklevel=2)
            return None
