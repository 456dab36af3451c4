"""Memory between guard pages: NumPy's own allocations, and the forms in which an argument may lie there.

A read or write past either end ends the process. What is not written yet is NaN, in every array that NumPy makes,
scratch of the engine's included (a memory handler, NEP 49). Use it in a process of its own.
"""

import atexit
import ctypes
import mmap
from contextlib import contextmanager

import numba
import numpy as np
from numba import types

PAGE = mmap.PAGESIZE
_PRIVATE_ANONYMOUS, _READ_WRITE, _NONE, _FAILED = 0x22, 3, 0, ctypes.c_void_p(-1).value
_SET_HANDLER = 304  # of NumPy's C interface, PyDataMem_SetHandler
_FILL = 0xFF  # all bits set is a NaN in every float

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_Malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_Calloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_Realloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_munmap = types.ExternalFunction("munmap", types.int32(types.intp, types.intp))


@numba.cfunc(types.void(types.voidptr, types.intp, types.intp), cache=True)
def _free(_, address, size):
    """In machine code: NumPy also frees while an exception is on its way, where no Python code may run."""
    if address:
        between = -(-max(size, 1) // PAGE) * PAGE
        _munmap(address // PAGE * PAGE - 2 * PAGE, between + 3 * PAGE)


class _Handler(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("context", ctypes.c_void_p),
        ("malloc", _Malloc), ("calloc", _Calloc), ("realloc", _Realloc), ("free", ctypes.c_void_p),
    ]  # fmt: skip


class _Guard:
    """Allocates with a page without access before and behind; what it gives touches one of them.

    In front of these stands a page with the size: a table here would grow, since `_free` cannot take anything out.
    """

    def __init__(self):
        self.at_end, self.bytes = True, 0

    def malloc(self, _, size):
        return self.allocate(size, _FILL)

    def calloc(self, _, count, size):
        return self.allocate(count * size, 0)

    def allocate(self, size, fill):
        between = -(-max(size, 1) // PAGE) * PAGE
        start = _libc.mmap(None, between + 3 * PAGE, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
        if start == _FAILED:
            return None
        ctypes.c_size_t.from_address(start).value = size
        _libc.mprotect(start + PAGE, PAGE, _NONE)
        _libc.mprotect(start + 2 * PAGE + between, PAGE, _NONE)
        if fill:
            ctypes.memset(start + 2 * PAGE, fill, between)
        self.bytes += size
        return start + 2 * PAGE + (between - size if self.at_end else 0)

    def realloc(self, _, address, size):
        new = self.allocate(size, _FILL)
        if address and new:
            old = ctypes.c_size_t.from_address(address // PAGE * PAGE - 2 * PAGE).value
            ctypes.memmove(new, address, min(size, old))
            _free.ctypes(None, address, old)
        return new


guard = _Guard()
_handler = _Handler(
    b"guard pages", 1, None, _Malloc(guard.malloc), _Calloc(guard.calloc), _Realloc(guard.realloc), _free.address
)


def _set_handler():
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = pointer(np._core._multiarray_umath._ARRAY_API, None)
    address = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[_SET_HANDLER]
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address)


def _capsule():
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(_handler), b"mem_handler", None)


@contextmanager
def guard_pages():
    """Within it, every array that this thread makes lies between guard pages."""
    set_handler = _set_handler()
    before = set_handler(_capsule())
    try:
        assert np.isnan(np.empty(3)).all(), "the handler is not in use"
        yield
    finally:
        set_handler(before)


@atexit.register
def _leave():
    """What still lives is not freed: no callback works while the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_handler))
    _handler.free = ctypes.cast(_libc.abs, ctypes.c_void_p)  # a function that does nothing with its arguments


def _filled(array, values):
    array[...] = values
    return array


def _touching(values, at_end, offset=0):
    """The values at a guard page, or so many bytes away from it."""
    before, guard.at_end = guard.at_end, at_end
    raw = np.empty(values.nbytes + offset, np.uint8)
    guard.at_end = before
    part = raw[: values.nbytes] if at_end else raw[offset:]
    return _filled(part.view(values.dtype).reshape(values.shape), values)


def _gaps(values, axis):
    shape = list(values.shape)
    shape[axis] = max(2 * shape[axis] - 1, 0)
    index = [slice(None)] * values.ndim
    index[axis] = slice(None, None, 2)
    return _filled(np.empty(shape, values.dtype)[tuple(index)], values)


def _reversed(values, axes):
    return np.flip(np.flip(values, axes).copy(), axes)


def _broadcast(values, rng):
    """The first of the values along some axes, with stride 0: the only form that changes what the values are."""
    first = tuple(slice(0, 1) if rng.random() < 0.5 else slice(None) for _ in values.shape)
    return np.broadcast_to(values[first].copy(), values.shape) if values.size else values


def _read_only(values):
    found = _touching(values, True)
    found.flags.writeable = False
    return found


def _window(values):
    around = np.empty([size + 3 for size in values.shape], values.dtype)
    return _filled(around[tuple(slice(1, -2) for _ in values.shape)], values)


def _misaligned(values, rng, at_end):
    return _touching(values, at_end, int(rng.integers(1, max(values.itemsize, 2))))


# The first ones are contiguous, as a weight buffer has to be.
CONTIGUOUS = {
    "plain": lambda values, rng: values.copy(),
    "at the end": lambda values, rng: _touching(values, True),
    "at the start": lambda values, rng: _touching(values, False),
    "misaligned at the end": lambda values, rng: _misaligned(values, rng, True),
    "misaligned at the start": lambda values, rng: _misaligned(values, rng, False),
    "read-only": lambda values, rng: _read_only(values),
}
FORMS = CONTIGUOUS | {
    "Fortran": lambda values, rng: np.asfortranarray(values.copy()),
    "batch-major": lambda values, rng: values.swapaxes(0, -2 % values.ndim).copy().swapaxes(0, -2 % values.ndim),
    "gaps in the last axis": lambda values, rng: _gaps(values, -1),
    "gaps in the first axis": lambda values, rng: _gaps(values, 0),
    "reversed": lambda values, rng: _reversed(values, tuple(range(values.ndim))),
    "first axis reversed": lambda values, rng: _reversed(values, 0),
    "broadcast": _broadcast,
    "window": lambda values, rng: _window(values),
}


def place(values, rng, forms=FORMS):
    """The values in memory of one of the forms, and the form's name."""
    form = str(rng.choice(list(forms)))
    guard.at_end = bool(rng.random() < 0.7)
    return forms[form](np.asarray(values), rng), form


def root(array):
    """The array that owns the memory, gaps included."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def snapshot(values):
    """The bytes of all arrays, with what lies between their elements."""
    return [root(value).tobytes() for value in values if isinstance(value, np.ndarray)]


def poison(workspace):
    """Fill what a workspace's memory has put by for later calls with NaN; its arrays are void then.

    That is what a copy of the memory would hold: laid-out calls refer to row numbers, which are everybody's.
    """
    found = {id(root(array)): root(array) for array in _arrays(workspace.memory.arena.__getstate__())}
    for array in found.values():
        array.view(np.uint8)[...] = _FILL
    return len(found)


def _arrays(value):
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _arrays(one)
