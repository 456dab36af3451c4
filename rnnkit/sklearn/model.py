"""Network, pooling and readout: scores of sequences, and the gradient of a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np

from rnnkit.call.workspace import Workspace
from rnnkit.network.networks import GRU, LSTM, RNN
from rnnkit.sklearn.pooling import pool, pool_backward
from rnnkit.sklearn.sequences import Sequences
from rnnkit.training.readout import views

BLOCK_SEQUENCES, BLOCK_STEPS = 256, 1 << 16  # maximum sizes of an inference batch, to bound the memory

Objective = Callable[[np.ndarray, np.ndarray | slice], tuple[float, np.ndarray]]
"""(scores, sample indices) -> (loss, gradient); the gradient overwrites the scores."""


class Model:
    """Scores of sequences, and the gradient of a loss for all parameters.

    Parameters
    ----------
    net : LSTM, GRU or RNN
        Stored by reference, as is the readout.
    readout : ndarray (num_outputs*D*P + num_outputs,)
        Flat buffer of a dense layer.
    pooling : {"last", "mean", "max"}
    dropout : float
        Dropout rate of the readout's input in training.
    """

    def __init__(self, net: LSTM | GRU | RNN, readout: np.ndarray, pooling: str, dropout: float = 0.0):
        self._net, self._readout, self._pooling, self._dropout = net, readout, pooling, dropout
        self._num_outputs = readout.size // (net.desc.num_directions * net.desc.output_size + 1)
        self._workspace: Workspace | None = None
        self.parameters = [net.weights, readout]

    @cached_property
    def gradients(self) -> list[np.ndarray]:
        """Gradient buffers, one for each of `parameters`."""
        return [np.zeros_like(array) for array in self.parameters]

    def scores(self, sequences: Sequences) -> np.ndarray:
        """Return the scores (N, num_outputs) of all sequences, in float64.

        The readout runs in float64, so a score depends on the rest of its batch at most in the 16th digit.
        """
        readout, desc = self._readout.astype(np.float64), self._net.desc
        scores = np.empty((len(sequences.lengths), self._num_outputs))
        for numbers in _blocks(sequences.lengths):
            part = sequences.part(numbers)
            y, hy, _ = self._net.infer(part.batch(), lengths=part.lengths)
            values = pool(self._pooling, y, hy, part.lengths, desc.num_directions).values
            scores[numbers] = _dense(*views(readout, self._num_outputs), values.astype(np.float64))
        return scores

    def find_gradient(self, sequences: Sequences, numbers: np.ndarray, objective: Objective, seed: int) -> float:
        """Return the loss of some sequences, and overwrite `gradients` with its gradient."""
        part, desc = sequences.part(numbers), self._net.desc
        y, hy, _, workspace = self._net.forward(
            part.batch(), lengths=part.lengths, seed=seed, workspace=self._workspace
        )
        self._workspace = workspace
        pooled = pool(self._pooling, y, hy, part.lengths, desc.num_directions)
        mask = self._dropout_mask(pooled.values, seed)
        outputs = pooled.values if mask is None else pooled.values * mask
        weight, bias = views(self._readout, self._num_outputs)
        loss, dscores = objective(_dense(weight, bias, outputs), numbers)
        dweight, dbias = views(self.gradients[1], self._num_outputs)
        np.einsum("nc,nk->ck", dscores, outputs, out=dweight)
        np.sum(dscores, axis=0, out=dbias)
        doutputs = np.einsum("nc,ck->nk", dscores, weight)
        if mask is not None:
            doutputs *= mask
        gradients = pool_backward(
            self._pooling, doutputs, pooled, len(y), part.lengths, desc.num_layers, desc.num_directions
        )
        self.gradients[0].fill(0)
        self._net.backward(workspace, **gradients, dw=self.gradients[0])
        return loss

    def _dropout_mask(self, values: np.ndarray, seed: int) -> np.ndarray | None:
        """Return 0 with probability dropout, else 1/(1 - dropout), for each value; None without dropout."""
        if not self._dropout:
            return None
        is_used = np.random.default_rng((seed, 1)).random(values.shape, np.float32) >= self._dropout
        return is_used / values.dtype.type(1 - self._dropout)


def _dense(weight: np.ndarray, bias: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Apply the readout.

    `einsum` instead of BLAS, whose results may depend on its thread count, which only the thread that first limited it
    may change. With 32 sequences, 64 units and 10 classes it takes 8 us instead of 3.
    """
    return np.einsum("nk,ck->nc", x, weight) + bias


def _blocks(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the indices of sequences of similar length, the longest first."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        stop = start + max(1, min(BLOCK_SEQUENCES, BLOCK_STEPS // int(lengths[order[start]])))
        yield order[start:stop]
        start = stop
