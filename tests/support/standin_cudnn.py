"""A stand-in for libcudnn 9 that computes in NumPy, by the rules of NVIDIA, and refuses what the library refuses.

Every function is called through ctypes with the prototype of the binding, so a wrong number or type of an argument is
an error here as there. Addresses are those of host memory. Here is what needs no arrays; the rest is in
`standin_compute` and `standin_network`. Nothing of the engine computes.
"""

import ctypes
import itertools
from ctypes import c_double, c_int, c_size_t, c_uint
from types import SimpleNamespace

import numpy as np
from standin_compute import Computing
from standin_memory import DTYPES, device_array, host_array, put, weight_blocks
from standin_rules import (
    BIASES,
    EXECUTION_FAILED,
    LISTENER,
    MODES,
    NOT_SUPPORTED,
    NULL_POINTER,
    PACKED,
    PERSIST_STATIC,
    PRECISIONS,
    SMALL_H,
    STANDARD,
    STATES_NBYTES,
    SUCCESS,
    WORK_NBYTES,
    Refusal,
    require,
)

from rnnkit.cuda.cudnn import SIGNATURES


class CudnnStandIn(Computing):
    """`calls` lists what ran, `streams` on which stream, `algorithms` how a network ran, `seeds` those of dropout,
    `refusals` what was refused, and `errors` what no caller may do.

    The `unsupported` algorithms are refused, by all functions or by one in pairs (function, algorithm). While it is
    `idle`, a call is checked and computes nothing.
    """

    def __init__(self):
        self.version = 91900
        self.objects, self.numbers = {}, itertools.count(1)
        self.calls, self.streams, self.seeds, self.algorithms = [], [], [], []
        self.errors, self.refusals, self.reason, self.idle = [], [], b"", False
        self.callback, self.forwards = None, {}
        self.unsupported = set()
        self.current_stream = self.current_device = lambda: 0

    def dll(self, signatures=SIGNATURES):
        """An object with one ctypes function for each of the signatures."""
        return SimpleNamespace(**{name: self._function(name, *signatures[name]) for name in signatures})

    def _function(self, name, result, arguments):
        method = getattr(self, name)

        def call(*args):
            try:
                if result is ctypes.c_int and "Callback" not in name:
                    self.reason = b""
                found = method(*args)
                return SUCCESS if found is None else found
            except Refusal as refusal:
                self.refusals.append(name)
                # Why something is not supported, cuDNN tells a callback alone.
                if refusal.status != NOT_SUPPORTED:
                    self.reason = str(refusal).encode()
                elif self.callback:
                    text = ctypes.create_string_buffer(b"Reason: " + str(refusal).encode() + b"\0\0")
                    LISTENER(self.callback)(2, None, None, ctypes.addressof(text))
                return refusal.status
            except Exception as error:  # ctypes would lose it
                self.errors.append(f"{name}: {type(error).__name__}: {error}")
                return EXECUTION_FAILED

        kind = ctypes.c_void_p if result is ctypes.c_char_p else result
        return ctypes.CFUNCTYPE(kind, *arguments)(call)

    # Versions and errors

    def cudnnGetVersion(self):
        return self.version

    def cudnnGetCudartVersion(self):
        return 13010

    def cudnnAdvVersionCheck(self):
        return SUCCESS

    def cudnnGetErrorString(self, status):
        names = {2: b"CUDNN_STATUS_BAD_PARAM", 3: b"CUDNN_STATUS_NOT_SUPPORTED"}
        self.text = ctypes.create_string_buffer(names.get(status // 1000, b"CUDNN_STATUS_OTHER"))
        return ctypes.addressof(self.text)

    def cudnnGetLastErrorString(self, address, size):
        ctypes.memmove(address, self.reason + b"\0", len(self.reason) + 1)

    def cudnnSetCallback(self, mask, data, function):
        self.callback = function

    def cudnnGetCallback(self, mask, data, function):
        put(function, c_size_t(0))

    # Handles and descriptors

    def _new(self, address, value):
        number = next(self.numbers) << 8
        self.objects[number] = value
        put(address, c_size_t(number))

    def _known(self, number, kind):
        require(number, f"!{kind}", NULL_POINTER)
        found = self.objects.get(number)
        assert found is not None and found.kind == kind, f"{number} is no {kind}"
        return found

    def cudnnCreate(self, address):
        self._new(address, SimpleNamespace(kind="handle", stream=None, device=self.current_device()))

    def cudnnSetStream(self, handle, stream):
        self._known(handle, "handle").stream = stream or 0

    def _on_stream(self, name, handle):
        found = self._known(handle, "handle")
        assert found.stream == self.current_stream(), "not on CuPy's current stream"
        assert found.device == self.current_device(), "the handle is of another device than CuPy's current one"
        self.calls.append(name)
        self.streams.append(found.stream)

    def _creates(kind):
        return lambda self, address: self._new(address, SimpleNamespace(kind=kind))

    cudnnCreateRNNDescriptor, cudnnCreateRNNDataDescriptor = _creates("RNN"), _creates("RNNData")
    cudnnCreateTensorDescriptor, cudnnCreateDropoutDescriptor = _creates("Tensor"), _creates("Dropout")

    def _destroy(self, number):
        del self.objects[number]

    cudnnDestroyRNNDescriptor = cudnnDestroyRNNDataDescriptor = _destroy
    cudnnDestroyTensorDescriptor = cudnnDestroyDropoutDescriptor = _destroy

    def cudnnSetTensorNdDescriptor(self, number, dtype, count, dims, strides):
        tensor = self._known(number, "Tensor")
        tensor.dtype, tensor.shape = dtype, tuple(host_array(dims, count, np.int32).tolist())
        expected = np.cumprod([1, *tensor.shape[:0:-1]])[::-1]
        require((host_array(strides, count, np.int32) == expected).all(), "the tensor is not dense")
        tensor.strides = expected

    def cudnnGetTensorNdDescriptor(self, number, wanted, dtype, count, dims, strides):
        tensor = self._known(number, "Tensor")
        put(dtype, c_int(tensor.dtype))
        put(count, c_int(len(tensor.shape)))
        host_array(dims, wanted, np.int32)[:] = tensor.shape[:wanted]
        host_array(strides, wanted, np.int32)[:] = tensor.strides[:wanted]

    def cudnnDropoutGetStatesSize(self, handle, size):
        self._known(handle, "handle")
        put(size, c_size_t(STATES_NBYTES))

    def cudnnSetDropoutDescriptor(self, number, handle, probability, states, nbytes, seed):
        self._on_stream("cudnnSetDropoutDescriptor", handle)
        require(nbytes >= STATES_NBYTES, "states are too small")
        dropout = self._known(number, "Dropout")
        dropout.probability, dropout.states = probability, states
        self.seeds.append(seed)
        device_array(states, 2, np.uint64)[:] = seed, 0

    def cudnnSetRNNDescriptor_v8(
        self,
        number,
        algorithm,
        mode,
        bias,
        direction,
        input_mode,
        dtype,
        precision,
        math,
        input_size,
        hidden_size,
        proj_size,
        layers,
        dropout,
        flags,
    ):
        rnn = self._known(number, "RNN")
        require(min(input_size, hidden_size, layers) >= 1 and flags in (0, 1), "a size is below 1")
        require(proj_size > 0, "projSize <= 0")
        standard = algorithm == STANDARD
        require((dtype, precision) in PRECISIONS, "dataType and mathPrec", NOT_SUPPORTED)
        require(BIASES[bias] == "both" or standard, "biasMode != CUDNN_RNN_DOUBLE_BIAS", NOT_SUPPORTED)
        require(dtype != 1 or algorithm not in (PERSIST_STATIC, SMALL_H), "float64", NOT_SUPPORTED)
        require(proj_size <= hidden_size, "projSize > hiddenSize", NOT_SUPPORTED)
        projected = proj_size != hidden_size
        require(not projected or (MODES[mode] == "lstm" and standard), "projSize", NOT_SUPPORTED)
        rnn.numbers = algorithm, mode, bias, direction, input_mode, dtype, precision, math, input_size, hidden_size
        rnn.numbers += proj_size, layers
        rnn.algorithm, rnn.math, rnn.padded, rnn.clip = algorithm, math, bool(flags), None
        rnn.dropout = self._known(dropout, "Dropout") if dropout else None
        sizes = dict(input_size=input_size, hidden_size=hidden_size, num_layers=layers, bidirectional=bool(direction))
        kinds = dict(mode=MODES[mode], bias=BIASES[bias], input_mode=("linear", "skip")[input_mode])
        rnn.fields = kinds | sizes | {"proj_size": proj_size if projected else None}
        rnn.dtype = dtype

    def cudnnRNNSetClip_v9(self, number, mode, low, high):
        require(low <= high, "lclip > rclip")
        self._known(number, "RNN").clip = (low, high) if mode else None

    def cudnnGetRNNDescriptor_v8(self, number, *addresses):
        rnn = self._known(number, "RNN")
        for address, value in zip(addresses, rnn.numbers, strict=False):
            put(address, c_int(value))
        put(addresses[-2], c_size_t(0))  # no descriptor with dropout is read back
        put(addresses[-1], c_uint(rnn.padded))

    def cudnnRNNGetClip_v9(self, number, mode, low, high):
        clip = self._known(number, "RNN").clip
        put(mode, c_int(clip is not None))
        put(low, c_double(clip[0]))
        put(high, c_double(clip[1]))

    def cudnnSetRNNDataDescriptor(self, number, dtype, layout, seq_len, batch, size, lengths, padding):
        data = self._known(number, "RNNData")
        require(min(seq_len, batch, size) > 0 and lengths, "a size is 0")
        require(seq_len <= 65535, "maxSeqLength > (0x7fff * 2 + 1)", NOT_SUPPORTED)
        found = host_array(lengths, batch, np.int32).copy()
        require(found.min() >= 0 and found.max() <= seq_len, "a length is out of range")
        if layout == PACKED:
            require((np.diff(found) <= 0).all(), "isSortedSequences == false")
            require(found.min() > 0, "minSeqLengthInArray == 0")
            require(found.max() == seq_len, "maxSeqLength")
        data.dtype, data.layout, data.seq_len, data.lengths, data.size = dtype, layout, seq_len, found, size
        data.padding = bytes(host_array(padding, 8, np.uint8))

    def cudnnGetRNNDataDescriptor(self, number, dtype, layout, seq_len, batch, size, wanted, lengths, padding):
        data = self._known(number, "RNNData")
        values = data.dtype, data.layout, data.seq_len, len(data.lengths), data.size
        for address, value in zip((dtype, layout, seq_len, batch, size), values, strict=True):
            put(address, c_int(value))
        host_array(lengths, wanted, np.int32)[:] = data.lengths[:wanted]
        host_array(padding, 8, np.uint8)[:] = list(data.padding)

    # Sizes and weights

    def cudnnGetRNNWeightSpaceSize(self, handle, number, size):
        self._known(handle, "handle")
        rnn = self._known(number, "RNN")
        blocks = list(weight_blocks(rnn.fields))
        put(size, c_size_t(sum(rows * columns for _, rows, columns in blocks) * np.dtype(DTYPES[rnn.dtype]).itemsize))

    def cudnnGetRNNWeightParams(
        self, handle, number, pseudo_layer, nbytes, weights, gate, matrix_kind, matrix, bias_kind, bias
    ):
        self._known(handle, "handle")
        rnn, start, found = self._known(number, "RNN"), 0, {}
        for key, rows, columns in weight_blocks(rnn.fields):
            found[key] = weights + start * np.dtype(DTYPES[rnn.dtype]).itemsize
            start += rows * columns
        put(matrix, c_size_t(found.get(("matrix", pseudo_layer, gate), 0)))
        put(bias, c_size_t(found.get(("bias", pseudo_layer, gate), 0)))

    def cudnnGetRNNTempSpaceSizes(self, handle, number, mode, data, work, reserve):
        self._known(handle, "handle")
        rnn, x = self._known(number, "RNN"), self._known(data, "RNNData")
        self._check_algorithm(rnn, x)
        put(work, c_size_t(WORK_NBYTES))
        put(reserve, c_size_t(self._reserve_nbytes(x) if mode else 0))
