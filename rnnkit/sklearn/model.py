"""The network, the pooling of its outputs and the readout: scores of sequences, and the gradient of a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np

from rnnkit.call.workspace import Workspace
from rnnkit.network.networks import GRU, LSTM, RNN
from rnnkit.sklearn.pooling import pool, pool_backward
from rnnkit.sklearn.sequences import Sequences
from rnnkit.training.readout import views

BLOCK_SEQUENCES, BLOCK_STEPS = 256, 1 << 16  # whose scores are computed at once, at most: this bounds the memory

Objective = Callable[[np.ndarray, np.ndarray | slice], tuple[float, np.ndarray]]
"""From scores, and the numbers of the samples that these are of, to a loss and its gradient, in place of the scores."""


class Model:
    """Scores of sequences, and the gradient of a loss by all parameters.

    Parameters
    ----------
    net : LSTM, GRU or RNN
        Kept by reference, as is the readout.
    readout : ndarray (num_outputs*D*P + num_outputs,)
        Flat buffer of a dense layer.
    pooling : {"last", "mean", "max"}
    dropout : float
        Share of what the readout reads that is dropped in training.
    """

    def __init__(self, net: LSTM | GRU | RNN, readout: np.ndarray, pooling: str, dropout: float = 0.0):
        self._net, self._readout, self._pooling, self._dropout = net, readout, pooling, dropout
        self._num_outputs = readout.size // (net.desc.num_directions * net.desc.output_size + 1)
        self._workspace: Workspace | None = None
        self.parameters = [net.weights, readout]

    @cached_property
    def gradients(self) -> list[np.ndarray]:
        """Buffers like the parameters."""
        return [np.zeros_like(array) for array in self.parameters]

    def scores(self, sequences: Sequences) -> np.ndarray:
        """Return the scores (N, num_outputs) of all sequences, float64: the last product is taken in it.

        By that those of a sequence depend on what is beside it in their 16th digit at most.
        """
        readout, desc = self._readout.astype(np.float64), self._net.desc
        found = np.empty((len(sequences.lengths), self._num_outputs))
        for numbers in _blocks(sequences.lengths):
            part = sequences.part(numbers)
            y, hy, _ = self._net.infer(part.batch(), lengths=part.lengths)
            values = pool(self._pooling, y, hy, part.lengths, desc.num_directions).values
            found[numbers] = _dense(*views(readout, self._num_outputs), values.astype(np.float64))
        return found

    def find_gradient(self, sequences: Sequences, numbers: np.ndarray, objective: Objective, seed: int) -> float:
        """Return the loss of some sequences, and write its gradient into `gradients`."""
        part, desc = sequences.part(numbers), self._net.desc
        y, hy, _, workspace = self._net.forward(
            part.batch(), lengths=part.lengths, seed=seed, workspace=self._workspace
        )
        self._workspace = workspace
        pooled = pool(self._pooling, y, hy, part.lengths, desc.num_directions)
        kept = self._kept(pooled.values, seed)
        outputs = pooled.values if kept is None else pooled.values * kept
        weight, bias = views(self._readout, self._num_outputs)
        loss, dscores = objective(_dense(weight, bias, outputs), numbers)
        dweight, dbias = views(self.gradients[1], self._num_outputs)
        np.einsum("nc,nk->ck", dscores, outputs, out=dweight)
        np.sum(dscores, axis=0, out=dbias)
        doutputs = np.einsum("nc,ck->nk", dscores, weight)
        if kept is not None:
            doutputs *= kept
        given = pool_backward(
            self._pooling, doutputs, pooled, len(y), part.lengths, desc.num_layers, desc.num_directions
        )
        self.gradients[0].fill(0)
        self._net.backward(workspace, **given, dw=self.gradients[0])
        return loss

    def _kept(self, values: np.ndarray, seed: int) -> np.ndarray | None:
        """Zero with the probability of dropout, else 1/(1 - dropout)."""
        if not self._dropout:
            return None
        kept = np.random.default_rng((seed, 1)).random(values.shape, np.float32) >= self._dropout
        return kept / values.dtype.type(1 - self._dropout)


def _dense(weight: np.ndarray, bias: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the scores for what the readout takes.

    Products with `einsum` are not BLAS's, whose bits may depend on the number of its threads: only the thread that
    limited these first may do so. With 32 sequences, 64 units and 10 classes one takes 8 us in place of 3.
    """
    return np.einsum("nk,ck->nc", x, weight) + bias


def _blocks(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the numbers of sequences of similar length, the longest first."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        stop = start + max(1, min(BLOCK_SEQUENCES, BLOCK_STEPS // int(lengths[order[start]])))
        yield order[start:stop]
        start = stop
