"""A byte-level language model: embedding, recurrent network, softmax over the next byte."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from itertools import accumulate
from os import PathLike
from typing import Any, NamedTuple, get_args

import numpy as np

import rnnkit
from rnnkit import training
from rnnkit.common.numbers import uniform
from rnnkit.errors import message
from rnnkit.language_model import files
from rnnkit.types import CallPrecision, HostDType

ALL_BYTES = np.arange(256, dtype=np.uint8)
ALPHABET = "alphabet"
OTHER_PARAMETERS = ("embedding", "output_weight", "output_bias")  # besides the network's
TRAINED_WITH = "trained_with"
DTYPES = get_args(HostDType)
EXTRA_SUMS = 3  # elements after the gradient, summed over ranks with it


class State(NamedTuple):
    """State between calls: hx (L, N, P) and, for an LSTM, cx (L, N, H), or a tuple of these for a cell with several
    states; None means zeros."""

    hx: np.ndarray | None = None
    cx: Any = None

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> State:
        """Return the state with the results of the function for each array."""
        hx, cx = self
        after = tuple(map(function, cx)) if isinstance(cx, tuple) else None if cx is None else function(cx)
        return State(None if hx is None else function(hx), after)


ZEROS = State()


class Parameters:
    """All parameters in one flat buffer, so that an optimizer step is one pass over it.

    Parameters
    ----------
    desc : RNNDescriptor
        Of one direction; its input_size I is the size of the embedding.
    num_classes : int
        C, one class for each byte of the alphabet and one for all others.
    num_extra : int
        Extra elements after the parameters, which are summed over ranks together with a gradient.

    Attributes
    ----------
    buffer : ndarray (size + num_extra,), desc.dtype
        Parameters and extra elements; zeros at first.
    flat : ndarray (size,), desc.dtype
        The parameters, without the extra elements. The arrays below are views of it.
    embedding : ndarray (C, I)
    network : ndarray (num_weights,)
        The recurrent network's flat buffer.
    output_weight, output_bias : ndarray (C, P), (C,)
    readout : ndarray (C*P + C,)
        Output weight and bias, for `rnnkit.training.dense`.
    """

    def __init__(self, desc: rnnkit.RNNDescriptor, num_classes: int, num_extra: int = 0):
        shapes = (
            (num_classes, desc.input_size),
            (rnnkit.num_weights(desc),),
            (num_classes, desc.output_size),
            (num_classes,),
        )
        ends = list(accumulate(map(math.prod, shapes)))
        nbytes = (ends[-1] + num_extra) * desc.np_dtype.itemsize
        if nbytes > sys.maxsize:  # for what is below, NumPy raises MemoryError
            raise MemoryError(message("Parameters", "desc", f"have weights of at most {sys.maxsize} bytes", nbytes))
        self.buffer = np.zeros(ends[-1] + num_extra, desc.np_dtype)
        self.flat = self.buffer[: ends[-1]]
        parts = np.split(self.flat, ends[:-1])
        views = (part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
        self.embedding, self.network, self.output_weight, self.output_bias = views
        self.readout = self.flat[ends[1] :]


class TextModel:
    """A language model and the gradient of its loss.

    Each byte of the alphabet has its own class. All other bytes share the last class and are equally likely in it.

    Parameters
    ----------
    desc : RNNDescriptor
        Of one direction; its input_size is the size of the embedding.
    alphabet : ndarray (K,), uint8
        Distinct bytes in ascending order, for example those of the training text.
    parameters : Parameters
        With K + 1 classes; kept by reference.
    trained_with : dict
        Settings of the last training, as numbers and text; empty before the first.

    Attributes
    ----------
    gradient : Parameters
        What `add_gradient` adds to; zeros at first.
    class_of : ndarray (256,), int64
        The class of each byte.
    num_classes : int
        C = K + 1.
    """

    def __init__(
        self, desc: rnnkit.RNNDescriptor, alphabet: np.ndarray, parameters: Parameters, trained_with: dict[str, Any]
    ):
        self.desc = desc
        self.alphabet = alphabet
        self.parameters = parameters
        self.trained_with = trained_with
        self.num_classes = len(alphabet) + 1
        self.gradient = Parameters(desc, self.num_classes, EXTRA_SUMS)
        self.class_of = np.full(256, len(alphabet))
        self.class_of[alphabet] = np.arange(len(alphabet))
        self._scores = np.empty((0, self.num_classes), desc.np_dtype)
        self._workspace: Any = None
        self._predicted: Any = None  # saved by `predict` for `learn`

    @classmethod
    def random(cls, desc: rnnkit.RNNDescriptor, seed: int, alphabet: np.ndarray = ALL_BYTES) -> TextModel:
        """Return an untrained model; the same seed gives bit-identical weights on every machine.

        The embedding is uniform with variance 1, the readout is initialised like PyTorch's Linear.
        """
        network_seed, other_seed = np.random.SeedSequence(seed).spawn(2)
        parameters = Parameters(desc, len(alphabet) + 1)
        parameters.network[:] = rnnkit.init_weights(desc, int(network_seed.generate_state(1)[0]))
        rng = np.random.default_rng(other_seed)
        bounds = {"embedding": math.sqrt(3), "output_weight": 1 / math.sqrt(desc.output_size)}
        for name, bound in bounds.items():
            own = getattr(parameters, name)
            own[:] = uniform(rng, -bound, bound, own.shape)
        return cls(desc, alphabet, parameters, trained_with={})

    def copy(self) -> TextModel:
        """Return a copy without dropout and noise, which can learn from what it predicts (dynamic evaluation)."""
        parameters = Parameters(self.desc.evaluating, self.num_classes)
        parameters.flat[:] = self.parameters.flat
        return TextModel(self.desc.evaluating, self.alphabet, parameters, trained_with={})

    def add_gradient(
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        state: State = ZEROS,
        *,
        count: int,
        seed: int | None = None,
        first_row: int = 0,
        precision: CallPrecision | None = None,
    ) -> tuple[float, State]:
        """Add the gradient of loss/count over a batch; return the summed loss, and the state after the batch.

        The batch of a step may be split into parts, also over ranks: clear the gradient before the first part, and give
        the number of bytes of the whole batch as `count`.

        Parameters
        ----------
        inputs, targets : ndarray (T, N), uint8
            Bytes, and the byte that follows each of them.
        state : State
            From the previous call; the gradient stops there (truncated backpropagation through time).
        count : int
            Divisor of the loss in the gradient: T*N if this is the whole batch.
        seed : int, optional
            Seed of the dropout masks and of the cell's noise.
        first_row : int
            The index of this part's first row in the whole batch.
        precision : {"bfloat16"}, optional
            Of the network's products, as in :func:`rnnkit.forward`.

        Returns
        -------
        loss : float
            Sum of -ln p(target) over the T*N bytes, in nats.
        state : State
            Copies, which stay valid after the next call.
        """
        scores, state = self.predict(inputs, state, seed=seed, first_row=first_row, precision=precision)
        return self.learn(scores, targets, count=count), state

    def predict(
        self,
        inputs: np.ndarray,
        state: State = ZEROS,
        *,
        seed: int | None = None,
        first_row: int = 0,
        precision: CallPrecision | None = None,
    ) -> tuple[np.ndarray, State]:
        """Run the network as in training; return the scores (T*N, C) before softmax, and the state after the batch.

        The arguments are those of `add_gradient`. The scores are valid until the next call.
        """
        parameters, classes = self.parameters, self.class_of[inputs]
        y, hy, cy, self._workspace = rnnkit.forward(
            self.desc,
            parameters.network,
            parameters.embedding[classes],
            *state,
            seed=seed,
            first_row=first_row,
            workspace=self._workspace,
            precision=precision,
        )
        outputs, mask = y.reshape(inputs.size, -1), None
        if self.desc.dropout:
            mask = training.dropout_mask(y.shape, self.desc.dropout, seed, first_row=first_row, dtype=y.dtype.name)
            mask = mask.reshape(outputs.shape)
            outputs = outputs * mask
        if len(self._scores) != inputs.size:
            self._scores = np.empty((inputs.size, self.num_classes), y.dtype)
        self._predicted = classes, outputs, mask
        scores = training.dense(parameters.readout, outputs, self.num_classes, out=self._scores)
        return scores, State(hy, cy).map(np.copy)

    def learn(self, scores: np.ndarray, targets: np.ndarray, *, count: int) -> float:
        """Add the gradient of loss/count and return the summed loss in nats, for targets (T, N) and the scores of the
        last call of `predict`. The gradient by the scores overwrites them."""
        parameters, gradient, (classes, outputs, mask) = self.parameters, self.gradient, self._predicted
        wanted = self.class_of[targets].ravel()
        loss = training.softmax_cross_entropy(scores, wanted, count=count, out=scores)
        dy = training.dense_backward(parameters.readout, outputs, loss.gradient, dw=gradient.readout).dx
        if mask is not None:
            dy *= mask
        dx = rnnkit.backward(
            self.desc, parameters.network, self._workspace, dy.reshape(*targets.shape, -1), dw=gradient.network
        ).dx
        # The index of each number, not of each row, for which NumPy takes five times as long.
        size = self.desc.input_size
        places = classes.reshape(-1, 1) * size + np.arange(size)
        with np.errstate(all="ignore"):  # as kernels do
            np.add.at(gradient.embedding.reshape(-1), places.reshape(-1), dx.reshape(-1))
        return loss.loss * count + self._nats_of_others(wanted)

    def nats(self, y: np.ndarray, targets: np.ndarray) -> float:
        """Return the sum of -ln p(target), given outputs of the network (rows, P) and target bytes (rows,)."""
        wanted = self.class_of[targets]
        scores = training.dense(self.parameters.readout, y, self.num_classes)
        loss = training.softmax_cross_entropy(scores, wanted, count=1, out=scores).loss
        return loss + self._nats_of_others(wanted)

    def inputs(self, data: np.ndarray) -> np.ndarray:
        """Return the embeddings (T, N, I) of bytes (T, N), the input of the network."""
        return self.parameters.embedding[self.class_of[data]]

    def scores(self, y: np.ndarray) -> np.ndarray:
        """Return the scores (rows, K) of the alphabet before softmax for outputs of the network (rows, P)."""
        return training.dense(self.parameters.readout, y, self.num_classes)[:, :-1]

    def _nats_of_others(self, classes: np.ndarray) -> float:
        """Return the nats that tell the bytes outside of the alphabet from each other."""
        num_others = np.count_nonzero(classes == len(self.alphabet))
        return num_others * math.log(256 - len(self.alphabet)) if num_others else 0.0

    @property
    def weight_decay_groups(self) -> list[tuple[slice, bool]]:
        """Slices of the flat buffer in order, and whether weight decay acts on each: on matrices, not on biases."""
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
        """Write the model to a file. `load` reads it; `rnnkit.load` reads only its network.

        Raises
        ------
        OSError
            The file cannot be written; an old file is kept.
        ValueError
            `path` is not a regular file.
        """
        files.write(path, self.desc, self.parameters.network, self.arrays())

    def arrays(self) -> dict[str, Any]:
        """Return the arrays of a model's file besides its network, by name."""
        others = {name: getattr(self.parameters, name) for name in OTHER_PARAMETERS}
        return others | {ALPHABET: self.alphabet, TRAINED_WITH: json.dumps(self.trained_with)}


def load(path: str | PathLike[str]) -> TextModel:
    """Read a model that `TextModel.save` wrote.

    Raises
    ------
    OSError
        The file cannot be opened.
    ValueError
        The file is damaged, or holds something else, for example a model of rnnkit 0.4, which has no alphabet. Nothing
        in it is ever unpickled, as in `rnnkit.load`.
    """
    return read_model(files.File(path))


def read_model(file: files.File) -> TextModel:
    """Return the model of a file, which may hold more; raise ValueError as `load` does."""
    desc = file.desc
    if desc.dtype not in DTYPES or desc.bidirectional or desc.inputs_size:
        expected = f"hold a network with one direction, no side inputs, and dtype {' or '.join(DTYPES)}"
        raise file.refusal(expected, repr(desc))
    file.require(*OTHER_PARAMETERS, ALPHABET, TRAINED_WITH)
    alphabet = _read_alphabet(file)
    parameters = Parameters(desc, len(alphabet) + 1)
    parameters.network[:] = file.weights
    for name in OTHER_PARAMETERS:
        own = getattr(parameters, name)
        own[:] = file.array_of(name, own.dtype, own.shape)
    return TextModel(desc, alphabet, parameters, file.object_of(TRAINED_WITH))


def _read_alphabet(file: files.File) -> np.ndarray:
    alphabet = file.arrays[ALPHABET]
    if alphabet.dtype != np.uint8 or alphabet.ndim != 1 or not 1 <= alphabet.size <= 256:
        expected = f"hold {ALPHABET} of dtype uint8 and shape (1..256,)"
        raise file.refusal(expected, f"dtype {alphabet.dtype} and shape {alphabet.shape}")
    if np.any(alphabet[1:] <= alphabet[:-1]):
        raise file.refusal(f"hold {ALPHABET} in ascending order", "a different order, or a byte twice")
    return alphabet
