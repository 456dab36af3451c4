"""What the stand-in for libcudnn reads and writes in memory, and the order of its weight space."""

import ctypes

import numpy as np
from standin_cupy import assert_allocated

PACKED = 1  # of the layouts
DTYPES = {0: "float32", 1: "float64", 2: "float16", 9: "bfloat16"}
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


def host_array(address, shape, dtype):
    """A view of memory."""
    dtype = np.dtype(dtype)
    memory = (ctypes.c_char * (int(np.prod(shape)) * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).reshape(shape)


def device_array(address, shape, dtype):
    """The same of memory that CuPy has handed out."""
    assert_allocated(address, int(np.prod(shape)) * np.dtype(dtype).itemsize)
    return host_array(address, shape, dtype)


def put(address, values):
    ctypes.cast(address, ctypes.POINTER(type(values)))[0] = values


class Arrays:
    """The arrays of one call, by its descriptors, as float64; steps are (T, N, size), 0 where there are none."""

    def __init__(self, rnn, x):
        self.rnn, self.packed, self.dtype = rnn, x.layout == PACKED, np.dtype(DTYPES[rnn.dtype])
        self.fields, self.lengths = rnn.fields, x.lengths.tolist()
        self.valid = np.arange(x.seq_len)[:, None] < x.lengths[None]
        self.directions = 1 + self.fields["bidirectional"]
        self.states = self.fields["num_layers"] * self.directions, len(self.lengths)
        self.output_size = self.fields["proj_size"] or self.fields["hidden_size"]
        self.width = self.directions * self.output_size
        self.num_weights = sum(rows * columns for _, rows, columns in weight_blocks(self.fields))

    def weights(self, address):
        return device_array(address, self.num_weights, self.dtype)

    def read_weights(self, address):
        return self.weights(address).astype(np.float64)

    def read_steps(self, address, size):
        shape = (int(self.valid.sum()), size) if self.packed else (*self.valid.shape, size)
        found = device_array(address, shape, self.dtype).astype(np.float64)
        if not self.packed:
            return found
        steps = np.zeros((*self.valid.shape, size))
        steps[self.valid] = found
        return steps

    def write_steps(self, address, values):
        self.write(address, values[self.valid] if self.packed else values)

    def read_hidden(self, address):
        return self._read_states(address, self.output_size)

    def read_cells(self, address):
        return self._read_states(address, self.fields["hidden_size"]) if self.fields["mode"] == "lstm" else None

    def _read_states(self, address, size):
        """None is zeros."""
        if not address:
            return np.zeros((*self.states, size))
        return device_array(address, (*self.states, size), self.dtype).astype(np.float64)

    def write(self, address, values):
        device_array(address, values.shape, self.dtype)[...] = values


def weight_blocks(fields):
    """(key, rows, columns) of every part of the weight space in its order, gate by gate."""
    hidden, gates = fields["hidden_size"], GATES[fields["mode"]]
    output = fields["proj_size"] or hidden
    directions = 1 + fields["bidirectional"]
    pseudo_layers = range(fields["num_layers"] * directions)
    for pseudo_layer in pseudo_layers:
        first = pseudo_layer < directions
        inputs = fields["input_size"] if first else directions * output
        for gate in range(0 if first and fields["input_mode"] == "skip" else gates):
            yield ("matrix", pseudo_layer, gate), hidden, inputs
        for gate in range(gates):
            yield ("matrix", pseudo_layer, gates + gate), hidden, output
        if fields["proj_size"]:
            yield ("matrix", pseudo_layer, 2 * gates), output, hidden
    for pseudo_layer in pseudo_layers:
        for gate in range(gates):
            if fields["bias"] in ("both", "input"):
                yield ("bias", pseudo_layer, gate), hidden, 1
        for gate in range(gates):
            if fields["bias"] in ("both", "recurrent"):
                yield ("bias", pseudo_layer, gates + gate), hidden, 1


def named_weights(fields, w):
    """{name as PyTorch has it: view} of a flat array in the order of the weight space, gates one below the other."""
    gates, directions, spans, stop = GATES[fields["mode"]], 1 + fields["bidirectional"], {}, 0
    kinds = {"matrix": ("weight_ih", "weight_hh", "weight_hr"), "bias": ("bias_ih", "bias_hh")}
    for (kind, pseudo_layer, gate), rows, columns in weight_blocks(fields):
        layer, reverse = divmod(pseudo_layer, directions)
        name = f"{kinds[kind][gate // gates]}_l{layer}" + "_reverse" * reverse
        start, stop = stop, stop + rows * columns
        spans[name] = spans.get(name, (start,))[0], stop, columns
    views = {name: w[start:stop].reshape(-1, columns) for name, (start, stop, columns) in spans.items()}
    return {name: view.reshape(-1) if name.startswith("bias") else view for name, view in views.items()}
