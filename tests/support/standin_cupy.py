"""A stand-in for CuPy: its arrays are around NumPy's, on pretended GPUs. What CuPy refuses, it refuses.

Install it as `sys.modules["cupy"]`. It has what rnnkit's GPU engine uses, nothing more.
"""

import ctypes
import threading
import types
import weakref
from collections import defaultdict
from typing import NamedTuple

import numpy as np
from standin_kernels import HANDLE
from standin_kernels import RawModule as RawModule

ALIGNMENT = 512  # bytes, as CuPy's memory pool has it
GARBAGE = 0xFF  # of every byte of new memory: NaN in every floating-point type


class Kind(NamedTuple):
    """Of a device; by default an H100."""

    compute_capability: str = "90"
    processors: int = 132


kinds = defaultdict(Kind)  # of the devices by their numbers: a test may pretend any other


class Device:
    synchronized = 0

    def __init__(self, number=None):
        self.id = here.device if number is None else int(number)
        self.before = []

    @property
    def compute_capability(self):
        return kinds[self.id].compute_capability

    @property
    def attributes(self):
        return {"MultiProcessorCount": kinds[self.id].processors}

    @property
    def cublas_handle(self):
        return HANDLE

    def synchronize(self):
        Device.synchronized += 1

    def __eq__(self, other):
        return self.id == other.id

    def __enter__(self):
        self.before.append(here.device)
        here.device = self.id

    def __exit__(self, *error):
        here.device = self.before.pop()


class Graph:
    def __init__(self, recorded):
        self.recorded, self.launches = recorded, 0

    def launch(self):
        assert not here.stream.is_capturing()
        self.launches += 1
        for run in self.recorded:
            run()


class Stream:
    count = 0

    def __init__(self, ptr=None, non_blocking=False):
        Stream.count += 1
        self.ptr, self.recorded = Stream.count << 8 if ptr is None else ptr, None

    def is_capturing(self):
        return self.recorded is not None

    def begin_capture(self):
        assert self.ptr, "the default stream cannot be captured"
        self.recorded = []

    def end_capture(self):
        recorded, self.recorded = self.recorded, None
        return Graph(recorded)

    def __enter__(self):
        self.before, here.stream = here.stream, self

    def __exit__(self, *error):
        here.stream = self.before


def run_or_record(run):
    """Run a kernel, or record it if the current stream is being captured."""
    here.stream.recorded.append(run) if here.stream.is_capturing() else run()


class Here(threading.local):
    """What each thread has of its own."""

    device, stream = 0, Stream(0)


here = Here()


class Pointer:
    def __init__(self, address):
        self.ptr = address


class ndarray:  # noqa: N801
    """What rnnkit uses of cupy.ndarray, around a NumPy array. It does not mix with NumPy's arrays."""

    __hash__ = None

    def __init__(self, values, number=None):
        self.values, self.number = values, here.device if number is None else number

    def __array__(self, *args, **kwargs):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def _like(self, values):
        """A view, or what was computed in new memory of CuPy's."""
        view = values.size == 0 or np.may_share_memory(values, self.values)
        return ndarray(values if view else asarray(values).values, self.number)

    def __getitem__(self, index):
        return self._like(self.values[plain(index)])

    def __setitem__(self, index, value):
        self.values[plain(index)] = plain(value)

    def __ge__(self, other):
        return self._like(self.values >= plain(other))

    def __le__(self, other):
        return self._like(self.values <= plain(other))

    def __gt__(self, other):
        return self._like(self.values > plain(other))

    def __lt__(self, other):
        return self._like(self.values < plain(other))

    def __or__(self, other):
        return self._like(self.values | plain(other))

    def __iadd__(self, other):
        self.values += plain(other)
        return self

    def __and__(self, other):
        return self._like(self.values & plain(other))

    def __mul__(self, other):
        return self._like(self.values * plain(other))

    def sum(self, axis, keepdims=False):
        return asarray(self.values.sum(axis, keepdims=keepdims))

    def astype(self, dtype):
        return asarray(self.values.astype(dtype))

    def __len__(self):
        return len(self.values)

    def __getattr__(self, name):
        if name in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "flags", "strides"):
            return getattr(self.values, name)
        raise AttributeError(name)

    def reshape(self, *shape):
        return self._like(self.values.reshape(*shape))

    def view(self, dtype):
        return self._like(self.values.view(dtype))

    def swapaxes(self, a, b):
        return self._like(self.values.swapaxes(a, b))

    def copy(self, order="C"):
        return asarray(self.values.copy(order))

    @property
    def data(self):
        return Pointer(self.values.ctypes.data if self.size else 0)

    @property
    def device(self):
        return Device(self.number)

    def get(self):
        return self.values.copy()

    def fill(self, value):
        self.values.fill(value)


def plain(value):
    """Indices and values as NumPy takes them; its own arrays are refused."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, np.ndarray):
        raise TypeError("Unsupported type <class 'numpy.ndarray'>")
    return value.values if isinstance(value, ndarray) else value


allocations = {}  # {address: bytes} of what is in use


def assert_allocated(address, nbytes):
    """Raise unless all the bytes are of one allocation."""
    known = any(start <= address and address + nbytes <= start + size for start, size in list(allocations.items()))
    assert known, f"{nbytes} bytes at {address:#x} are not, or no longer, CuPy's"


def empty(shape, dtype=np.float64):
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    room = np.full(nbytes + ALIGNMENT, GARBAGE, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    address = room.ctypes.data + start
    allocations[address] = nbytes
    weakref.finalize(room, allocations.pop, address).atexit = False
    return ndarray(room[start : start + nbytes].view(dtype).reshape(shape))


def zeros(shape, dtype=np.float64):
    array = empty(shape, dtype)
    array[...] = 0
    return array


def asarray(values):
    if isinstance(values, ndarray):
        return values
    values = np.asarray(values)
    array = empty(values.shape, values.dtype)
    array.values[...] = values
    return array


def asnumpy(array):
    return array.get() if isinstance(array, ndarray) else np.asarray(array)


def empty_like(array):
    return empty(array.shape, array.dtype)


def ascontiguousarray(array):
    return array if array.flags.c_contiguous else asarray(array.values)


def where(condition, yes, no):
    return asarray(np.where(condition.values, plain(yes), plain(no)))


def concatenate(arrays, axis):
    return asarray(np.concatenate([one.values for one in arrays], axis))


def split(array, count, axis):
    return [array._like(one) for one in np.split(array.values, count, axis)]


def clip(array, low, high):
    if array.dtype.name == "bfloat16":
        raise TypeError("Wrong type (bfloat16) of arguments for cupy_clip")
    return asarray(np.clip(array.values, low, high))


def byte_bounds(array):
    return np.lib.array_utils.byte_bounds(array.values)


def may_share_memory(a, b):
    """As CuPy has it: by bounds, and between views of one allocation of CuPy's only."""
    return _allocation(a.values) is _allocation(b.values) and np.may_share_memory(a.values, b.values)


def _allocation(values):
    while isinstance(values.base, np.ndarray):
        values = values.base
    return values


def from_dlpack(array):
    """The same memory as another library hands it over: not one of CuPy's allocations."""
    values = array.values
    whole = (ctypes.c_char * values.nbytes).from_address(values.ctypes.data)
    return ndarray(np.frombuffer(whole, values.dtype).reshape(values.shape), array.number)


freed = []


def get_default_memory_pool():
    return types.SimpleNamespace(total_bytes=lambda: 1 << 20, free_all_blocks=lambda: freed.append("all"))


cuda = types.SimpleNamespace(
    Device=Device,
    Stream=Stream,
    is_available=lambda: True,
    get_current_stream=lambda: here.stream,
    runtime=types.SimpleNamespace(runtimeGetVersion=lambda: 13020, getDevice=lambda: here.device),
)
