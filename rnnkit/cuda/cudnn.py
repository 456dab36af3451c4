"""A ctypes binding of the RNN functions of libcudnn 9: loading, prototypes, errors, handles, descriptors. No policy.

Names, prototypes and numbers are those of cudnn_adv.h, cudnn_ops.h and cudnn_graph.h, which come with the library.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from ctypes import byref, c_char_p, c_double, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from functools import cache
from math import prod
from typing import Any

from rnnkit.common.extras import to_install_extra
from rnnkit.errors import BackendError

STANDARD, PERSIST_STATIC, PERSIST_STATIC_SMALL_H = 0, 1, 3  # cudnnRNNAlgo_t
INFERENCE, TRAINING = 0, 1  # cudnnForwardMode_t
MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # cudnnRNNMode_t
BIASES = {"none": 0, "input": 1, "both": 2, "recurrent": 3}  # cudnnRNNBiasMode_t
INPUT_MODES = {"linear": 0, "skip": 1}  # cudnnRNNInputMode_t
CLIP_MINMAX = 1  # cudnnRNNClipMode_t
SEQ_MAJOR_UNPACKED, SEQ_MAJOR_PACKED = 0, 1  # cudnnRNNDataLayout_t
PADDED_IO_DISABLED = 0  # auxFlags
WGRAD_ADD = 0  # cudnnWgradMode_t; the other one is refused
DEFAULT_MATH, TENSOR_OP_MATH, FMA_MATH = 0, 1, 3  # cudnnMathType_t
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}  # cudnnDataType_t
NOT_SUPPORTED = 3  # thousands of a cudnnStatus_t
KINDS = "RNN", "RNNData", "Tensor", "Dropout"  # of a descriptor

_P, _I, _Z = c_void_p, c_int, c_size_t
_MEMORY = [_Z, _P] * 3

# Prototypes: result type and argument types.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "cudnnGetVersion": (_Z, []),
    "cudnnGetCudartVersion": (_Z, []),
    "cudnnAdvVersionCheck": (_I, []),
    "cudnnGetErrorString": (c_char_p, [_I]),
    "cudnnGetLastErrorString": (None, [_P, _Z]),
    "cudnnSetCallback": (_I, [c_uint, _P, _P]),
    "cudnnGetCallback": (_I, [_P, _P, _P]),
    "cudnnCreate": (_I, [_P]),
    "cudnnSetStream": (_I, [_P, _P]),
    "cudnnSetTensorNdDescriptor": (_I, [_P, _I, _I, _P, _P]),
    "cudnnDropoutGetStatesSize": (_I, [_P, _P]),
    "cudnnSetDropoutDescriptor": (_I, [_P, _P, c_float, _P, _Z, c_ulonglong]),
    "cudnnSetRNNDescriptor_v8": (_I, [_P] + [_I] * 12 + [_P, c_uint]),
    "cudnnRNNSetClip_v9": (_I, [_P, _I, c_double, c_double]),
    "cudnnSetRNNDataDescriptor": (_I, [_P, _I, _I, _I, _I, _I, _P, _P]),
    "cudnnGetRNNWeightSpaceSize": (_I, [_P, _P, _P]),
    "cudnnGetRNNWeightParams": (_I, [_P, _P, _I, _Z, _P, _I, _P, _P, _P, _P]),
    "cudnnGetRNNTempSpaceSizes": (_I, [_P, _P, _I, _P, _P, _P]),
    "cudnnRNNForward": (_I, [_P, _P, _I] + [_P] * 11 + _MEMORY),
    "cudnnRNNBackwardData_v8": (_I, [_P] * 16 + _MEMORY),
    "cudnnRNNBackwardWeights_v8": (_I, [_P, _P, _I] + [_P] * 7 + _MEMORY),
    **{f"cudnn{verb}{kind}Descriptor": (_I, [_P]) for kind in KINDS for verb in ("Create", "Destroy")},
}


class CudnnError(BackendError):
    """A call of cuDNN failed; `status` is the cudnnStatus_t and `function` the name of the function."""

    def __init__(self, text: str, function: str, status: int) -> None:
        super().__init__(text)
        self.function, self.status = function, status


class NotSupportedError(CudnnError):
    """This cuDNN version or this device does not support the request with this algorithm."""


class Library:
    """The functions of a loaded libcudnn; `dll` has one attribute for each of SIGNATURES."""

    def __init__(self, dll: Any) -> None:
        self._functions = {}
        for name, (result, arguments) in SIGNATURES.items():
            try:
                function = getattr(dll, name)
            except AttributeError:
                raise BackendError(f"load: cuDNN version 9 has {name}, but the loaded library does not") from None
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function
        self.version = self.query("cudnnGetVersion")
        if self.version // 10000 != 9:
            raise BackendError(f"load: cuDNN must be of version 9, got {self.version}")
        self.call("cudnnAdvVersionCheck")  # a copy without the RNN functions says so here
        self._callback_lock = threading.Lock()
        self._idle_handles: dict[int, list[int]] = {}

    def query(self, name: str, *arguments: Any) -> Any:
        """Call a function that does not return a status."""
        return self._functions[name](*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; raise CudnnError if it fails."""
        status = self._functions[name](*arguments)
        if status:
            self._fail(name, arguments, status)

    def _fail(self, name: str, arguments: tuple[Any, ...], status: int) -> None:
        reason = self._last_error()
        if not reason and name.startswith(("cudnnSet", "cudnnGet")):
            reason = self._reason(name, arguments)
        title = self.query("cudnnGetErrorString", status).decode()
        text = f"{name}: cuDNN {self.version} returned {title} ({status}); {reason or 'it gives no reason'}"
        raise (NotSupportedError if status // 1000 == NOT_SUPPORTED else CudnnError)(text, name, status)

    def _last_error(self) -> str:
        text = ctypes.create_string_buffer(1024)
        self.query("cudnnGetLastErrorString", text, len(text))
        return " ".join(text.value.decode(errors="replace").split())  # one line

    def _reason(self, name: str, arguments: tuple[Any, ...]) -> str:
        """Repeat a call without side effects, to get the reason of its failure from cuDNN's log.

        cuDNN passes some reasons only to a log callback. There is one callback in a process, so this installs its own
        for this call and then restores the previous one.
        """
        lines: list[str] = []

        def listen(severity: int, data: int, debug: int, message: int) -> None:
            lines.extend(line.partition("Reason: ")[2] for line in _strings(message) if "Reason: " in line)

        callback = ctypes.CFUNCTYPE(None, c_int, c_void_p, c_void_p, c_void_p)(listen)
        with self._callback_lock:
            mask, data, function = c_uint(), c_void_p(), c_void_p()
            self.query("cudnnGetCallback", byref(mask), byref(data), byref(function))
            self.query("cudnnSetCallback", 0b110, None, ctypes.cast(callback, c_void_p))  # errors and warnings
            try:
                self._functions[name](*arguments)
            finally:
                self.query("cudnnSetCallback", mask, data, function)
        return "; ".join(dict.fromkeys(line.strip() for line in lines))

    def new_handle(self, device: int) -> Handle:
        """Return a handle for one thread on the current device, which is number `device`."""
        idle = self._idle_handles.setdefault(device, [])
        try:
            address = idle.pop()
        except IndexError:
            pointer = c_void_p()
            self.call("cudnnCreate", byref(pointer))
            address = pointer.value
        return Handle(self, address, idle)


def _strings(address: int) -> Iterator[str]:
    """Yield the consecutive strings at an address, up to an empty one."""
    while address and (text := ctypes.string_at(address)):
        yield text.decode(errors="replace")
        address += len(text) + 1


class Handle:
    """cuDNN's handle of one thread on one device, and its stream.

    It is never destroyed: destroying waits for the device, which may be gone when a thread or the interpreter ends.
    Another thread reuses it instead.
    """

    def __init__(self, library: Library, address: int, idle: list[int]) -> None:
        self._library, self._stream = library, None
        self._as_parameter_ = c_void_p(address)
        weakref.finalize(self, idle.append, address).atexit = False

    def use(self, stream: int) -> None:
        """Run the following calls on a stream."""
        if stream != self._stream:
            self._library.call("cudnnSetStream", self, stream)
            self._stream = stream


class Descriptor:
    """An opaque object of cuDNN, one of `KINDS`; it is destroyed with this object."""

    def __init__(self, library: Library, kind: str) -> None:
        pointer = c_void_p()
        library.call(f"cudnnCreate{kind}Descriptor", byref(pointer))
        self._as_parameter_ = pointer
        weakref.finalize(self, library.query, f"cudnnDestroy{kind}Descriptor", pointer).atexit = False


def tensor_descriptor(library: Library, dtype: str, shape: Sequence[int]) -> Descriptor:
    """Describe a dense tensor."""
    descriptor, count = Descriptor(library, "Tensor"), len(shape)
    strides = [prod(shape[axis + 1 :]) for axis in range(count)]
    kind = c_int * count
    library.call("cudnnSetTensorNdDescriptor", descriptor, DTYPES[dtype], count, kind(*shape), kind(*strides))
    return descriptor


def sequences_descriptor(
    library: Library, dtype: str, layout: int, seq_len: int, lengths: Sequence[int], size: int
) -> Descriptor:
    """Describe a batch of sequences of vectors of `size`; cuDNN copies the lengths."""
    descriptor, count = Descriptor(library, "RNNData"), len(lengths)
    padding = c_double(0)  # eight bytes of zeros are a 0 in every dtype
    library.call(
        "cudnnSetRNNDataDescriptor",
        descriptor,
        DTYPES[dtype],
        layout,
        seq_len,
        count,
        size,
        (c_int * count)(*lengths),
        byref(padding),
    )
    return descriptor


@cache
def load() -> Library:
    """Load libcudnn 9: the file in RNNKIT_CUDNN, else the one that the process has loaded, else an installed one."""
    if not hasattr(os, "RTLD_NOLOAD"):
        raise BackendError(f"load: cuDNN is bound on Linux only, got {sys.platform}")
    named = os.environ.get("RNNKIT_CUDNN")
    if named:
        try:
            return Library(ctypes.CDLL(named))
        except OSError as error:
            raise _unusable(named, error) from None
    try:  # two copies in one process would conflict: share the one that, for example, PyTorch has loaded
        return Library(ctypes.CDLL(_SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW))
    except OSError:
        pass
    for path in _candidates():
        if path == _SONAME or os.path.exists(path):
            try:
                return Library(ctypes.CDLL(path))
            except OSError as error:
                if path != _SONAME:  # a file that exists must load; the bare name may be missing
                    raise _unusable(path, error) from None
    cure = f"{to_install_extra('cuda13')}, for CUDA 12 cuda12, or set RNNKIT_CUDNN to its path"
    raise BackendError(f"load: {_SONAME} is not installed; {cure}")


_SONAME = "libcudnn.so.9"


def _candidates() -> Iterator[str]:
    """Yield paths of the library: wheels of this Python, a conda environment, the system, CUDNN_PATH."""
    nvidia = importlib.util.find_spec("nvidia")
    for root in (nvidia and nvidia.submodule_search_locations) or ():
        yield os.path.join(root, "cudnn", "lib", _SONAME)
    if "CONDA_PREFIX" in os.environ:
        yield os.path.join(os.environ["CONDA_PREFIX"], "lib", _SONAME)
    yield _SONAME
    if "CUDNN_PATH" in os.environ:
        yield os.path.join(os.environ["CUDNN_PATH"], "lib", _SONAME)


def _unusable(path: str, error: OSError) -> BackendError:
    return BackendError(f"load: cuDNN library {path} cannot be loaded: {error}")
