"""TiRex: the sLSTM of a forecaster, at its published size, beside a cell with its equations.

The weights are on a server, so they are random. The package loops over the steps and rounds the states to bfloat16; its
function runs in float32 too, where the results can be compared closely.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from perf.programs.converted import Converted
from rnnkit.cells import Gate, cell, exp, forward, sigmoid, softplus, tanh

_UNITS, _HEADS, _SERIES, _STEPS = 512, 4, 16, 65  # a step has 32 values of a series
_HEAD = _UNITS // _HEADS


@cell(gates=[Gate(g, heads=_HEADS, input=False) for g in "ifzo"], states="c n m", inputs="xi xf xz xo")
class GivenSLSTM(NamedTuple):
    """The sLSTM of `rnnkit.cells`, but x comes with its products: each head of each gate has its own in TiRex."""

    @forward("c n m h")
    def step(self, i, f, z, o, xi, xf, xz, xo, c_prev, n_prev, m_prev):  # type: ignore[no-untyped-def]
        i, f = i + xi, m_prev - softplus(-(f + xf))
        m = i if i > f or n_prev == 0 else f
        i, f = exp(i - m), exp(0 if f > m else f - m)
        c, n = f * c_prev + i * tanh(z + xz), f * n_prev + i
        return c, n, m, sigmoid(o + xo) * (c / n)


def _calls(dtype: str) -> Any:
    import torch
    from tirex.models.slstm.cell import sLSTMBlockConfig, sLSTMCell, sLSTMCellTorch

    import rnnkit

    cell = sLSTMCell(sLSTMBlockConfig(_UNITS, _HEADS), "torch")
    for weights in cell.parameters():
        torch.nn.init.normal_(weights, std=0.05)
    x = torch.randn(_SERIES, _STEPS, 4 * _UNITS)
    kernel = cell._recurrent_kernel_.detach()  # (heads, D, gates * D)
    bias = cell._bias_.detach().view(_HEADS, 4, _HEAD).transpose(0, 1).reshape(4, _UNITS)
    net = rnnkit.Network(GivenSLSTM, 0, _UNITS, bias="recurrent")
    net.views["weight_hh_l0"][...] = kernel.view(_HEADS, _HEAD, 4, _HEAD).permute(2, 0, 3, 1).reshape(-1, _HEAD)
    net.views["bias_hh_l0"][...] = bias.ravel()
    plan, nothing = net.prepare(), np.empty((_STEPS, _SERIES, 0), np.float32)

    def package() -> np.ndarray:
        with torch.no_grad():
            if dtype == "bfloat16":
                y, _ = cell(x, None)  # (N, heads, T, D)
                return y.permute(2, 0, 1, 3).flatten(2).numpy()
            states = torch.zeros(4, _SERIES, _UNITS)
            return sLSTMCellTorch.slstm_forward(x.swapaxes(0, 1), states, kernel, bias.ravel())[0].numpy()

    def own() -> np.ndarray:
        parts = np.split(x.numpy().swapaxes(0, 1), 4, -1)
        inputs = {f"x{gate}": np.ascontiguousarray(part) for gate, part in zip("ifzo", parts, strict=True)}
        return plan.infer(nothing, inputs=inputs).y

    return package, own


PROGRAMS = (
    Converted("tirex/slstm", ("tirex",), partial(_calls, "bfloat16"), close=0.05),
    Converted("tirex/slstm-float32", ("tirex",), partial(_calls, "float32")),
)
