"""cuDNN handle, algorithm and descriptors of a call, cached per thread and device."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from ctypes import byref, c_size_t, c_void_p
from functools import lru_cache, partial
from typing import Any, NamedTuple

import cupy
import numpy as np

from rnnkit.cuda import cudnn
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.weights import start_of_initial_states, weight_layout
from rnnkit.errors import BackendError

_SHAPES = 64  # shapes of batches whose descriptors a thread caches
# Largest hidden_size for the algorithm that keeps the weights of a small layer on the chip, from PyTorch's measurements
# (aten/src/ATen/native/cudnn/RNN.cpp). Forward and backward of a training step use one algorithm; the limit is that of
# backward.
_SMALL_INFERENCE, _SMALL_TRAINING = (192, 384), (128, 256)  # with several gates, with one


class Shape(NamedTuple):
    """A dense batch: no empty sequences, and different lengths only in the packed layout."""

    layout: int
    seq_len: int
    lengths: tuple[int, ...]


class NetworkDescriptors(NamedTuple):
    """An RNN descriptor, and the objects that it refers to."""

    rnn: cudnn.Descriptor
    dropout: cudnn.Descriptor | None
    states: Any  # of the random generator of dropout


class Setup(NamedTuple):
    """The algorithm and the descriptors of a call, and the bytes of its workspace and of its reserve space."""

    algorithm: int
    network: NetworkDescriptors
    x: cudnn.Descriptor
    y: cudnn.Descriptor
    hidden: cudnn.Descriptor
    cell: cudnn.Descriptor | None
    work_nbytes: int
    reserve_nbytes: int


class Context:
    """cuDNN for one thread on one device."""

    def __init__(self, device: int) -> None:
        self.library = cudnn.load()
        cudnn_cuda, cupy_cuda = self.library.query("cudnnGetCudartVersion"), cupy.cuda.runtime.runtimeGetVersion()
        if cudnn_cuda // 1000 != cupy_cuda // 1000:
            built = f"cuDNN was built for CUDA {cudnn_cuda // 1000} and CuPy for CUDA {cupy_cuda // 1000}"
            text = f"{built}: install matching packages"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        self._handle = self.library.new_handle(device)
        found = cupy.cuda.Device(device)
        self._capability = int(found.compute_capability)  # 90 for 9.0
        self._processors = found.attributes["MultiProcessorCount"]
        self._refused: set[tuple[Any, ...]] = set()
        # Weak proxies avoid a reference cycle, which would return a thread's handle only when it is collected.
        self._cached_network = lru_cache(_SHAPES)(partial(Context._network, weakref.proxy(self)))
        self._cached_setup = lru_cache(_SHAPES)(partial(Context._setup, weakref.proxy(self)))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function whose first argument is the handle, on CuPy's current stream."""
        self._handle.use(cupy.cuda.get_current_stream().ptr)
        self.library.call(name, self._handle, *arguments)

    def run(self, desc: RNNDescriptor, shape: Shape, mode: int, seed: int | None, call: Callable[[Setup], Any]) -> Any:
        """Call with the setup of the fastest algorithm. If cuDNN refuses it, before any work, use the standard one.

        `seed` is the seed of dropout between layers, None without dropout.
        """
        refused = (desc, shape, mode) in self._refused
        algorithm = cudnn.STANDARD if refused else self._algorithm(desc, shape, mode)
        setup = self._cached_setup if seed is None else partial(self._setup, seed=seed)
        try:
            return call(setup(desc, shape, mode, algorithm))
        except cudnn.NotSupportedError:
            if algorithm == cudnn.STANDARD:
                raise
        self.refuse(desc, shape, mode)
        return call(setup(desc, shape, mode, cudnn.STANDARD))

    def refuse(self, desc: RNNDescriptor, shape: Shape, mode: int) -> None:
        """Use the standard algorithm for these calls from now on."""
        self._refused.add((desc, shape, mode))

    def _algorithm(self, desc: RNNDescriptor, shape: Shape, mode: int) -> int:
        """Choose an algorithm as PyTorch does, but the same one for forward and backward of a training step.

        The kernels of small layers do not support float64 and bfloat16, and their handling of skip input and cell clip
        is undocumented. In float32 their results deviate by about 5e-6, the standard ones by 2e-7, and they take a
        third to a tenth of the time (measured on an H200; docs/how-to/gpu.md).
        """
        supported = desc.dtype in ("float32", "float16")
        plain = desc.bias == "both" and desc.input_mode == "linear" and not desc.projected and desc.cell_clip is None
        if not supported or not plain or shape.layout == cudnn.SEQ_MAJOR_PACKED:
            return cudnn.STANDARD
        limit = (_SMALL_TRAINING if mode == cudnn.TRAINING else _SMALL_INFERENCE)[desc.num_gates == 1]
        if self._capability >= 60 and desc.hidden_size <= limit:
            return cudnn.PERSIST_STATIC_SMALL_H
        return cudnn.PERSIST_STATIC if self._persists(desc, shape) else cudnn.STANDARD

    def _persists(self, desc: RNNDescriptor, shape: Shape) -> bool:
        """Return whether the algorithm with weights in registers pays, by PyTorch's rule for Ampere and later."""
        multiples = desc.hidden_size % 128 == 0 and desc.input_size % 128 == 0 and desc.hidden_size <= 1024
        if desc.dtype != "float16" or desc.num_pseudo_layers > 1 or not multiples or desc.mode == "gru":
            return False
        if self._capability < 80 or self._capability % 10 == 6 or self._processors < 98:
            return False
        batch = len(shape.lengths)
        fits = desc.mode == "lstm" or batch < 96 or desc.hidden_size < 896
        return batch % 8 == 0 and batch <= 128 and fits

    def _setup(self, desc: RNNDescriptor, shape: Shape, mode: int, algorithm: int, seed: int | None = None) -> Setup:
        library, count = self.library, len(shape.lengths)
        network = self._cached_network(desc, algorithm) if seed is None else self._network(desc, algorithm, seed)

        def sequences(size: int) -> cudnn.Descriptor:
            return cudnn.sequences_descriptor(library, desc.dtype, *shape, size)

        def states(size: int) -> cudnn.Descriptor:
            return cudnn.tensor_descriptor(library, desc.dtype, (desc.num_pseudo_layers, count, size))

        x, y = sequences(desc.input_size), sequences(desc.num_directions * desc.output_size)
        work, reserve = c_size_t(), c_size_t()
        self.call("cudnnGetRNNTempSpaceSizes", network.rnn, mode, x, byref(work), byref(reserve))
        cell = states(desc.hidden_size) if desc.has_cell_state else None
        hidden = states(desc.output_size)
        return Setup(algorithm, network, x, y, hidden, cell, work.value, reserve.value)

    def _network(self, desc: RNNDescriptor, algorithm: int, seed: int | None = None) -> NetworkDescriptors:
        """Create the descriptor of the network; with a seed, it has dropout with a freshly seeded generator."""
        dropout, states = None, None
        if seed is not None:
            self._cached_network(desc, algorithm)  # which checks the layout
            dropout, states = self._dropout(desc.dropout, seed)
        rnn = cudnn.Descriptor(self.library, "RNN")
        self.library.call(
            "cudnnSetRNNDescriptor_v8",
            rnn,
            algorithm,
            cudnn.MODES[desc.mode],
            cudnn.BIASES[desc.bias],
            int(desc.bidirectional),
            cudnn.INPUT_MODES[desc.input_mode],
            cudnn.DTYPES[desc.dtype],
            cudnn.DTYPES["float64"] if desc.dtype == "float64" else cudnn.DTYPES["float32"],
            _math(desc),
            desc.input_size,
            desc.hidden_size,
            desc.output_size,
            desc.num_layers,
            dropout,
            cudnn.PADDED_IO_DISABLED,
        )
        if desc.cell_clip is not None:
            self.library.call("cudnnRNNSetClip_v9", rnn, cudnn.CLIP_MINMAX, *desc.cell_clip)
        if seed is None:
            self._check_layout(desc, rnn)
        return NetworkDescriptors(rnn, dropout, states)

    def _dropout(self, probability: float, seed: int) -> tuple[cudnn.Descriptor, Any]:
        size, dropout = c_size_t(), cudnn.Descriptor(self.library, "Dropout")
        self.call("cudnnDropoutGetStatesSize", byref(size))
        states = cupy.empty(size.value, np.uint8)
        self._handle.use(cupy.cuda.get_current_stream().ptr)
        arguments = probability, states.data.ptr, size.value, seed
        self.library.call("cudnnSetDropoutDescriptor", dropout, self._handle, *arguments)
        return dropout, states

    def _check_layout(self, desc: RNNDescriptor, rnn: cudnn.Descriptor) -> None:
        """Raise unless the size of the weights and the start of the last matrix in cuDNN are as in `weight_layout`."""
        size, matrix, bias = c_size_t(), c_void_p(), c_void_p()
        self.call("cudnnGetRNNWeightSpaceSize", rnn, byref(size))
        last = [block for block in weight_layout(desc) if block.name.startswith("weight_hh")][-1]
        kinds = [cudnn.Descriptor(self.library, "Tensor") for _ in range(2)]
        start = 1 << 20  # any address but 0, which means an absent matrix
        self.call(
            "cudnnGetRNNWeightParams",
            rnn,
            desc.num_pseudo_layers - 1,
            size.value,
            start,
            desc.num_gates,
            kinds[0],
            byref(matrix),
            kinds[1],
            byref(bias),
        )
        itemsize = desc.np_dtype.itemsize
        expected = start_of_initial_states(desc) * itemsize, last.start * itemsize
        found = size.value, (matrix.value or 0) - start
        if found != expected:
            text = f"the weights must have (bytes, first byte of {last.name}) {expected}, got {found}"
            raise BackendError(f"cudnnGetRNNWeightParams: {text}")


def _math(desc: RNNDescriptor) -> int:
    """Return the cudnnMathType_t: how inputs of matrix products may be rounded."""
    if desc.dtype in ("float16", "bfloat16"):
        return cudnn.TENSOR_OP_MATH
    return cudnn.DEFAULT_MATH if desc.dtype == "float64" or desc.allow_tf32 else cudnn.FMA_MATH


_of_this_thread = threading.local()


def context() -> Context:
    """Return the context of this thread on CuPy's current device."""
    device = cupy.cuda.runtime.getDevice()
    contexts = _of_this_thread.__dict__
    if device not in contexts:
        contexts[device] = Context(device)
    return contexts[device]
