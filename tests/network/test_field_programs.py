"""Programs of the field whose networks start from states of their own, or skip steps; their weights are made up."""

from typing import NamedTuple

import numpy as np

import rnnkit
from rnnkit import training
from rnnkit.cells import PeepholeLSTM


class Gate(NamedTuple):
    """A gate as madmom has it (arXiv 1605.07008, `madmom.ml.nn.layers.Gate`)."""

    weights: np.ndarray
    bias: np.ndarray
    recurrent: np.ndarray
    peephole: np.ndarray | None

    def activate(self, x, h, c=None):
        total = x @ self.weights + h @ self.recurrent + self.bias
        return total if c is None else total + c * self.peephole


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_layer(i, f, g, o, init, cell_init, x):
    """`madmom.ml.nn.layers.LSTMLayer`: peepholes, and initial states that the model's file has."""
    h, c, found = init, cell_init, []
    for row in x:
        new = sigmoid(i.activate(row, h, c)) * np.tanh(g.activate(row, h))
        c = new + sigmoid(f.activate(row, h, c)) * c
        h = np.tanh(c) * sigmoid(o.activate(row, h, c))
        found.append(h)
    return np.array(found)


def test_downbeat_network_of_madmom():
    """Three bidirectional layers of 25 units on 314 features: its hidden layers are one network."""
    options = dict(num_layers=3, bidirectional=True, bias="input", dtype="float64", learned_initial_state=True)
    net, rng = rnnkit.Network(PeepholeLSTM, 314, 25, **options, seed=0), np.random.default_rng(0)
    net.weights[:] = rng.normal(size=net.weights.size) / 5
    features = rng.random((60, 314))
    blocks, y = net.views, features
    for layer in range(3):
        outputs = []
        for end in ("", "_reverse"):
            own = {name: blocks[f"{name}_l{layer}{end}"] for name in ("weight_ih", "weight_hh", "bias_ih", "h0", "c0")}
            parts = zip(*(np.split(own[name], 4) for name in ("weight_ih", "weight_hh", "bias_ih")), strict=True)
            peepholes = [
                blocks[f"{name}_l{layer}{end}"] if name else None
                for name in ("peephole_i", "peephole_f", "", "peephole_o")
            ]
            gates = [Gate(w.T, b, r.T, p) for (w, r, b), p in zip(parts, peepholes, strict=True)]
            found = lstm_layer(*gates, own["h0"], own["c0"], y[::-1] if end else y)
            outputs.append(found[::-1] if end else found)
        y = np.hstack(outputs)
    assert np.abs(net.infer(features[:, None]).y[:, 0] - y).max() < 1e-12
    assert np.abs(net.infer(features[:, None], np.zeros((6, 1, 25)), np.zeros((6, 1, 25))).y[:, 0] - y).max() > 1e-3


def test_left_padded_classifier_trains_as_one_that_is_padded_on_the_right():
    """Padding as Keras's `pad_sequences` does it by default: weights after each step have the same bits."""
    rng, lengths = np.random.default_rng(0), np.array([30, 11, 1, 22, 0, 17])
    sequences = [rng.normal(size=(length, 8)).astype("float32") for length in lengths]
    right, left = np.zeros((2, 30, len(lengths), 8), "float32")
    for n, sequence in enumerate(sequences):
        right[: len(sequence), n] = sequence
        left[30 - len(sequence) :, n] = sequence
    mask, labels = np.arange(30)[:, None] >= 30 - lengths, np.array([0, 1, 1, 0, 1, 0])
    nets = [rnnkit.LSTM(8, 16, num_layers=2, bidirectional=True, seed=0) for _ in range(2)]
    readout = rng.normal(size=(2 * 16 + 1) * 2).astype("float32")
    optimizers = [training.Adam(net.weights) for net in nets]
    batches = [(right, {"lengths": lengths}), (left, {"mask": mask})]
    before = nets[0].weights.copy()
    for _ in range(5):
        for net, optimizer, (x, options) in zip(nets, optimizers, batches, strict=True):
            found = net.forward(x, **options)
            last = training.last_output(found.hy, net.desc.num_directions)
            loss = training.softmax_cross_entropy(training.dense(readout, last, 2), labels)
            back = training.dense_backward(readout, last, loss.gradient)
            dhy = training.last_output_backward(back.dx, net.desc.num_layers, net.desc.num_directions)
            optimizer.step(net.backward(found.workspace, dhy=dhy).dw, 0.01)
        assert np.array_equal(nets[0].weights, nets[1].weights)
    assert not np.array_equal(nets[0].weights, before)
