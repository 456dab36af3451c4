"""The timed problems: named cases, their data and their FLOPs. Cases are append-only: never change one."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

import rnnkit
from rnnkit.descriptor.descriptor import MODES
from rnnkit.errors import message

PASSES = ("infer", "train", "step", "serve")
STEP_SIZES = (32, 64, 128, 256, 512, 1024)


class Case(NamedTuple):
    """One problem; T is `seq_len`, N is `batch_size`, the other sizes are the descriptor's."""

    family: str
    desc: rnnkit.RNNDescriptor
    seq_len: int
    batch_size: int
    shortest: int | None = None  # lengths are drawn from shortest..seq_len; None: all have seq_len
    passes: tuple[str, ...] = ("infer", "train")
    alone: bool = False  # timed without competitors
    device: str | None = None  # the only device for this case; None: any
    num_streams: int | None = None  # of the pass serve: T times, N random streams make a step
    precision: str | None = None  # number format of a plan's weights (`reduced_suite`)
    feature: float = 1.0  # size of the first feature of x; its weights have the inverse size

    @property
    def name(self) -> str:
        mode, family = self.desc.mode, f"{self.family}-{self.precision}" if self.precision else self.family
        return f"{family}/{mode if isinstance(mode, str) else type(mode).__name__}"

    @property
    def lengths(self) -> np.ndarray | None:
        if self.shortest is None:
            return None
        return np.random.default_rng(0).integers(self.shortest, self.seq_len + 1, self.batch_size)

    @property
    def rows(self) -> int:
        """Steps of all sequences."""
        return self.seq_len * self.batch_size if self.shortest is None else int(self.lengths.sum())

    def with_tf32(self) -> Case:
        return self._replace(desc=replace(self.desc, allow_tf32=True))


class Problem(NamedTuple):
    """The arrays of a case: the same in every process."""

    desc: rnnkit.RNNDescriptor
    w: np.ndarray
    x: np.ndarray
    lengths: np.ndarray | None
    hx: np.ndarray | None  # initial states, only for the passes step and serve
    cx: np.ndarray | None
    dy: np.ndarray
    rows: np.ndarray | None = None  # (T, N), the streams of each step, only for the pass serve
    precision: str | None = None


def problem(case: Case, pass_name: str) -> Problem:
    """Return the arrays of a case."""
    desc, rng = case.desc, np.random.default_rng(1)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, desc.dtype if desc.dtype == "float64" else "float32").astype(desc.np_dtype)

    x = draw(case.seq_len, case.batch_size, desc.input_size)
    dy = draw(case.seq_len, case.batch_size, desc.num_directions * desc.output_size)
    hx = cx = rows = None
    if pass_name in ("step", "serve"):
        count = case.num_streams if pass_name == "serve" else case.batch_size
        hx = draw(desc.num_layers, count, desc.output_size)
        cx = draw(desc.num_layers, count, desc.hidden_size) if desc.has_cell_state else None
    if pass_name == "serve":
        rows = np.array([rng.permutation(case.num_streams)[: case.batch_size] for _ in range(case.seq_len)])
    w = _weights(desc)
    if case.feature != 1:
        w = w.copy()
        rnnkit.weight_views(desc, w)["weight_ih_l0"][:, 0] /= case.feature
        x[..., 0] *= case.feature
    return Problem(desc, w, x, case.lengths, hx, cx, dy, rows, case.precision)


@lru_cache(maxsize=1)
def _weights(desc: rnnkit.RNNDescriptor) -> np.ndarray:
    """Return the weights, cached for all passes of a case: drawing the largest takes a second."""
    return rnnkit.init_weights(desc, seed=0)


def of_mode(mode: Any, table: dict[str, Any], engine: str) -> Any:
    """Look up a mode in an engine's table; raise rather than run another mode."""
    if mode not in table:
        raise ValueError(message(engine, "mode", f"be one of {', '.join(table)}", repr(mode)))
    return table[mode]


def flops(case: Case, pass_name: str) -> int:
    """Multiplications and additions of the products; backward has each product of forward twice."""
    return (input_flops(case) + recurrent_flops(case)) * (3 if pass_name == "train" else 1)


def input_flops(case: Case) -> int:
    """Those of W x in a forward: 2*T*N*G*H*in per pseudo-layer."""
    desc = case.desc
    inputs = sum(desc.layer_input_size(layer) for layer in range(desc.num_layers) if desc.has_input_weight(layer))
    return 2 * case.rows * desc.num_gates * desc.hidden_size * inputs * desc.num_directions


def recurrent_flops(case: Case) -> int:
    """Those of R h in a forward, 2*T*N*G*H*P per pseudo-layer, and of the projection, 2*T*N*H*P."""
    desc = case.desc
    products = desc.num_recurrent_gates + desc.projected
    return 2 * case.rows * products * desc.hidden_size * desc.output_size * desc.num_pseudo_layers


def streamed_bytes(case: Case, pass_name: str) -> int:
    """Weights that are read anew in each step: all of them in a single step, those of one R within a sequence."""
    desc = case.desc
    itemsize = {None: desc.np_dtype.itemsize, "int8": 1}.get(case.precision, 2)
    if pass_name == "step":
        return rnnkit.num_weights(desc) * itemsize
    return (desc.num_recurrent_gates + desc.projected) * desc.hidden_size * desc.output_size * itemsize


def least_seconds(case: Case, pass_name: str, peak: float, bandwidth: float) -> float:
    """Time that a machine of `peak` FLOP/s and `bandwidth` bytes/s needs for an inference where weights are streamed.

    In each step the slower of reading the weights and computing with them; W x of a sequence is one product.
    """
    read = streamed_bytes(case, pass_name) / bandwidth
    if pass_name == "step":
        return max(read, flops(case, pass_name) / peak)
    steps = case.seq_len * case.desc.num_pseudo_layers
    return input_flops(case) / peak + max(steps * read, recurrent_flops(case) / peak)


def select(
    patterns: str, passes: tuple[str, ...], device: str = "cpu", among: tuple[Case, ...] | None = None
) -> list[tuple[Case, str]]:
    """Return the cases and passes whose name (`ds2/lstm/infer`) one of the globs, with commas between them, matches.

    Among all of `CASES` where no others are given.
    """
    globs = patterns.split(",")
    suited = (case for case in (CASES if among is None else among) if case.device in (None, device))
    names = ((case, pass_name) for case in suited for pass_name in case.passes if pass_name in passes)
    return [pair for pair in names if any(fnmatchcase(row_name(*pair), glob) for glob in globs)]


def row_name(case: Case, pass_name: str) -> str:
    return f"{case.name}/{pass_name}"


def _each_mode(family: str, seq_len: int, batch_size: int, hidden: int, *, inputs: int = 0, **options: Any):
    """The case in all four modes; I = H where no `inputs` are given."""
    names = "shortest", "passes", "alone", "device", "num_streams"
    own = {name: options.pop(name) for name in names if name in options}
    for mode in MODES:
        desc = rnnkit.RNNDescriptor(mode, inputs or hidden, hidden, **options)
        yield Case(family, desc, seq_len, batch_size, **own)


def _sweep(family: str, seq_len: int = 100, batch_size: int = 16, hidden: int = 256, layers: int = 1) -> Case:
    """One point of a curve: growth with one size, the others fixed."""
    return Case(family, rnnkit.RNNDescriptor("lstm", hidden, hidden, layers), seq_len, batch_size, alone=True)


CASES = (
    *_each_mode("ds2", 300, 20, 800),
    *_each_mode("ds2-bi5", 300, 20, 800, num_layers=5, bidirectional=True),
    *_each_mode("lm", 25, 64, 512),
    *_each_mode("small", 50, 5, 128),
    *_each_mode("small-l2", 50, 8, 128, num_layers=2),
    *_each_mode("brief", 5, 1, 16),
    *_each_mode("brief-varlen", 5, 2, 16, shortest=2),
    *_each_mode("stream", 100, 1, 256),
    *_each_mode("stream-h512", 100, 1, 512),
    *_each_mode("stream-h1024", 100, 1, 1024),
    *_each_mode("odd", 50, 64, 500),
    *_each_mode("odd-i77", 40, 33, 200, inputs=77),
    *_each_mode("long", 2000, 8, 256, num_layers=2),
    *_each_mode("varlen", 200, 32, 256, shortest=20),
    Case("proj", rnnkit.RNNDescriptor("lstm", 256, 1024, proj_size=256), 100, 20),
    *_each_mode("f64", 50, 32, 256, dtype="float64"),
    *(
        case
        for batch in (1, 16)
        for size in STEP_SIZES
        for case in _each_mode(f"step-n{batch}-h{size}", 1, batch, size, passes=("step",))
    ),
    *(_sweep(f"sweep-T{value}", seq_len=value) for value in (25, 50, 100, 200, 400, 800)),
    *(_sweep(f"sweep-N{value}", batch_size=value) for value in (1, 2, 4, 8, 16, 32, 64, 128)),
    *(_sweep(f"sweep-H{value}", hidden=value) for value in (*range(64, 513, 64), 500, 640, 750, 768, 800, 900, 1024)),
    *(_sweep(f"sweep-L{value}", layers=value) for value in (1, 2, 3, 4, 6, 8)),
    *_each_mode("small-bi", 50, 5, 128, bidirectional=True),
    *_each_mode("few-l2", 200, 2, 128, num_layers=2),
    # Where starting the work takes longer than the work.
    *_each_mode("tiny", 10, 1, 16, device="cuda"),
    *_each_mode("tiny-n8", 20, 8, 64, device="cuda"),
    # A server of 1000 streams: 50 arrivals of so many of them.
    *(
        case
        for batch in (1, 10, 100)
        for case in _each_mode(
            f"serve-n{batch}-h128", 50, batch, 128, passes=("serve",), device="cpu", num_streams=1000
        )
    ),
)
