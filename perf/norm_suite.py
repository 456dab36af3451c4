"""Time training steps of cells with layer norm, dropout or zoneout inside, against rnnkit's plain cell and a loop over
the steps in PyTorch, as programs write it.

All run in one process in turn, in many short windows; the minimum of each counts. A training step is a forward
and the backward of the sum of its output. Without noise, the results of loop and cell are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

from perf.call_suite import check_close, least_seconds, timed

_RATE = 0.25
_COMPARED = 20  # steps: over more, float32 rounding grows too large


class Case(NamedTuple):
    """A kind of cell, and the sizes of a call; input_size is hidden_size."""

    kind: str
    seq_len: int
    batch_size: int
    hidden_size: int

    @property
    def name(self) -> str:
        """Return the name for patterns and the report."""
        return f"{self.kind}-t{self.seq_len}-n{self.batch_size}-h{self.hidden_size}"


KINDS = "layer-norm-lstm", "layer-norm-gru", "dropout-lstm", "zoneout-lstm", "variational-lstm"
_SIZES = (50, 8, 64), (100, 1, 256), (100, 32, 256), (50, 64, 512)
CASES = tuple(Case(kind, *sizes) for kind, sizes in product(KINDS, _SIZES))


class Row(NamedTuple):
    """Seconds of a training step of the loop, of the cell, and of the plain cell."""

    case: Case
    threads: int
    loop: float
    own: float
    plain: float

    def __str__(self) -> str:
        times = f"loop {self.loop * 1e6:10.1f} us  rnnkit {self.own * 1e6:10.1f} us  {self.loop / self.own:6.2f}x"
        return f"{self.case.name:30} {self.threads} threads  {times}  of the plain cell {self.own / self.plain:5.2f}"


def run(pattern: str, threads: list[int], seconds: float) -> list[Row]:
    """Time the cases whose names match one of the patterns, and print each."""
    cases = {case.name: case for case in CASES}
    return timed(cases, pattern, threads, lambda case, count: measure(case, count, seconds))


def measure(case: Case, threads: int, seconds: float) -> Row:
    """Time a training step of the three."""
    import torch

    from rnnkit import cells
    from rnnkit.torch import GRU, LSTM, Recurrent

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    kind = {
        "layer-norm-lstm": cells.LayerNormLSTM(), "layer-norm-gru": cells.LayerNormGRU(),
        "dropout-lstm": cells.RegularizedLSTM(recurrent_dropout=_RATE),
        "zoneout-lstm": cells.RegularizedLSTM(zoneout=_RATE, zoneout_c=_RATE),
        "variational-lstm": cells.VariationalLSTM(_RATE),
    }[case.kind]  # fmt: skip
    sizes = case.hidden_size, case.hidden_size
    own, loop = Recurrent(kind, *sizes), Recurrent(kind, *sizes)
    loop.load_state_dict(own.state_dict())
    plain = (GRU if case.kind.endswith("gru") else LSTM)(*sizes)
    x = torch.randn(case.seq_len, case.batch_size, case.hidden_size)
    steps = [_step(lambda: _LOOPS[case.kind](loop, x)), _step(lambda: own(x)[0]), _step(lambda: plain(x)[0])]
    own.eval()
    loop.eval()
    few = x[:_COMPARED]
    found, expected = _step(lambda: own(few)[0])(), _step(lambda: _LOOPS[case.kind](loop, few))()
    check_close(found, expected, own, loop)
    own.train()
    loop.train()
    return Row(case, threads, *least_seconds(steps, seconds))


def _step(forward: Callable[[], Any]) -> Callable[[], Any]:
    def step() -> Any:
        y = forward()
        y.sum().backward()
        return y

    return step


def _normed(module: Any, a: Any, gains: str) -> Any:
    import torch

    weight = torch.cat([getattr(module, f"{name}_l0") for name in gains.split()])
    return torch.nn.functional.layer_norm(a, a.shape[1:], weight, None, module.cell.eps)


def _added(module: Any, a: Any, shifts: str) -> Any:
    import torch

    return a + torch.cat([getattr(module, f"{name}_l0") for name in shifts.split()])


def _layer_norm_lstm(module: Any, x: Any) -> Any:
    import torch

    projected = x @ module.weight_ih_l0.T + module.bias_ih_l0
    projected = _normed(module, projected.flatten(0, 1), "wi wf wg wo").view_as(projected)
    projected, outputs = _added(module, projected, "bi bf bg bo"), []
    h = c = x.new_zeros(x.shape[1], module.hidden_size)
    for row in projected:
        q = torch.nn.functional.linear(h, module.weight_hh_l0, module.bias_hh_l0)
        i, f, g, o = (row + _normed(module, q, "ri rf rg ro")).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(_added(module, _normed(module, c, "gain_c"), "shift_c"))
        outputs.append(h)
    return torch.stack(outputs)


def _layer_norm_gru(module: Any, x: Any) -> Any:
    import torch

    size = module.hidden_size
    flat = (x @ module.weight_ih_l0.T + module.bias_ih_l0).flatten(0, 1)
    gates = _added(module, _normed(module, flat[:, : 2 * size], "wr wz"), "br bz").view(*x.shape[:2], -1)
    candidates = _added(module, _normed(module, flat[:, 2 * size :], "wn"), "bn").view(*x.shape[:2], -1)
    h, outputs = x.new_zeros(x.shape[1], size), []
    for of_gates, candidate in zip(gates, candidates, strict=True):
        q = torch.nn.functional.linear(h, module.weight_hh_l0, module.bias_hh_l0)
        r, z = torch.sigmoid(of_gates + _normed(module, q[:, : 2 * size], "rr rz")).chunk(2, 1)
        n = torch.tanh(candidate + r * _added(module, _normed(module, q[:, 2 * size :], "rn"), "bq"))
        h = z * h + (1 - z) * n
        outputs.append(h)
    return torch.stack(outputs)


def _lstm(module: Any, x: Any, step: Callable[..., Any], before: Callable[[Any], Any]) -> Any:
    """The loop of an LSTM; what is different of one is its step, and what R multiplies."""
    import torch

    projected, outputs = x @ module.weight_ih_l0.T + module.bias_ih_l0, []
    h = c = x.new_zeros(x.shape[1], module.hidden_size)
    for row in projected:
        gates = row + torch.nn.functional.linear(before(h), module.weight_hh_l0, module.bias_hh_l0)
        i, f, g, o = gates.chunk(4, 1)
        h, c = step(torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o), h, c)
        outputs.append(h)
    return torch.stack(outputs)


def _dropout_lstm(module: Any, x: Any) -> Any:
    import torch

    def step(i: Any, f: Any, g: Any, o: Any, h: Any, c: Any) -> Any:
        c = f * c + i * torch.nn.functional.dropout(g, _RATE, module.training)
        return o * torch.tanh(c), c

    return _lstm(module, x, step, lambda h: h)


def _zoneout_lstm(module: Any, x: Any) -> Any:
    import torch

    def zoned(before: Any, now: Any) -> Any:
        if module.training:
            return torch.where(torch.rand_like(now) < _RATE, before, now)
        return _RATE * before + (1 - _RATE) * now

    def step(i: Any, f: Any, g: Any, o: Any, h: Any, c: Any) -> Any:
        c = zoned(c, f * c + i * g)
        return zoned(h, o * torch.tanh(c)), c

    return _lstm(module, x, step, lambda h: h)


def _variational_lstm(module: Any, x: Any) -> Any:
    import torch

    mask = torch.nn.functional.dropout(x.new_ones(x.shape[1], module.hidden_size), _RATE, module.training)

    def step(i: Any, f: Any, g: Any, o: Any, h: Any, c: Any) -> Any:
        c = f * c + i * g
        return o * torch.tanh(c), c

    return _lstm(module, x, step, lambda h: mask * h)


_LOOPS = {
    "layer-norm-lstm": _layer_norm_lstm, "layer-norm-gru": _layer_norm_gru, "dropout-lstm": _dropout_lstm,
    "zoneout-lstm": _zoneout_lstm, "variational-lstm": _variational_lstm,
}  # fmt: skip
