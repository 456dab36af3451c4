"""Time `rnnkit.jax` beside what JAX's users write: a careful loop with `lax.scan`, and Flax's `nnx.RNN`.

All are compiled by XLA, in one process per number of threads, which runs on as many cores. They run in turn, in many
short windows; the minimum of each counts. A row's factor compares rnnkit with the faster one of the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from perf.call_suite import least_seconds, timed
from perf.timing import Worker

_TOLERANCE = {"infer": 1e-5, "steps": 1e-5, "train": 1e-4}  # of the largest number


class Recurrent(NamedTuple):
    """A call on sequences: `infer`, `train`, or `steps`, an outer scan over calls of one step as in a rollout."""

    what: str
    mode: str
    seq_len: int
    batch_size: int
    hidden_size: int
    extra: str = ""  # lengths, resets

    @property
    def name(self) -> str:
        """Return the name for patterns and the report."""
        extra = f"-{self.extra}" if self.extra else ""
        return f"{self.what}-{self.mode}{extra}-t{self.seq_len}-n{self.batch_size}-h{self.hidden_size}"


MODES, STEPS = ("lstm", "gru"), (1, 5, 20, 50, 100)
SIZES = (1, 16), (1, 64), (4, 32), (8, 64), (16, 128), (64, 256)
LARGE = (300, 20, 800), (300, 64, 800)
CASES = (
    *(Recurrent(*one, *size) for *one, size in product(("infer", "train"), MODES, STEPS, SIZES)),
    *(Recurrent(what, "lstm", *size) for what in ("infer", "train") for size in LARGE),
    *(Recurrent("steps", mode, 100, *size) for mode in MODES for size in SIZES),
    *(Recurrent("train", mode, 50, 16, 128, extra) for mode in MODES for extra in ("lengths", "resets")),
)


class Row(NamedTuple):
    """Seconds of each way; None where Flax has none."""

    case: Recurrent
    threads: int
    scan: float
    flax: float | None
    own: float

    def __str__(self) -> str:
        others = self.scan, *([] if self.flax is None else [self.flax])
        flax = "" if self.flax is None else f"  flax {self.flax * 1e6:10.1f} us"
        times = f"scan {self.scan * 1e6:10.1f} us{flax}  rnnkit {self.own * 1e6:10.1f} us"
        return f"{self.case.name:36} {self.threads} threads  {times}  {min(others) / self.own:5.2f}x"


def run(pattern: str, threads: list[int], seconds: float) -> list[Row]:
    """Time the cases whose names match one of the patterns, and print each."""
    workers: dict[int, Worker] = {}

    def measure(case: Recurrent, count: int) -> Row:
        if count not in workers:
            workers[count] = Worker("jax", count, kind=Calls)
        return Row(case, count, *workers[count].call("measure", case, seconds))

    try:
        return timed({case.name: case for case in CASES}, pattern, threads, measure)
    finally:
        for worker in workers.values():
            worker.close()


class Calls:
    """The process that runs them."""

    def __init__(self, engine: str, threads: int, device: str) -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
        os.environ["JAX_PLATFORMS"] = device
        import jax

        self.jax = jax

    def measure(self, case: Recurrent, seconds: float) -> tuple[float, float | None, float]:
        """Return the seconds of the loop, of Flax and of rnnkit, after their results were found the same."""
        sizes = case.seq_len, case.batch_size, case.hidden_size
        arrays = _arrays(case.mode, case.extra, *sizes)
        ways = [_scan, _own] if case.what == "steps" or case.extra == "resets" else [_scan, _flax, _own]
        calls = [self._timed(case, *way(case, arrays), arrays) for way in ways]
        expected, *others = (call() for call in calls)
        for found in others:
            check_close(found, expected, _TOLERANCE[case.what])
        scan, *flax, own = least_seconds(calls, seconds)
        return scan, (flax[0] if flax else None), own

    def _timed(self, case: Recurrent, network: Any, weights: Any, arrays: Any) -> Callable[[], Any]:
        """Compile a call; its results are y or the loss, and of `train` the gradients of x and the weights."""
        jax = self.jax
        x, dy, *options = (None if one is None else jax.numpy.asarray(one) for one in arrays[1:])
        if case.what == "train":
            loss = lambda weights, x: jax.numpy.vdot(network(weights, x, *options), dy)  # noqa: E731
            run = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(weights, x).compile()
        else:
            run = jax.jit(lambda weights, x: (network(weights, x, *options),)).lower(weights, x).compile()
        return lambda: jax.block_until_ready(run(weights, x))


def _arrays(mode: str, extra: str, steps: int, rows: int, size: int) -> tuple[Any, ...]:
    """Return the weights W, R and biases, x, the gradient of y, lengths and resets."""
    rng, gates = np.random.default_rng(0), {"lstm": 4, "gru": 3}[mode] * size
    shapes = (gates, size), (gates, size), (gates,), (gates,)
    weights = [rng.uniform(-(size**-0.5), size**-0.5, shape).astype(np.float32) for shape in shapes]
    weights[3][:] = 0  # Flax has one bias
    x, dy = (rng.standard_normal((steps, rows, size), np.float32) for _ in range(2))
    lengths = rng.integers(steps // 8 + 1, steps + 1, rows).astype(np.int32) if extra == "lengths" else None
    return weights, x, dy, lengths, rng.random((steps, rows)) < 0.02 if extra == "resets" else None


def _own(case: Recurrent, arrays: Any) -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp

    import rnnkit
    import rnnkit.jax

    desc = rnnkit.RNNDescriptor(case.mode, case.hidden_size, case.hidden_size)
    weights = jnp.concatenate([jnp.asarray(one).ravel() for one in arrays[0]])

    def network(weights: Any, x: Any, lengths: Any, resets: Any) -> Any:
        return rnnkit.jax.rnn(desc, weights, x, lengths=lengths, resets=resets).y

    def steps(weights: Any, x: Any, *options: Any) -> Any:
        zeros = jnp.zeros((1, *x.shape[1:]), x.dtype)

        def step(states: Any, x: Any) -> Any:
            y, hy, cy = rnnkit.jax.rnn(desc, weights, x[None], *states)
            return (hy,) if cy is None else (hy, cy), y[0]

        return jax.lax.scan(step, (zeros,) * (2 if desc.has_cell_state else 1), x)[1]

    return steps if case.what == "steps" else network, weights


def _scan(case: Recurrent, arrays: Any) -> tuple[Any, Any]:
    """The loop of a careful user: the input product of all steps at once, and weights in the order that XLA likes."""
    import jax
    import jax.numpy as jnp

    is_lstm = case.mode == "lstm"

    def network(weights: Any, x: Any, lengths: Any, resets: Any) -> Any:
        w, r, b, b_r = weights
        inputs = x @ w + b if case.what != "steps" else x
        valid = None if lengths is None else (jnp.arange(len(x))[:, None] < lengths)[..., None]
        marks = None if resets is None else resets[..., None]
        zeros = jnp.zeros((x.shape[1], len(r)), x.dtype)

        def step(states: Any, given: Any) -> Any:
            x, valid, reset = given
            gates, before = (x if case.what != "steps" else x @ w + b), states
            if reset is not None:
                states = tuple(jnp.where(reset, 0, one) for one in states)
            if is_lstm:
                i, f, g, o = jnp.split(gates + states[0] @ r, 4, -1)
                c = jax.nn.sigmoid(f) * states[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
                after = jax.nn.sigmoid(o) * jnp.tanh(c), c
            else:
                (a_r, a_z, a_n), (h_r, h_z, h_n) = jnp.split(gates, 3, -1), jnp.split(states[0] @ r + b_r, 3, -1)
                reset_gate, z = jax.nn.sigmoid(a_r + h_r), jax.nn.sigmoid(a_z + h_z)
                after = ((1 - z) * jnp.tanh(a_n + reset_gate * h_n) + z * states[0],)
            y = after[0]
            if valid is not None:
                after = tuple(jnp.where(valid, new, old) for new, old in zip(after, before, strict=True))
                y = jnp.where(valid, y, 0)
            return after, y

        return jax.lax.scan(step, (zeros,) * (2 if is_lstm else 1), (inputs, valid, marks))[1]

    w, r, b, b_r = (jnp.asarray(np.ascontiguousarray(one.T)) for one in arrays[0])
    return network, (w, r, b, b_r)


def _flax(case: Recurrent, arrays: Any) -> tuple[Any, Any]:
    import jax.numpy as jnp
    from flax import nnx

    size, is_lstm = case.hidden_size, case.mode == "lstm"
    layer = nnx.RNN((nnx.OptimizedLSTMCell if is_lstm else nnx.GRUCell)(size, size, rngs=nnx.Rngs(0)), time_major=True)
    (w, r, b, _), cell = arrays[0], layer.cell
    cell.dense_i.kernel[...], cell.dense_h.kernel[...] = jnp.asarray(w.T), jnp.asarray(r.T)
    if is_lstm:
        cell.dense_h.bias[...] = jnp.asarray(b)
    else:
        cell.dense_i.bias[...] = jnp.asarray(b)
    graph, state, rest = nnx.split(layer, nnx.Param, ...)

    def network(state: Any, x: Any, lengths: Any, resets: Any) -> Any:
        zeros = jnp.zeros(x.shape[1:], x.dtype)
        y = nnx.merge(graph, state, rest)(x, seq_lengths=lengths, initial_carry=(zeros, zeros) if is_lstm else zeros)
        return y if lengths is None else jnp.where((jnp.arange(len(x))[:, None] < lengths)[..., None], y, 0)

    return network, state


def check_close(found: Any, expected: Any, tolerance: float) -> None:
    """Raise unless y, or the loss and the gradient of x, are the same; the weights of each way are ordered differently.

    The tolerance is relative to the largest number.
    """
    pairs = [(found[0], expected[0])]
    if len(found) > 1:
        pairs.append((found[1][1], expected[1][1]))
    for one, other in pairs:
        largest = np.abs(np.asarray(one) - np.asarray(other)).max()
        if not largest <= tolerance * np.abs(other).max():
            raise AssertionError(f"results are not close: they differ by {largest}")
