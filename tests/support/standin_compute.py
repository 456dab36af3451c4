"""The functions of the stand-in for libcudnn that run a network: what they check of a call, read and write."""

from types import SimpleNamespace

import numpy as np
from standin_memory import Arrays, device_array
from standin_network import Network
from standin_rules import NOT_SUPPORTED, PACKED, SMALL_H, STANDARD, UNPACKED, WORK_NBYTES, require

from rnnkit_kernels.machine import thread_pool
from rnnkit_kernels.machine.matrix import Matrix
from rnnkit_kernels.noise import Counter, draw, dropout_factor, seed_words

FORWARD_DONE, DATA_DONE = 1, 2  # what a reserve space has been used for


def assert_aligned(*addresses):
    assert not any((address or 0) % 16 for address in addresses), "an array is not aligned to 16 bytes"


class Computing:
    """Those of CudnnStandIn."""

    def _reserve_nbytes(self, x):
        return 2 * WORK_NBYTES + 8 * int(x.lengths.sum())  # more than the other, to tell them apart

    def _check_algorithm(self, rnn, x):
        require(rnn.algorithm == STANDARD or x.layout != PACKED, "lengths differ", NOT_SUPPORTED)
        if rnn.algorithm == SMALL_H:
            require(rnn.fields["hidden_size"] <= 384, "too large", NOT_SUPPORTED)

    def _check_call(self, name, handle, number, x, y, hidden, cell, weights, work, reserve, mode):
        """The arrays of a call that its descriptors allow; `cell` None for a function that takes none."""
        self._on_stream(name, handle)
        rnn, x, y = self._known(number, "RNN"), self._known(x, "RNNData"), self._known(y, "RNNData")
        require(not {rnn.algorithm, (name, rnn.algorithm)} & self.unsupported, "this device", NOT_SUPPORTED)
        self._check_algorithm(rnn, x)
        require(x.layout != UNPACKED or rnn.padded or (x.lengths == x.seq_len).all(), "(1U << 0) != paddingMode()")
        assert (x.lengths > 0).all(), "sequences of length 0 are not reliable"
        same = (x.dtype, x.layout, x.seq_len, *x.lengths) == (y.dtype, y.layout, y.seq_len, *y.lengths)
        require(same and x.dtype == rnn.dtype, "xDesc and yDesc differ")
        arrays = Arrays(rnn, x)
        require(rnn.fields["input_size"] == x.size, "rnnDesc->inputSize != xDesc->dimA[2]")
        require(arrays.width == y.size, "yDesc->dimA[2] != dirs*projSize")
        sizes = [(hidden, arrays.output_size)]
        if cell is not None and rnn.fields["mode"] == "lstm":
            sizes.append((cell, rnn.fields["hidden_size"]))
        for kind, size in sizes:
            tensor = self._known(kind, "Tensor")  # cuDNN does not look at these shapes
            assert tensor.shape == (*arrays.states, size) and tensor.dtype == rnn.dtype, tensor.shape
        require(weights[0] >= arrays.num_weights * arrays.dtype.itemsize and weights[1], "weightSpaceSize")
        require(work[0] >= WORK_NBYTES and work[1], "workSpaceSize")
        require(not mode or (reserve[0] >= self._reserve_nbytes(x) and reserve[1]), "reserveSpaceSize")
        assert_aligned(weights[1], work[1], reserve[1])
        self.algorithms.append(rnn.algorithm)
        device_array(work[1], work[0], np.uint8)[:] = 0xA5  # nothing in it outlasts a call
        return arrays

    def cudnnRNNForward(
        self, handle, number, mode, lengths, x_kind, x, y_kind, y, h_kind, hx, hy, c_kind, cx, cy, *memory
    ):
        assert lengths is None, "only the descriptor's lengths count"
        weights, work, reserve = zip(memory[::2], memory[1::2], strict=True)
        arrays = self._check_call(
            "cudnnRNNForward", handle, number, x_kind, y_kind, h_kind, c_kind or 0, weights, work, reserve, mode
        )
        assert_aligned(x, y, hx, hy, cx, cy)
        if self.idle:
            return
        inputs = self._read_inputs(arrays, weights[1], x, hx, cx)
        masks = self._draw_masks(arrays) if mode and arrays.rnn.dropout else None
        network = Network(arrays.fields, self._clip(arrays), masks, arrays.lengths, *inputs)
        arrays.write_steps(y, network.result.y)
        for address, states in ((hy, network.result.hy), (cy, network.last_cells())):
            if address and states is not None:
                arrays.write(address, states)
        if mode:
            token = next(self.numbers)
            self.forwards[token] = SimpleNamespace(network=network, rnn=arrays.rnn, inputs=inputs, dw=None)
            device_array(*reserve[::-1], np.uint8)[:] = 0x5A
            device_array(reserve[1], 2, np.uint64)[:] = token, FORWARD_DONE

    def _read_inputs(self, arrays, w, x, hx, cx):
        steps = arrays.read_steps(x, arrays.fields["input_size"])
        return arrays.read_weights(w), steps, arrays.read_hidden(hx), arrays.read_cells(cx)

    def _clip(self, arrays):
        """The bounds are float32 in every dtype."""
        clip = arrays.rnn.clip if arrays.fields["mode"] == "lstm" else None
        return clip and tuple(float(np.float32(bound)) for bound in clip)

    def _draw_masks(self, arrays):
        """The scaled masks of all layers but the last. cuDNN draws others; these are those of the CPU engine."""
        probability, state = arrays.rnn.dropout.probability, device_array(arrays.rnn.dropout.states, 2, np.uint64)
        seed, shape = (int(state[0]) + int(state[1])) % 2**64, (*arrays.valid.shape, arrays.width)
        state[1] += 1  # so that one more forward draws others
        count, masks = shape[0] * shape[1], []
        for layer in range(1, arrays.fields["num_layers"]):
            mask = np.empty(shape)
            rows = Matrix(mask.reshape(-1), np.arange(count), 0, shape[2])
            counter = Counter(shape[1], 0, 0, layer * 256 + 255, *seed_words(seed))
            thread_pool.run(draw, mask.size, rows, count, 0, shape[2], counter, dropout_factor(probability, mask.dtype))
            masks.append(mask)
        return masks

    def _forward_of(self, reserve, state, arrays):
        """What the forward that wrote this reserve space had."""
        token, found = device_array(reserve, 2, np.uint64).tolist()
        assert token in self.forwards, "no reserve space of a training forward"
        assert found == state, f"the reserve space is in state {found}, not {state}"
        first = self.forwards[token]
        for name in ("fields", "dtype", "algorithm", "math", "clip"):
            assert getattr(first.rnn, name) == getattr(arrays.rnn, name), f"another {name} than forward's"
        assert arrays.lengths == first.network.lengths, "other lengths than forward's"
        return first

    def cudnnRNNBackwardData_v8(
        self, handle, number, lengths, y_kind, y, dy, x_kind, dx, h_kind, hx, dhy, dhx, c_kind, cx, dcy, dcx, *memory
    ):
        assert lengths is None and y and dy and dx and dhx, "an address is missing"
        weights, work, reserve = zip(memory[::2], memory[1::2], strict=True)
        arrays = self._check_call(
            "cudnnRNNBackwardData_v8", handle, number, x_kind, y_kind, h_kind, c_kind or 0, weights, work, reserve, 1
        )
        assert_aligned(y, dy, dx, hx, dhy, dhx, cx, dcy, dcx)
        first = self._forward_of(reserve[1], FORWARD_DONE, arrays)
        now = arrays.read_weights(weights[1]), None, arrays.read_hidden(hx), arrays.read_cells(cx)
        self._check_inputs(first, now, y, arrays)
        has_cells = arrays.fields["mode"] == "lstm"
        assert bool(dcx) == has_cells, "dcx is missing, or there are no cells"
        cotangents = arrays.read_steps(dy, arrays.width), arrays.read_hidden(dhy), arrays.read_cells(dcy)
        found_dx, found_dhx, found_dcx, first.dw = first.network.backward(*cotangents)
        arrays.write_steps(dx, found_dx)
        arrays.write(dhx, found_dhx)
        if has_cells:
            arrays.write(dcx, found_dcx)
        device_array(reserve[1], 2, np.uint64)[1] = DATA_DONE

    def _check_inputs(self, first, now, y, arrays):
        for name, was, found in zip(("w", "x", "hx", "cx"), first.inputs, now, strict=True):
            assert found is None or np.array_equal(was, found, equal_nan=True), f"{name} is not that of forward"
        expected = first.network.result.y.astype(arrays.dtype).astype(np.float64)
        found = arrays.read_steps(y, arrays.width)
        assert np.array_equal(found, expected, equal_nan=True), "y is not that of forward"

    def cudnnRNNBackwardWeights_v8(self, handle, number, add, lengths, x_kind, x, h_kind, hx, y_kind, y, *memory):
        require(add == 0, "addGrad == CUDNN_WGRAD_MODE_SET", NOT_SUPPORTED)
        assert lengths is None
        weights, work, reserve = zip(memory[::2], memory[1::2], strict=True)
        arrays = self._check_call(
            "cudnnRNNBackwardWeights_v8", handle, number, x_kind, y_kind, h_kind, None, weights, work, reserve, 1
        )
        assert_aligned(x, hx, y)
        first = self._forward_of(reserve[1], DATA_DONE, arrays)
        now = None, arrays.read_steps(x, arrays.fields["input_size"]), arrays.read_hidden(hx), None
        self._check_inputs(first, now, y, arrays)
        dw = arrays.weights(weights[1])
        dw += first.dw.astype(arrays.dtype)
