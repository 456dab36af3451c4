"""A byte-level language model: embedding, recurrent network, softmax over the next byte."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import accumulate
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

import rnnkit
from rnnkit import archive
from rnnkit.descriptor import HOST_DTYPES
from rnnkit.errors import message
from rnnkit.network import members, read
from rnnkit.weights import check_size

VOCABULARY = 256
OTHER_PARAMETERS = ("embedding", "output_weight", "output_bias")  # beside the network's
TRAINED_WITH = "trained_with"
SPARE = 3  # elements behind the gradient


class State(NamedTuple):
    """What one call hands to the next: hx (L, N, P) and, for an LSTM, cx (L, N, H); None stands for zeros."""

    hx: np.ndarray | None = None
    cx: np.ndarray | None = None


ZEROS = State()


class Parameters:
    """Everything that is learned, in one flat buffer: one optimizer step is one pass over it.

    Parameters
    ----------
    desc : RNNDescriptor
        Of one direction; its input_size I is the size of the embedding.
    spare : int
        Elements behind the parameters, for what is summed over ranks with a gradient.

    Attributes
    ----------
    buffer : ndarray (size + spare,), desc.dtype
        All of it; zeros at first.
    flat : ndarray (size,), desc.dtype
        The view of the buffer of which the others are views.
    embedding : ndarray (256, I)
    network : ndarray (num_weights,)
        The recurrent network's flat buffer.
    output_weight, output_bias : ndarray (256, P), (256,)
    """

    def __init__(self, desc: rnnkit.RNNDescriptor, spare: int = 0):
        shapes = (
            (VOCABULARY, desc.input_size),
            (rnnkit.num_weights(desc),),
            (VOCABULARY, desc.output_size),
            (VOCABULARY,),
        )
        ends = list(accumulate(map(math.prod, shapes)))
        check_size("Parameters", desc, ends[-1] - rnnkit.num_weights(desc))
        self.buffer = np.zeros(ends[-1] + spare, desc.np_dtype)
        self.flat = self.buffer[: ends[-1]]
        parts = np.split(self.flat, ends[:-1])
        views = (part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
        self.embedding, self.network, self.output_weight, self.output_bias = views


class TextModel:
    """The model and the gradient of its loss.

    Parameters
    ----------
    desc : RNNDescriptor
        Of one direction; its input_size is the size of the embedding.
    parameters : Parameters
        Kept by reference.
    trained_with : dict
        Settings of the last training, as numbers and text; empty before the first.

    Attributes
    ----------
    gradient : Parameters
        What `add_gradient` adds to; zeros at first.
    """

    def __init__(self, desc: rnnkit.RNNDescriptor, parameters: Parameters, trained_with: dict[str, Any]):
        self.desc = desc
        self.parameters = parameters
        self.trained_with = trained_with
        self.gradient = Parameters(desc, SPARE)
        self._workspace = None

    @classmethod
    def random(cls, desc: rnnkit.RNNDescriptor, seed: int) -> TextModel:
        """Return an untrained model; the same seed gives the same bits."""
        network_seed, other_seed = np.random.SeedSequence(seed).spawn(2)
        parameters = Parameters(desc)
        parameters.network[:] = rnnkit.init_weights(desc, int(network_seed.generate_state(1)[0]))
        rng = np.random.default_rng(other_seed)
        parameters.embedding[:] = rng.standard_normal(parameters.embedding.shape)
        bound = desc.output_size**-0.5
        parameters.output_weight[:] = rng.uniform(-bound, bound, parameters.output_weight.shape)
        return cls(desc, parameters, trained_with={})

    def add_gradient(
        self, inputs: np.ndarray, targets: np.ndarray, state: State = ZEROS, *, count: int, seed: int | None = None
    ) -> tuple[float, State]:
        """Return the summed loss over a batch, add the gradient of loss/count, and return the state to go on from.

        A step's batch may come in parts, on several machines even: the gradient is cleared before the first of them,
        and `count` is the number of bytes in all of them.

        Parameters
        ----------
        inputs, targets : ndarray (T, N), uint8
            Bytes, and the byte that follows each of them.
        state : State
            From the call before; the gradient stops at it (truncated backpropagation through time).
        count : int
            What the loss is divided by before its gradient is taken: T*N where this is the whole batch.
        seed : int, optional
            Of the dropout mask.

        Returns
        -------
        loss : float
            Sum of -ln p(target) over the T*N bytes, in nats.
        state : State
            Copies: they outlive the next call.
        """
        parameters, gradient = self.parameters, self.gradient
        x = parameters.embedding[inputs]
        y, hy, cy, self._workspace = rnnkit.forward(
            self.desc, parameters.network, x, *state, seed=seed, workspace=self._workspace
        )
        rows = y.reshape(inputs.size, -1)
        scores = self.scores(rows)
        nats = softmax_loss(scores, targets.ravel())
        scores[np.arange(inputs.size), targets.ravel()] -= 1
        scores /= count

        gradient.output_weight += scores.T @ rows
        gradient.output_bias += scores.sum(axis=0)
        dy = (scores @ parameters.output_weight).reshape(y.shape)
        dx = rnnkit.backward(self.desc, parameters.network, self._workspace, dy, dw=gradient.network).dx
        _add_rows(gradient.embedding, inputs.ravel(), dx.reshape(inputs.size, -1))
        return float(nats.sum(dtype=np.float64)), State(hy.copy(), None if cy is None else cy.copy())

    def loss_and_gradient(
        self, inputs: np.ndarray, targets: np.ndarray, state: State = ZEROS, seed: int | None = None
    ) -> tuple[float, State]:
        """Return the mean loss over a whole batch in nats, leave its gradient, and return the state to go on from."""
        self.gradient.flat.fill(0)
        nats, state = self.add_gradient(inputs, targets, state, count=inputs.size, seed=seed)
        return nats / inputs.size, state

    @property
    def decayed(self) -> list[tuple[slice, bool]]:
        """Parts of the flat buffer in order, and whether weight decay acts on them: matrices, and no biases."""
        network = rnnkit.num_weights(self.desc)
        biases = [block.start for block in rnnkit.weight_layout(self.desc) if len(block.shape) == 1]
        matrices = min(biases, default=network)
        sizes = (
            (self.parameters.embedding.size, True),
            (matrices, True),
            (network - matrices, False),
            (self.parameters.output_weight.size, True),
            (self.parameters.output_bias.size, False),
        )
        ends = accumulate(size for size, _ in sizes)
        return [(slice(end - size, end), acts) for end, (size, acts) in zip(ends, sizes, strict=True)]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to a file that `load` reads, and `rnnkit.load` its network alone.

        Raises
        ------
        OSError
            The file cannot be written; what was there before is left.
        ValueError
            `path` names something that is no regular file.
        """
        archive.write(path, self.members())

    def members(self) -> dict[str, Any]:
        """Return what a file of the model holds, by name."""
        network = members(self.desc, self.parameters.network)
        others = {name: getattr(self.parameters, name) for name in OTHER_PARAMETERS}
        return network | others | {TRAINED_WITH: json.dumps(self.trained_with)}

    def scores(self, y: np.ndarray) -> np.ndarray:
        """Return the scores (rows, 256) of the next byte, before softmax, for outputs of the network (rows, P)."""
        scores = y @ self.parameters.output_weight.T
        scores += self.parameters.output_bias
        return scores


def load(path: str | PathLike[str]) -> TextModel:
    """Read a model that `TextModel.save` wrote.

    Raises
    ------
    OSError
        The file cannot be opened.
    ValueError
        The file is damaged, or holds something else.  Nothing in it is ever unpickled, as in `rnnkit.load`.
    """
    with archive.opened("load", path) as file:
        return read_model(file)


def read_model(file: archive.Reader) -> TextModel:
    """Read a model from an open file, which may hold more; raise ValueError as `load` does."""
    desc, network = read(file)
    if desc.dtype not in HOST_DTYPES or desc.bidirectional:
        expected = f"hold a network of one direction and of dtype {' or '.join(HOST_DTYPES)}"
        raise file.refusal(expected, repr(desc))
    file.require((*OTHER_PARAMETERS, TRAINED_WITH))
    parameters = Parameters(desc)
    parameters.network[:] = network
    for name in OTHER_PARAMETERS:
        own = getattr(parameters, name)
        own[:] = file.array_like(name, own)
    return TextModel(desc, parameters, read_object(file, TRAINED_WITH))


def read_object(file: archive.Reader, name: str) -> dict[str, Any]:
    """Read a member that is one JSON object."""
    text = file.text(name)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise file.refusal(f"hold {name} as JSON", str(error)[:400]) from error
    if not isinstance(found, dict):
        raise file.refusal(f"hold {name} as a JSON object", type(found).__name__)
    return found


def softmax_loss(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Turn scores (rows, 256) into probabilities, in place, and return -ln p(target) for each row, in nats."""
    scores -= scores.max(axis=1, keepdims=True)
    of_target = scores[np.arange(targets.size), targets]
    np.exp(scores, out=scores)
    total = scores.sum(axis=1, keepdims=True)
    scores /= total
    return np.log(total[:, 0]) - of_target


def _add_rows(sums, index, rows):
    """sums[index[i]] += rows[i] for every i; as a sum over runs of equal index, many times faster than np.add.at."""
    order = np.argsort(index, kind="stable")
    values, starts = np.unique(index[order], return_index=True)
    sums[values] += np.add.reduceat(rows[order], starts, axis=0)


def generate(model: TextModel, prompt: bytes, temperature: float, seed: int | None = None) -> Iterator[int]:
    """Yield the bytes that the model goes on with, one at a time and without end.

    Parameters
    ----------
    model : TextModel
    prompt : bytes
        What the model has read before, at least one byte.
    temperature : float
        0: always the likeliest byte; 1: drawn from the model's distribution; between: nearer to the likeliest.
    seed : int, optional
        The same seed gives the same bytes.

    Raises
    ------
    ValueError
        The scores of the next byte are not numbers: nothing can be drawn from them.
    """
    desc, parameters = model.desc, model.parameters
    plan = rnnkit.prepare(desc, parameters.network)
    rng = np.random.default_rng(seed)
    hx = np.zeros((desc.num_layers, 1, desc.output_size), desc.np_dtype)
    cx = np.zeros((desc.num_layers, 1, desc.hidden_size), desc.np_dtype) if desc.has_cell else None
    unread = list(prompt)
    while True:
        for byte in unread:
            y, hx, cx = plan.step(parameters.embedding[[byte]], hx, cx)
        # The largest of scores/temperature + Gumbel noise is a draw from their softmax (the Gumbel-max trick).
        noise = rng.gumbel(size=VOCABULARY)
        scores = model.scores(y)[0] + temperature * noise
        if np.isnan(scores).any():
            raise ValueError(message("generate", "model", "give scores that are numbers", "NaN", "train it anew"))
        byte = int(np.argmax(scores))
        unread = [byte]
        yield byte
