"""Tools for a training loop around the network: losses, readout, padding, dropout, gradient clipping, two optimizers.

They are plain functions on arrays and flat buffers, without an autograd graph: a loss returns its gradient, and each
`*_backward` function returns gradients that you pass on.

Letters in shapes: T seq_len, N batch_size, I input_size, P proj_size (hidden_size without projection), L num_layers,
D num_directions, C num_classes.

One training step of a sequence classifier:

>>> import numpy as np
>>> import rnnkit
>>> from rnnkit import training
>>> net = rnnkit.LSTM(2, 8, bidirectional=True, seed=0)
>>> readout = training.init_dense(2 * 8, num_outputs=3, seed=0)
>>> optimizer = training.Adam([net.weights, readout])
>>> rng = np.random.default_rng(0)
>>> sequences = [rng.normal(size=(length, 2)).astype("float32") for length in (5, 3, 4)]
>>> x, lengths = training.pad(sequences)
>>> _, hy, _, workspace = net.forward(x, lengths=lengths)
>>> top = training.last_output(hy, num_directions=2)
>>> loss, dscores, _ = training.softmax_cross_entropy(training.dense(readout, top, 3), np.array([0, 1, 2]))
>>> dtop, dreadout = training.dense_backward(readout, top, dscores)
>>> dhy = training.last_output_backward(dtop, num_layers=1, num_directions=2)
>>> gradients = [net.backward(workspace, dhy=dhy).dw, dreadout]
>>> norm = training.clip_gradient_norm(gradients, 1.0)
>>> optimizer.step(gradients, learning_rate=0.01)
"""

from rnnkit.training.clipping import clip_gradient_norm
from rnnkit.training.dropout import dropout_mask
from rnnkit.training.losses import Loss, sigmoid_cross_entropy, softmax_cross_entropy, squared_error
from rnnkit.training.optimizers import SGD, Adam
from rnnkit.training.padding import bucket_batches, lengths_of, pad, unpad
from rnnkit.training.readout import (
    DenseBackward,
    dense,
    dense_backward,
    init_dense,
    last_output,
    last_output_backward,
)

__all__ = [
    "SGD",
    "Adam",
    "DenseBackward",
    "Loss",
    "bucket_batches",
    "clip_gradient_norm",
    "dense",
    "dense_backward",
    "dropout_mask",
    "init_dense",
    "last_output",
    "last_output_backward",
    "lengths_of",
    "pad",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
    "squared_error",
    "unpad",
]
