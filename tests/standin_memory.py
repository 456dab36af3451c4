"""What the stand-in for libcudnn reads and writes in memory, and the order of its weight space."""

import ctypes

import numpy as np

import rnnkit

PACKED = 1  # of the layouts
DTYPES = {0: "float32", 1: "float64", 2: "float16", 9: "bfloat16"}
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


def bytes_at(address, nbytes):
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), np.uint8)


def array_at(address, shape, dtype):
    """A view of memory; None for no address."""
    if not address:
        return None
    dtype = np.dtype(dtype)
    return bytes_at(address, int(np.prod(shape)) * dtype.itemsize).view(dtype).reshape(shape)


class Problem:
    """One call's descriptors, and its arrays in the form of the CPU engine."""

    def __init__(self, rnn, x, width, num_weights):
        self.rnn, self.layout, self.lengths, self.seq_len = rnn, x.layout, x.lengths.tolist(), x.seq_len
        self.width, self.num_weights, self.dtype = width, num_weights, np.dtype(DTYPES[rnn.dtype])
        self.computed = "float64" if rnn.dtype == 1 else "float32"  # half precision computes in float32
        dropout = rnn.dropout.probability if rnn.dropout else 0.0
        clip = rnn.clip if rnn.fields["mode"] == "lstm" else None
        if clip:  # the bounds are float32 in every dtype
            clip = tuple(float(np.float32(bound)) for bound in clip)
        self.desc = rnnkit.RNNDescriptor(**rnn.fields, cell_clip=clip, dropout=dropout, dtype=self.computed)
        self.valid = np.arange(x.seq_len)[:, None] < x.lengths[None]

    def inputs(self, w, x, hx, cx):
        w = array_at(w, self.num_weights, self.dtype).astype(self.computed)
        steps = None if x is None else self.read_steps(x, self.desc.input_size)
        return w, steps, self.read_states(hx), self.read_states(cx, cells=True)

    def inside(self, cells):
        low, high = self.desc.cell_clip
        return (cells > low) & (cells < high)

    def clipped(self, arrays):
        """A cell is clipped where it is read, the initial one too."""
        w, x, hx, cx = arrays
        return w, x, hx, cx if cx is None or not self.desc.cell_clip else np.clip(cx, *self.desc.cell_clip)

    def last_cells(self, workspace):
        """The cells behind the last steps before they are clipped, which is how they are returned."""
        desc, found = self.desc, np.empty((self.desc.num_pseudo_layers, len(self.lengths), self.desc.hidden_size))
        for index in range(desc.num_pseudo_layers):
            reverse = index % desc.num_directions
            gates, cells = workspace.arrays[f"gates_{index}"], workspace.arrays[f"cell_{index}"]
            for n, length in enumerate(self.lengths):
                t = 0 if reverse else length - 1
                i, f, g = gates[t, n, :3]
                # Step t stands at t + 1. A reverse sequence begins at its end; its initial cells are behind all steps.
                before = (t + 2 if length > 1 else self.seq_len + 1) if reverse else t
                found[index, n] = f * cells[before, n] + i * g
        return found.astype(self.computed)

    def read_steps(self, address, size):
        """(T, N, size) from an array of this layout."""
        shape = (int(self.valid.sum()), size) if self.layout == PACKED else (*self.valid.shape, size)
        found = array_at(address, shape, self.dtype).astype(self.computed)
        if self.layout == PACKED:
            steps = np.zeros((*self.valid.shape, size), self.computed)
            steps[self.valid] = found
            return steps
        return found

    def write_steps(self, address, values):
        self.write(address, values[self.valid] if self.layout == PACKED else values)

    def read_states(self, address, cells=False):
        if not address or (cells and not self.desc.has_cell):
            return None
        size = self.desc.hidden_size if cells else self.desc.output_size
        shape = self.desc.num_pseudo_layers, len(self.lengths), size
        return array_at(address, shape, self.dtype).astype(self.computed)

    def write(self, address, values):
        array_at(address, values.shape, self.dtype)[...] = values


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
