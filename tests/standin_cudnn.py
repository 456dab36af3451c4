"""A stand-in for libcudnn 9 that computes in NumPy, by the rules of NVIDIA, and refuses what the library refuses.

Every function is called through ctypes with the prototype of the binding, so a wrong number or type of an argument is
an error here as there. Addresses are those of host memory. Layers are computed by the CPU engine.
"""

import ctypes
import itertools
from ctypes import c_size_t
from types import SimpleNamespace

import numpy as np
from standin_memory import DTYPES, PACKED, Problem, array_at, bytes_at, weight_blocks

import rnnkit
from rnnkit._cudnn import SIGNATURES

SUCCESS, BAD_PARAM, NULL_POINTER, NOT_SUPPORTED, EXECUTION_FAILED = 0, 2000, 2002, 3000, 5000
STANDARD, PERSIST_STATIC, SMALL_H = 0, 1, 3
UNPACKED = 0
PRECISIONS = {(0, 0), (1, 1), (2, 0), (2, 2), (9, 0)}  # of data and of arithmetic
MODES = ("rnn_relu", "rnn_tanh", "lstm", "gru")
BIASES = ("none", "input", "both", "recurrent")
WORK_NBYTES, STATES_NBYTES = 4096, 64
LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
FORWARD_DONE, DATA_DONE = 1, 2  # what a reserve space has been used for


class Refusal(Exception):
    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


def require(condition, reason, status=BAD_PARAM):
    if not condition:
        raise Refusal(status, reason)


def put(address, values):
    ctypes.cast(address, ctypes.POINTER(type(values)))[0] = values


class CudnnStandIn:
    """`calls` lists what computed, `refusals` what it refused, and `errors` what no caller may do.

    The `unsupported` algorithms are refused by forward.
    """

    def __init__(self):
        self.version = 91900
        self.objects, self.numbers = {}, itertools.count(1)
        self.calls, self.errors, self.refusals, self.reason = [], [], [], b""
        self.callback, self.forwards = None, {}
        self.unsupported = set()  # algorithms that RNNForward refuses
        self.current_stream = lambda: 0

    def dll(self):
        """An object with one ctypes function for each of SIGNATURES."""
        return SimpleNamespace(**{name: self._function(name, *SIGNATURES[name]) for name in SIGNATURES})

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
        self._new(address, SimpleNamespace(kind="handle", stream=None))

    def cudnnSetStream(self, handle, stream):
        self._known(handle, "handle").stream = stream or 0

    def _on_stream(self, name, handle):
        assert self._known(handle, "handle").stream == self.current_stream(), "not on CuPy's current stream"
        self.calls.append(name)

    def cudnnCreateRNNDescriptor(self, address):
        self._new(address, SimpleNamespace(kind="RNN"))

    def cudnnCreateRNNDataDescriptor(self, address):
        self._new(address, SimpleNamespace(kind="RNNData"))

    def cudnnCreateTensorDescriptor(self, address):
        self._new(address, SimpleNamespace(kind="Tensor"))

    def cudnnCreateDropoutDescriptor(self, address):
        self._new(address, SimpleNamespace(kind="Dropout"))

    def _destroy(self, number):
        del self.objects[number]

    cudnnDestroyRNNDescriptor = cudnnDestroyRNNDataDescriptor = _destroy
    cudnnDestroyTensorDescriptor = cudnnDestroyDropoutDescriptor = _destroy

    def cudnnSetTensorNdDescriptor(self, number, dtype, count, dims, strides):
        tensor = self._known(number, "Tensor")
        tensor.dtype, tensor.shape = dtype, tuple(array_at(dims, count, np.int32).tolist())
        expected = np.cumprod([1, *tensor.shape[:0:-1]])[::-1]
        require((array_at(strides, count, np.int32) == expected).all(), "the tensor is not dense")

    def cudnnDropoutGetStatesSize(self, handle, size):
        self._known(handle, "handle")
        put(size, c_size_t(STATES_NBYTES))

    def cudnnSetDropoutDescriptor(self, number, handle, probability, states, nbytes, seed):
        self._on_stream("cudnnSetDropoutDescriptor", handle)
        require(nbytes >= STATES_NBYTES, "states are too small")
        dropout = self._known(number, "Dropout")
        dropout.probability, dropout.states = probability, states
        array_at(states, 2, np.uint64)[:] = seed, 0

    def cudnnSetRNNDescriptor_v8(
        self, number, algorithm, mode, bias, direction, input_mode, dtype, precision, math, input_size, hidden_size,
        proj_size, layers, dropout, flags,
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
        rnn.algorithm, rnn.math, rnn.padded, rnn.clip = algorithm, math, bool(flags), None
        rnn.dropout = self._known(dropout, "Dropout") if dropout else None
        rnn.fields = dict(
            mode=MODES[mode], input_size=input_size, hidden_size=hidden_size, num_layers=layers,
            bidirectional=bool(direction), bias=BIASES[bias], input_mode=("linear", "skip")[input_mode],
            proj_size=proj_size if projected else None,
        )
        rnn.dtype = dtype

    def cudnnRNNSetClip_v9(self, number, mode, low, high):
        require(low <= high, "lclip > rclip")
        self._known(number, "RNN").clip = (low, high) if mode else None

    def cudnnSetRNNDataDescriptor(self, number, dtype, layout, seq_len, batch, size, lengths, padding):
        data = self._known(number, "RNNData")
        require(min(seq_len, batch, size) > 0 and lengths, "a size is 0")
        found = array_at(lengths, batch, np.int32).copy()
        require(found.min() >= 0 and found.max() <= seq_len, "a length is out of range")
        if layout == PACKED:
            require((np.diff(found) <= 0).all(), "isSortedSequences == false")
            require(found.min() > 0, "minSeqLengthInArray == 0")
            require(found.max() == seq_len, "maxSeqLength")
        data.dtype, data.layout, data.seq_len, data.lengths, data.size = dtype, layout, seq_len, found, size

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

    def _reserve_nbytes(self, x):
        return 16 + 8 * int(x.lengths.sum())

    def _check_algorithm(self, rnn, x):
        require(rnn.algorithm == STANDARD or x.layout != PACKED, "lengths differ", NOT_SUPPORTED)
        if rnn.algorithm == SMALL_H:
            require(rnn.fields["hidden_size"] <= 384 and x.seq_len <= 65535, "too large", NOT_SUPPORTED)

    # Computing

    def _check_call(self, name, handle, number, x, y, hidden, cell, weights, work, reserve, mode):
        self._on_stream(name, handle)
        rnn, x, y = self._known(number, "RNN"), self._known(x, "RNNData"), self._known(y, "RNNData")
        fields, directions = rnn.fields, 1 + rnn.fields["bidirectional"]
        output_size = fields["proj_size"] or fields["hidden_size"]
        require(rnn.algorithm not in self.unsupported, "this device", NOT_SUPPORTED)
        self._check_algorithm(rnn, x)
        require(x.layout != UNPACKED or rnn.padded or (x.lengths == x.seq_len).all(), "(1U << 0) != paddingMode()")
        assert (x.lengths > 0).all(), "sequences of length 0 are not reliable"
        require((x.dtype, x.layout) == (y.dtype, y.layout) and x.dtype == rnn.dtype, "xDesc and yDesc differ")
        require(fields["input_size"] == x.size, "rnnDesc->inputSize != xDesc->dimA[2]")
        require(directions * output_size == y.size, "yDesc->dimA[2] != dirs*projSize")
        states = fields["num_layers"] * directions, len(x.lengths)
        tensor = self._known(hidden, "Tensor")  # cuDNN does not look at these shapes
        assert tensor.shape == (*states, output_size) and tensor.dtype == rnn.dtype, tensor.shape
        if fields["mode"] == "lstm":
            tensor = self._known(cell, "Tensor")
            assert tensor.shape == (*states, fields["hidden_size"]) and tensor.dtype == rnn.dtype, tensor.shape
        itemsize = np.dtype(DTYPES[rnn.dtype]).itemsize
        total = sum(rows * columns for _, rows, columns in weight_blocks(fields)) * itemsize
        require(weights[0] >= total and weights[1], "weightSpaceSize")
        require(work[0] >= WORK_NBYTES and work[1], "workSpaceSize")
        require(not mode or (reserve[0] >= self._reserve_nbytes(x) and reserve[1]), "reserveSpaceSize")
        assert all(pointer % 16 == 0 for pointer in (weights[1], work[1], reserve[1] or 0)), "not aligned"
        bytes_at(work[1], WORK_NBYTES)[:] = 0xA5  # nothing in it outlasts a call
        return Problem(rnn, x, y.size, total // itemsize)

    def cudnnRNNForward(
        self, handle, number, mode, lengths, x_kind, x, y_kind, y, h_kind, hx, hy, c_kind, cx, cy, *memory
    ):
        assert lengths is None, "only the descriptor's lengths count"
        weights, work, reserve = zip(memory[::2], memory[1::2], strict=True)
        problem = self._check_call(
            "cudnnRNNForward", handle, number, x_kind, y_kind, h_kind, c_kind, weights, work, reserve, mode
        )
        arrays = problem.inputs(weights[1], x, hx, cx)
        seed = None
        if mode and problem.desc.dropout:
            state = array_at(problem.rnn.dropout.states, 2, np.uint64)
            seed = int(state[0]) if state[1] == 0 else int(state[0] ^ (state[1] << np.uint64(32)))
            state[1] += 1
        result = rnnkit.forward(problem.desc, *problem.clipped(arrays), lengths=problem.lengths, seed=seed)
        problem.write_steps(y, result.y)
        cells = problem.last_cells(result.workspace) if problem.desc.cell_clip else result.cy
        for address, states in ((hy, result.hy), (cy, cells)):
            if address:
                problem.write(address, states)
        if mode:
            token = next(self.numbers)
            self.forwards[token] = problem, result.workspace, arrays
            bytes_at(*reserve[::-1])[:] = 0x5A
            array_at(reserve[1], 2, np.uint64)[:] = token, FORWARD_DONE

    def _forward_of(self, reserve, state):
        """What the forward that wrote this reserve space had."""
        token, found = array_at(reserve, 2, np.uint64).tolist()
        assert token in self.forwards, "no reserve space of a training forward"
        assert found == state, f"the reserve space is in state {found}, not {state}"
        return self.forwards[token]

    def cudnnRNNBackwardData_v8(
        self, handle, number, lengths, y_kind, y, dy, x_kind, dx, h_kind, hx, dhy, dhx, c_kind, cx, dcy, dcx, *memory
    ):
        assert lengths is None and y and dy and dx and dhx, "an address is missing"
        weights, work, reserve = zip(memory[::2], memory[1::2], strict=True)
        problem = self._check_call(
            "cudnnRNNBackwardData_v8", handle, number, x_kind, y_kind, h_kind, c_kind, weights, work, reserve, 1
        )
        first, workspace, arrays = self._forward_of(reserve[1], FORWARD_DONE)
        assert first.rnn.algorithm == problem.rnn.algorithm, "another algorithm than forward's"
        w, _, states, cells = problem.inputs(weights[1], None, hx, cx)
        for was, now in ((arrays[0], w), (arrays[2], states), (arrays[3], cells)):
            assert np.array_equal(was, now) if was is not None else now is None, "an input of forward has changed"
        self._check_output(problem, workspace, y)
        cotangents = problem.read_steps(dy, problem.width), problem.read_states(dhy), problem.read_states(dcy, True)
        if problem.desc.cell_clip and dcy:
            outside = ~problem.inside(first.last_cells(workspace))
            assert not cotangents[2][outside].any(), "dcy would pass through the clip"
        gradients = rnnkit.backward(first.desc, w, workspace, *cotangents)
        problem.write_steps(dx, gradients.dx)
        problem.write(dhx, gradients.dhx)
        if gradients.dcx is not None:
            clips = problem.desc.cell_clip and cells is not None
            problem.write(dcx, gradients.dcx * problem.inside(cells) if clips else gradients.dcx)
        first.dw = gradients.dw
        array_at(reserve[1], 2, np.uint64)[1] = DATA_DONE

    def _check_output(self, problem, workspace, y):
        expected = workspace.hidden(problem.desc.num_layers - 1)
        found = problem.read_steps(y, problem.width)[:, :, : expected.shape[2]]
        assert np.array_equal(found, expected.astype(problem.dtype).astype(found.dtype)), "y is not that of forward"

    def cudnnRNNBackwardWeights_v8(
        self, handle, number, add, lengths, x_kind, x, h_kind, hx, y_kind, y, *memory
    ):
        require(add == 0, "addGrad == CUDNN_WGRAD_MODE_SET", NOT_SUPPORTED)
        assert lengths is None
        weights, work, reserve = zip(memory[::2], memory[1::2], strict=True)
        name = "cudnnRNNBackwardWeights_v8"
        self._on_stream(name, handle)
        first, workspace, arrays = self._forward_of(reserve[1], DATA_DONE)
        assert np.array_equal(first.read_steps(x, first.desc.input_size), arrays[1]), "x has changed since forward"
        self._check_output(first, workspace, y)
        assert bool(hx) == (arrays[2] is not None), "hx of forward is missing"
        assert weights[1] % 16 == 0, "not aligned"
        dw = array_at(weights[1], first.num_weights, first.dtype)
        dw += first.dw.astype(first.dtype)
