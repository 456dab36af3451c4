"""Compression of blocks of bytes with a model; any machine can decompress them.

Encoder and decoder compute bit-identical scores on any CPU and with any number of threads. With dynamic evaluation
(Krause et al., arXiv 1709.07432) the model learns: it takes a step after every few bytes, and the decoder repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from hashlib import sha256

import numpy as np

import rnnkit
from rnnkit.compression import RangeDecoder, RangeEncoder
from rnnkit.descriptor.saved import descriptor_json
from rnnkit.language_model.model import ALL_BYTES, State, TextModel
from rnnkit.network.changing import ChangingPlan
from rnnkit.training import Adam, clip_gradient_norm, dense

MIN_ROW = 256  # bytes; a short block has fewer rows
CHUNK_BYTES = 1024  # bytes that are encoded at once if the model does not learn
INITIAL_BYTE = ord("\n")  # read by every row before its first byte
BETA2, CLIP = 0.999, 1.0
PEAK_RATE, MIN_RATE, WARMUP_STEPS, DECAY_STEPS = 5e-3, 1.5e-3, 32, 1000  # of the learning rate


def rate_of(step: int) -> float:
    """Return the learning rate of step 0, 1, ..., bit-identical everywhere: of a C library it uses only sqrt."""
    return max(MIN_RATE, PEAK_RATE * min(1.0, (step + 1) / WARMUP_STEPS) / math.sqrt(1 + step / DECAY_STEPS))


class Coder:
    """Encodes or decodes blocks of bytes, one after the other.

    A block is cut into rows, which are the batch of the network. Blocks are independent unless the model learns.

    Parameters
    ----------
    model : TextModel
        Changed if it learns.
    streams : int
        Maximum number of rows.
    chunk : int
        Steps between two updates of the model; 0: it does not learn.
    progress : callable
        Called with the number of bytes encoded or decoded since its last call.
    """

    def __init__(self, model: TextModel, streams: int, chunk: int, progress: Callable[[int], object] = int):
        self.model, self._streams, self._chunk, self._progress = model, streams, chunk, progress
        self._blocks = [block for block, _ in model.weight_decay_groups]
        self._updates, self._is_packed = 0, False
        self._plan: ChangingPlan | None = None
        if chunk:
            self._optimizer = Adam([model.parameters.flat[block] for block in self._blocks], beta2=BETA2)

    def encode(self, data: bytes) -> bytes:
        """Return the payload of a block of at least one byte."""
        encoder, state = RangeEncoder(self.model.class_of), State()
        text, before = self._rows(np.frombuffer(data, np.uint8))
        for start, stop, count in self._pieces(len(data)):
            targets, inputs = text[start:stop, :count], before[start:stop, :count]
            scores, state = self._predict(inputs, state.map(_rows_of(count)))
            encoder.encode_scores(targets.ravel(), scores)
            self._learn(scores, targets)
            self._progress(targets.size)
        return encoder.finish()

    def decode(self, payload: bytes, size: int) -> bytes:
        """Return the block of `size` bytes that has this payload."""
        decoder, state = RangeDecoder(payload, self.model.class_of), State()
        text, before = self._rows(np.zeros(size, np.uint8))
        for start, stop, count in self._pieces(size):
            state = state.map(_rows_of(count))
            stream, inputs = self._stream(count, state), self.model.inputs(ALL_BYTES)
            for t in range(start, stop):
                y = stream.step(inputs.take(before[t, :count], axis=0))
                text[t, :count] = before[t + 1, :count] = decoder.decode_scores(self._scores(y))
            if self._chunk:
                scores, state = self._predict(before[start:stop, :count], state)
                self._learn(scores, text[start:stop, :count])
            else:
                state = State(**stream.state)
            self._progress((stop - start) * count)
        return text.T.tobytes()[:size]

    def _rows(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes (row_size, rows) and those before each of them (row_size + 1, rows)."""
        rows, row_size = self._shape(len(data))
        text = np.zeros((rows, row_size), np.uint8)
        text.reshape(-1)[: len(data)] = data
        text = np.ascontiguousarray(text.T)
        return text, np.concatenate([np.full((1, rows), INITIAL_BYTE, np.uint8), text])

    def _shape(self, size: int) -> tuple[int, int]:
        rows = max(1, min(self._streams, size // MIN_ROW))
        row_size = -(-size // rows)
        return -(-size // row_size), row_size

    def _pieces(self, size: int) -> Iterator[tuple[int, int, int]]:
        """Yield steps start, stop, and the number of rows that have bytes there: the last row may be shorter."""
        rows, row_size = self._shape(size)
        last = size - (rows - 1) * row_size
        chunk = self._chunk or max(1, CHUNK_BYTES // rows)
        for begin, end, count in ((0, last, rows), (last, row_size, rows - 1)):
            for start in range(begin, end, chunk):
                yield start, min(start + chunk, end), count

    def _packed(self) -> ChangingPlan:
        """Return the plan, after packing the current weights."""
        w = self.model.parameters.network
        if self._plan is None:
            self._plan = ChangingPlan(self.model.desc, w)
        elif not self._is_packed:
            self._plan.repack(w)
        self._is_packed = True
        return self._plan

    def _stream(self, count: int, state: State) -> rnnkit.Stream:
        """Return the states of so many rows, for single steps."""
        stream = self._packed().stream(count)
        if state.hx is not None:
            found = {"hx": state.hx}
            if state.cx is not None:
                found["cx"] = np.concatenate(state.cx, axis=2) if isinstance(state.cx, tuple) else state.cx
            stream.restore(found)
        return stream

    def _scores(self, y: np.ndarray) -> np.ndarray:
        return dense(self.model.parameters.readout, y, self.model.num_classes)

    def _predict(self, inputs: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        if self._chunk:
            return self.model.predict(inputs, state)
        y, *after = self._packed().infer(self.model.inputs(inputs), *state)
        return self._scores(y.reshape(inputs.size, -1)), State(*after)

    def _learn(self, scores: np.ndarray, targets: np.ndarray) -> None:
        if not self._chunk:
            return
        gradient = self.model.gradient
        gradient.buffer.fill(0)
        self.model.learn(scores, targets, count=targets.size)
        clip_gradient_norm(gradient.flat, CLIP)
        self._optimizer.step([gradient.flat[block] for block in self._blocks], rate_of(self._updates))
        self._updates, self._is_packed = self._updates + 1, False


def _rows_of(count: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda states: np.ascontiguousarray(states[:, :count])


def digest(model: TextModel) -> bytes:
    """Return a 16-byte digest of a model: its network, alphabet and weights."""
    found = sha256(descriptor_json(model.desc).encode() + b"\0")
    found.update(model.alphabet.tobytes() + b"\0" + model.parameters.flat.tobytes())
    return found.digest()[:16]
