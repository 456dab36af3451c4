"""Time models of Keras before and after `rnnkit.keras.accelerate`: steps at 60 sizes, and programs, on each backend.

A backend has one process per number of threads, which runs on as many cores. Both models have equal weights and
inputs; they run in turn, in many short windows; the minimum of each counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from perf.call_suite import least_seconds, timed
from perf.timing import Worker

BACKENDS = "torch", "jax", "tensorflow"
_CLOSE = 1e-4  # of the largest value


class Step(NamedTuple):
    """`train_on_batch` or `predict_on_batch` of one recurrent layer and a Dense(1), or a program's fit or predict."""

    backend: str
    what: str  # train, predict
    model: str  # LSTM, GRU, or a program
    seq_len: int = 0
    batch_size: int = 0
    hidden_size: int = 0

    @property
    def name(self) -> str:
        """Return the name for patterns and the report."""
        sizes = f"-t{self.seq_len}-n{self.batch_size}-h{self.hidden_size}" if self.seq_len else ""
        return f"{self.backend}-{self.what}-{self.model.lower()}{sizes}"


SIZES = (1, 16), (32, 32), (32, 64), (64, 128), (32, 256)
PROGRAMS = "classifier", "embedded", "forecaster", "tagger"
_WAYS = "train", "predict"
CASES = tuple(
    Step(backend, *one)
    for backend in BACKENDS
    for one in (
        *((*each, *size) for *each, size in product(_WAYS, ("LSTM", "GRU"), (10, 30, 100), SIZES)),
        *product(_WAYS, PROGRAMS),
    )
)


class Row(NamedTuple):
    """Seconds of both models."""

    step: Step
    threads: int
    plain: float
    own: float

    def __str__(self) -> str:
        times = f"Keras {self.plain * 1e3:9.3f} ms  rnnkit {self.own * 1e3:9.3f} ms"
        return f"{self.step.name:38} {self.threads} threads  {times}  {self.plain / self.own:6.2f}x"


def run(pattern: str, threads: list[int], seconds: float) -> list[Row]:
    """Time the cases whose names match one of the patterns, on the backends that are installed, and print each."""
    workers: dict[tuple[str, int], Worker] = {}

    def measure(step: Step, count: int) -> Row:
        at = step.backend, count
        if at not in workers:
            workers[at] = Worker(step.backend, count, kind=Models)
        return Row(step, count, *workers[at].call("measure", step, seconds))

    installed = [one for one in BACKENDS if find_spec(one) is not None]
    try:
        return timed({one.name: one for one in CASES if one.backend in installed}, pattern, threads, measure)
    finally:
        for worker in workers.values():
            worker.close()


class Models:
    """The process that runs them."""

    def __init__(self, engine: str, threads: int, device: str) -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
        os.environ |= {"KERAS_BACKEND": engine, "JAX_PLATFORMS": device, "TF_CPP_MIN_LOG_LEVEL": "3"}
        if engine == "torch":
            import torch

            torch.set_num_threads(threads)

    def measure(self, step: Step, seconds: float) -> list[float]:
        """Return the seconds of Keras and of rnnkit, after their results were found the same."""
        import rnnkit.keras

        runs = []
        for accelerated in False, True:
            model, x, labels = _made(step)
            if accelerated and not rnnkit.keras.accelerate(model).changed:
                raise AssertionError("no layer was switched")
            runs.append(_run(step, model, x, labels))
        expected, found = (np.asarray(one()) for one in runs)
        if not np.abs(found - expected).max() <= _CLOSE * np.abs(expected).max():
            raise AssertionError(f"results are not close: they differ by {np.abs(found - expected).max()}")
        return least_seconds(runs, seconds)


def _run(step: Step, model: Any, x: Any, labels: Any) -> Callable[[], Any]:
    if step.model in PROGRAMS:
        if step.what == "predict":
            return lambda: model.predict(x, batch_size=32, verbose=0)
        return lambda: model.fit(x, labels, batch_size=32, shuffle=False, verbose=0).history["loss"]
    if step.what == "predict":
        return lambda: model.predict_on_batch(x)
    return lambda: model.train_on_batch(x, labels)


def _made(step: Step) -> tuple[Any, Any, Any]:
    """Return a compiled model, its inputs and labels: the same ones for each call."""
    import keras

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    if step.model in PROGRAMS:
        layers, loss, x, labels = _PROGRAMS[step.model](keras.layers, rng)
    else:
        x = rng.standard_normal((step.batch_size, step.seq_len, 16), np.float32)
        labels, loss = rng.standard_normal((step.batch_size, 1)).astype(np.float32), "mse"
        layers = [getattr(keras.layers, step.model)(step.hidden_size), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input(x.shape[1:], dtype=x.dtype.name), *layers])
    model.compile("adam", loss)
    return model, x, labels


def _words(rng: Any, steps: int, left: bool) -> tuple[Any, Any]:
    """Return 128 sequences of words with 0 as padding, and a label of 0 or 1 for each."""
    lengths, at = rng.integers(steps // 10, steps + 1, (128, 1)), np.arange(steps)
    seen = at >= steps - lengths if left else at < lengths
    return (rng.integers(1, 5000, (128, steps)) * seen).astype(np.int32), rng.integers(0, 2, (128, 1)).astype("f4")


def _classifier(layers: Any, rng: Any) -> tuple[Any, ...]:
    """Left-padded texts, as `pad_sequences` makes them."""
    # Without a seed, PyTorch's generator of the process would give both models other masks.
    own = layers.LSTM(64, dropout=0.2, seed=1), layers.Dense(1, "sigmoid")
    return (layers.Embedding(5000, 64, mask_zero=True), *own), "binary_crossentropy", *_words(rng, 200, left=True)


def _embedded(layers: Any, rng: Any) -> tuple[Any, ...]:
    """Right-padded texts and a large layer."""
    own = layers.Embedding(5000, 128, mask_zero=True), layers.LSTM(256), layers.Dense(1, "sigmoid")
    return own, "binary_crossentropy", *_words(rng, 200, left=False)


def _forecaster(layers: Any, rng: Any) -> tuple[Any, ...]:
    """Two layers without a mask."""
    x, labels = (rng.standard_normal(shape).astype("f4") for shape in ((512, 48, 6), (512, 1)))
    return (layers.LSTM(64, return_sequences=True), layers.LSTM(32), layers.Dense(1)), "mse", x, labels


def _tagger(layers: Any, rng: Any) -> tuple[Any, ...]:
    """Two bidirectional layers, right-padded."""
    x, _ = _words(rng, 50, left=False)
    both = [layers.Bidirectional(layers.LSTM(100, return_sequences=True)) for _ in range(2)]
    own = layers.Embedding(5000, 100, mask_zero=True), *both, layers.Dense(20, "softmax")
    return own, "sparse_categorical_crossentropy", x, rng.integers(0, 20, x.shape)


_PROGRAMS = dict(zip(PROGRAMS, (_classifier, _embedded, _forecaster, _tagger), strict=True))
