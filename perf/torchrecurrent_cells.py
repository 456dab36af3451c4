"""Map torchrecurrent's cells to ours: how to create and step them, and our names of their weights.

Where torchrecurrent departs from a paper, the paper's step is written out, with torchrecurrent's weights.
"""

from typing import NamedTuple

import torch
import torchrecurrent as theirs
from torch import cat, nn, sigmoid, tanh

from examples.gallery import chains, gated, grus, lstms, strongly_typed, systems
from rnnkit import cells

# Cells that are missing, and why.
MISSING = {"tauGRUCell": "a state of tau steps ago"}


def single(cell, x, before, h, states):
    return cell(x, h), states


def double(cell, x, before, h, states):
    h, c = cell(x, (h, *states))
    return h, [c]


def janet(cell, x, before, h, states):
    """The cell state is h: the paper has one state."""
    return cell(x, (h, h))[0], states


def controlled(cell, x, before, h, states):
    h, states = cell(x, tuple(states))
    return h, list(states)


def typed_gru(cell, x, before, h, states):
    return cell(x, (h, before))[0], states


def typed_lstm(cell, x, before, h, states):
    h, (c, _) = cell(x, (*states, before))
    return h, [c]


def intersection(cell, x, before, h, states):
    """The output is not a state."""
    h, k = cell(x, *states)
    return h, [k]


def lem(cell, x, before, h, states):
    """torchrecurrent multiplies weight_ch by the state before the step, the paper by that after it."""
    ih, hh = x @ cell.weight_ih.T + cell.bias_ih, h @ cell.weight_hh.T + cell.bias_hh
    (wy, wz, wn, wo), (ry, rz, rn) = ih.chunk(4, 1), hh.chunk(3, 1)
    ty, tz = cell.dt * sigmoid(wy + ry), cell.dt * sigmoid(wz + rz)
    z = (1 - tz) * states[0] + tz * tanh(wn + rn)
    return (1 - ty) * h + ty * tanh(wo + z @ cell.weight_ch.T + cell.bias_ch), [z]


def scrn(cell, x, before, h, states):
    """torchrecurrent multiplies the first half of weight_hh by the output, the paper by the hidden layer k."""
    s, k = states
    of_s, of_k = (x @ cell.weight_ih.T + cell.bias_ih).chunk(2, 1)
    s = (1 - cell.alpha) * of_s + cell.alpha * s
    (r, u), (br, bu) = cell.weight_hh.chunk(2), cell.bias_hh.chunk(2)
    p, v = (s @ cell.weight_ch.T + cell.bias_ch).chunk(2, 1)
    k = sigmoid(of_k + k @ r.T + br + p)
    return tanh(k @ u.T + bu + v), [s, k]


def plain(cell):
    names = "weight_ih", "weight_hh", "bias_ih", "bias_hh"
    return {name: getattr(cell, name) for name in names}


def input_only(cell):
    """Names for a cell without R, or with a vector instead."""
    bias = cell.bias_ih + cell.bias_hh if hasattr(cell, "bias_hh") else cell.bias_ih
    return {"weight_ih": cell.weight_ih, "bias_ih": bias}


def with_more_r(weight, bias=None):
    """Further matrices of R behind those of h; without biases in torchrecurrent they are 0."""

    def weights(cell):
        found, more = plain(cell), getattr(cell, weight)
        added = getattr(cell, bias) if bias else more.new_zeros(len(more))
        hh = {"weight_hh": cat([cell.weight_hh, more]), "bias_hh": cat([cell.bias_hh, added])}
        return found | hh

    return weights


def peepholes(cell):
    return {f"peephole_{name}": part for name, part in zip("ifo", cell.weight_ph.chunk(3), strict=True)}


def residual(cell):
    none = cell.bias_ih.new_zeros(cell.hidden_size)
    return peepholes(cell) | {
        "weight_ih": cat([cell.weight_ih, cell.weight_res]), "weight_hh": cat([cell.weight_hh, cell.weight_proj]),
        "bias_ih": cat([cell.bias_ih, none]), "bias_hh": cat([cell.bias_hh, none]),
    }  # fmt: skip


def fast(cell):
    (wz, wn), (rz, rn) = cell.bias_ih.chunk(2), cell.bias_hh.chunk(2)
    own = {"bias_ih": wz, "bias_hh": rz, "shift": wn + rn - wz - rz, "zeta": cell.zeta, "nu": cell.nu}
    return plain(cell) | own


def additive(cell):
    return plain(cell) | {"bias_ih": cat([cell.bias_ih.new_zeros(cell.hidden_size), cell.bias_ih])}


def context(cell):
    (r, u), (p, v) = cell.weight_hh.chunk(2), cell.weight_ch.chunk(2)
    (br, bu), (bp, bv) = cell.bias_hh.chunk(2), cell.bias_ch.chunk(2)
    return plain(cell) | {"weight_hh": cat([r, p, u, v]), "bias_hh": cat([br, bp, bu, bv])}


def bistable(cell):
    (ua, uc), (ba, bc, bn) = cell.weight_hh.chunk(2), cell.bias_ih.chunk(3)
    bias = cat([cat([ba, bc]) + cell.bias_hh, bn])
    return {"weight_ih": cell.weight_ih, "bias_ih": bias, "ua": ua, "uc": uc}


def side_by_side(cell):
    return {"weight_ih": cat([cell.weight_ih, cell.weight_hh], 1), "bias_ih": cell.bias_ih + cell.bias_hh}


def one_bias(cell):
    """The bias of R is added to that of W: here R has one within what a number multiplies."""
    return plain(cell) | {"bias_ih": cell.bias_ih + cell.bias_hh, "bias_hh": torch.zeros_like(cell.bias_hh)}


def antisymmetric(cell):
    w = cell.weight_hh
    return plain(cell) | {"weight_hh": w - w.T - cell.gamma * torch.eye(len(w), dtype=w.dtype)}


def gated_antisymmetric(cell):
    bz, bn = cell.bias_ih.chunk(2)
    biases = {"bias_ih": cat([bz, bn + cell.bias_hh]), "bias_hh": torch.zeros_like(cell.bias_hh)}
    return antisymmetric(cell) | biases


class HardSigmoid(nn.Module):
    """PyTorch's has a gradient of 1/6 in float32, 6e-8 off, for float64 too."""

    def forward(self, x):
        return (x / 6 + 0.5).clamp(0, 1)


class Highway(nn.Module):
    """The equations of the paper: torchrecurrent's module of it cannot be imported."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.w = nn.Parameter(torch.empty(2 * hidden_size, input_size))
        self.r = nn.Parameter(torch.empty(3, 2 * hidden_size, hidden_size))
        self.b = nn.Parameter(torch.empty(3, 2 * hidden_size))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)

    def forward(self, x, h):
        of_x = x @ self.w.T
        for r, b in zip(self.r, self.b, strict=True):
            n, t = (of_x + h @ r.T + b).chunk(2, 1)
            h, of_x = sigmoid(t) * tanh(n) + (1 - sigmoid(t)) * h, 0
        return h


def highway(cell):
    first, *others = cell.b
    biases = {"bias_ih": first, "bias_hh": cat([torch.zeros_like(first), *others])}
    return {"weight_ih": cell.w, "weight_hh": cat(list(cell.r))} | biases


class Peer(NamedTuple):
    """A cell, torchrecurrent's with the same equations and its options, its weights by their names here, and a step."""

    kind: object
    theirs: object
    options: dict
    weights: object = plain
    step: object = single


def peer(kind, name, weights=plain, step=single, **options):
    return Peer(kind, getattr(theirs, f"{name}Cell"), options, weights, step)


HARD, TANH = cells.HardSigmoid(1 / 6, 0.5), cells.Tanh()
SYSTEM = {"epsilon": 0.25, "gamma": 0.125}
SHIPPED = {
    "PeepholeLSTM": peer(cells.PeepholeLSTM(), "PeepholeLSTM", lambda cell: plain(cell) | peepholes(cell), double),
    "MinimalGatedUnit": peer(cells.MinimalGatedUnit(), "MGU"),
    "IndRNN": peer(cells.IndRNN(TANH), "IndRNN", lambda cell: input_only(cell) | {"u": cell.vector_u}),
    "JANET": peer(cells.JANET(0.75), "JANET", step=janet, beta=0.75),
    "LiGRU": peer(cells.LiGRU(), "LiGRU"),
    "UGRNN": peer(cells.UGRNN(), "UGRNN"),
    "RAN": peer(cells.RAN(), "RAN", additive, double),
    "STAR": peer(cells.STAR(), "STAR"),
    "FastGRNN": peer(cells.FastGRNN(), "FastGRNN", fast, nonlinearity="sigmoid"),
    "CoRNN": peer(cells.CoRNN(0.5, 0.75, 1.25), "coRNN", with_more_r("weight_ch", "bias_ch"), double,
                  dt=0.5, gamma=0.75, epsilon=1.25),
    "LEM": peer(cells.LEM(0.5), "LEM", with_more_r("weight_ch", "bias_ch"), lem, dt=0.5),
    "MinimalRNN": peer(cells.MinimalRNN(), "MinimalRNN", with_more_r("weight_mm")),
    "MultiplicativeLSTM": peer(cells.MultiplicativeLSTM(), "MultiplicativeLSTM", with_more_r("weight_mh", "bias_mh"),
                               double),
    "NBR": peer(cells.NBR(), "NBR"),
}  # fmt: skip
GALLERY = {
    "OriginalLSTM": peer(lstms.OriginalLSTM(TANH, TANH), "OriginalLSTM", step=double),  # see its docstring
    "MCLSTM": peer(lstms.MCLSTM(), "MCLSTM", step=controlled),
    "WMCLSTM": peer(lstms.WMCLSTM(), "WMCLSTM", with_more_r("weight_mh", "bias_mh"), double),
    "ResLSTM": peer(lstms.ResLSTM(), "ResLSTM", residual, double),
    "NAS": peer(lstms.NAS(), "NAS", step=double),
    "MUT1": peer(grus.MUT1(), "MUT1"),
    "MUT2": peer(grus.MUT2(), "MUT2"),
    "MUT3": peer(grus.MUT3(), "MUT3"),
    "MiRU1": peer(grus.MiRU1(0.25), "MiRU1", update_coefficient=0.25),
    "MiRU2": peer(grus.MiRU2(0.25, 0.75), "MiRU2", one_bias, update_coefficient=0.25, reset_coefficient=0.75),
    "ATR": peer(gated.ATR(), "ATR"),
    "SGRN": peer(gated.SGRN(), "SGRN"),
    "CFN": peer(gated.CFN(), "CFN"),
    "LightRU": peer(gated.LightRU(), "LightRU"),
    "BR": peer(gated.BR(), "BR", bistable),
    "SGU": peer(gated.SGU(HARD), "SGU", gate_nonlinearity=HardSigmoid()),
    "DSGU": peer(gated.DSGU(HARD), "DSGU", with_more_r("weight_ho"), gate_nonlinearity=HardSigmoid()),
    "FastRNN": peer(gated.FastRNN(), "FastRNN", lambda cell: plain(cell) | {"alpha": cell.alpha, "beta": cell.beta}),
    "IntersectionRNN": peer(gated.IntersectionRNN(), "IntersectionRNN", step=intersection),
    "TRNN": peer(strongly_typed.TRNN(), "TRNN", input_only),
    "TGRU": peer(strongly_typed.TGRU(), "TGRU", side_by_side, typed_gru),
    "TLSTM": peer(strongly_typed.TLSTM(), "TLSTM", side_by_side, typed_lstm),
    "AntisymmetricRNN": peer(systems.AntisymmetricRNN(0.25), "AntisymmetricRNN", antisymmetric, **SYSTEM),
    "GatedAntisymmetricRNN": peer(systems.GatedAntisymmetricRNN(0.25), "GatedAntisymmetricRNN", gated_antisymmetric,
                                  **SYSTEM),
    "UnICORNN": peer(systems.UnICORNN(0.125, 0.25), "UnICORNN",
                     lambda cell: input_only(cell) | {"u": cell.weight_hh, "pace": cell.weight_ch}, double,
                     dt=0.125, alpha=0.25),
    "RHN": Peer(chains.RHN(), Highway, {}, highway),
    "SCRN": peer(chains.SCRN(0.75), "SCRN", context, scrn, alpha=0.75),
}  # fmt: skip
PEERS = SHIPPED | GALLERY
