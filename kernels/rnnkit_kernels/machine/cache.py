"""The disk cache of machine code: one file per entry, and only files that no other user can have written are loaded.

Numba's own cache has an index next to the files of a function. Two processes that write at once can leave an index that
names the other's file, a truncated file breaks every later process, and anyone who can write to its folder can have
code run. Here the file name is a digest of all that the code depends on, and the file starts with a digest of its
contents.
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
# Windows cannot open folders and has no POSIX owners: there the access lists of the user's profile protect the cache.
_HAS_DESCRIPTORS = os.open in os.supports_dir_fd


def _flags(*names):
    """Combine the flags that this system has; never wait for a pipe, never translate bytes."""
    return sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY", *names))


_ROOT = _flags("O_RDONLY", "O_DIRECTORY")
_FOLDER = _flags("O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW")
_READ = _flags("O_RDONLY", "O_NOFOLLOW")
_WRITE = _flags("O_WRONLY", "O_CREAT", "O_EXCL")


def root():
    """Return the user's folder of caches: NUMBA_CACHE_DIR, else XDG_CACHE_HOME, else ~/.cache; "" without any.

    Relative paths, which depend on the working directory, are ignored as the XDG specification requires. A relative
    NUMBA_CACHE_DIR, set for this purpose, is not ignored: `Folder` refuses it.
    """
    home = os.path.expanduser("~") if os.environ.get("HOME") != "" else ""  # "~" if it is unknown
    inherited = os.environ.get("XDG_CACHE_HOME", ""), os.path.join(home, ".cache")
    return os.fspath(numba.config.CACHE_DIR) or next(filter(os.path.isabs, inherited), "")


class _Refusal(OSError):
    """A file or folder that must not be used; the text continues after the path."""


class Folder:
    """A folder of files that only this user can have written, below a root that may belong to anyone.

    Every access opens the folders one by one, each by the descriptor of its parent, so that what was checked is what is
    used even if someone renames a folder meanwhile. All failures are OSErrors.
    """

    def __init__(self, root, *names):
        self.root, self.names = root, names
        self.path = os.path.join(root, *names)
        self.warned = False

    def read(self, name):
        """Return the bytes last written under this name; None if there are none, or if they are damaged."""
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
        """Write a temporary file and rename it: another process finds the whole file, or the previous one."""
        with self._opened(make=True) as (folder, at):
            temporary = at(f"{name}.{secrets.token_hex(8)}.tmp")
            file = os.open(temporary, _WRITE, 0o600, dir_fd=folder)
            try:
                with open(file, "wb") as stream:
                    stream.write(_digest(name, data) + data)
                os.replace(temporary, at(name), src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    @contextmanager
    def _opened(self, make=False):
        """Yield the folder's descriptor, and a function from a name in it to the path relative to the descriptor."""
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
        """Make the folder of caches, but not as root in a user's home (sudo): it would lock the user out."""
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
    """Return the digest before the data, so that neither damage nor another entry's file is taken for code."""
    return hashlib.blake2b(name.encode() + data, digest_size=_DIGEST_BYTES).digest()


@cache
def _source(path):
    """Return the digest of a source file; None if a function has none, as in interactive code."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def _classes(types):
    """Yield the classes of named tuples among the types of a call, and among those of their fields."""
    for one in types:
        if hasattr(one, "instance_class"):
            yield one.instance_class
        yield from _classes(getattr(one, "types", ()))  # of a tuple, or of bound arguments


def _source_of(named_tuple):
    """Return the digest of a class of named tuples, which is a part of the code; None if it cannot be determined.

    For a user's cell or activation this is a digest of its equations, not of its file: `__main__` may be another one.
    """
    if not _is_user_defined(named_tuple):
        return _source(getattr(sys.modules.get(named_tuple.__module__), "__file__", ""))
    try:
        return code_key(named_tuple)
    except Unresolved as error:
        _warn_not_cached(named_tuple.__qualname__.rpartition(".")[2], str(error))
        return None


def _is_user_defined(kind):
    """Return whether `kind` is the class of a user-defined cell or activation."""
    if not isinstance(kind, type) or is_shipped(kind):
        return False
    return hasattr(kind, "declaration") or issubclass(kind, Activation)


@cache
def _warn_not_cached(name, why):
    warnings.warn(f"kernel cache: {name} {why}; each process compiles it again", RuntimeWarning, stacklevel=2)


@cache
def _log_compiling():
    """Log once per process, as a first call is silent for seconds otherwise."""
    ahead = "`python -m rnnkit warmup` (--precision for quantized weights) does it ahead, except for cells of your own"
    _LOGGER.info(f"compiling kernels for this machine, a few seconds per mode; {ahead}")


def _foreign_symbols(library):
    """Return the undefined symbols of a library, for example Python's functions."""
    module = library._final_module
    symbols = (*module.functions, *module.global_variables)
    return [each.name for each in symbols if each.is_declaration and not each.name.startswith("llvm.")]


class _Pickler(NumbaPickler):
    """Pickles a user-defined cell as its key: each process has its own class, which computes the same."""

    def persistent_id(self, value):
        return code_key(value) if _is_user_defined(value) else None


class _Unpickler(pickle.Unpickler):
    """Replaces the keys by the classes of this call."""

    def __init__(self, data, sig):
        super().__init__(io.BytesIO(data))
        self._user_classes = {code_key(kind): kind for kind in _classes(sig) if _is_user_defined(kind)}

    def persistent_load(self, digest):
        return self._user_classes[digest]


def _dumps(value):
    stream = io.BytesIO()
    _Pickler(stream, protocol=4).dump(value)
    return stream.getvalue()


_providers = {}


def symbol_provider(prefix):
    """Decorate a function that defines symbols with this prefix, unless they are defined: it is called with each one
    that machine code refers to, before the code is loaded."""
    return lambda supply: _providers.setdefault(prefix, supply)


def _define_symbols(symbols):
    for symbol in symbols:
        for prefix, supply in _providers.items():
            if symbol.startswith(prefix):
                supply(symbol)


class Cache(FunctionCache):
    """The cached signatures of one function, for its dispatcher; if the cache fails, the call is compiled."""

    def __init__(self, function, folder):
        self._py_func, self._name, self._folder, self._cache_path = function, repr(function), folder, folder.path
        self.enable()

    def load_overload(self, sig, target_context):
        """Return the compile result that was saved for this signature and CPU, or None."""
        name = self._entry(sig, target_context.codegen())
        data = self._try(self._folder.read, name) if name else None
        try:
            saved, symbols, payload = _Unpickler(data, sig).load() if data else (None, (), None)
            if saved == sig:
                _define_symbols(symbols)
                if any(address_of_symbol(symbol) is None for symbol in symbols):
                    target_context.refresh()  # loads all of Numba's registries: half of the time of a warm call
                return CompileResult._rebuild(target_context, *payload)
        except Exception:  # undamaged, but not for this process: for example a class has moved
            pass
        _log_compiling()
        return None

    def save_overload(self, sig, data):
        """Save a compile result, unless it contains addresses of this process."""
        name = self._entry(sig, data.codegen)
        if name and not data.library.has_dynamic_globals:
            self._try(self._folder.write, name, _dumps((sig, _foreign_symbols(data.library), data._reduce())))

    def flush(self):
        """Disable the cache: a recompilation must not load old code."""
        self.disable()

    def _entry(self, sig, codegen):
        """Return the name of the file: a digest of all that the code depends on, the CPU and its features included."""
        code = self._py_func.__code__
        sources = _source(code.co_filename), *map(_source_of, _classes(sig))
        if not self._enabled or None in sources:
            return None
        place = self._py_func.__module__, self._py_func.__qualname__, code.co_firstlineno, sources
        key = repr((place, self._index_key(sig, codegen), _VERSIONS))
        return f"{code.co_name.strip('<>')}-{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.nbc"

    def _try(self, access, *arguments):
        """Return the result of the access; if it fails, warn once for the whole folder and return None."""
        try:
            return access(*arguments)
        except OSError as error:
            if not self._folder.warned:
                self._folder.warned = True
                refused = isinstance(error, _Refusal)
                path = error.filename if refused else self._folder.path
                problem = error.strerror if refused else f"cannot be used: {error.strerror!r}"
                cure = "set NUMBA_CACHE_DIR to a folder of your own, or each process compiles again"
                warnings.warn(f"kernel cache: {path} {problem}; {cure}", RuntimeWarning, stacklevel=2)
            return None
