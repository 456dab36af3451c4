"""The naive twin: the equations gate by gate in float64, one sequence and one time step at a time.

It shares no line and no import with rnnkit, so that a mistake there cannot be repeated here. Equations: `lstm` and
the default `gru` are cuDNN's and PyTorch's (arXiv 1406.1078v1), `gru` with `reset_after=False` is arXiv 1406.1078v3.
"""

from typing import NamedTuple

import numpy as np
from several_states import arrays_of, as_given


class Result(NamedTuple):
    y: np.ndarray  # (T, N, D*P), zero beyond each length
    hy: np.ndarray  # (L*D, N, P)
    cy: np.ndarray | None  # (L*D, N, H)
    hidden: list  # per pseudo-layer (T, N, P), zero beyond each length
    cell: list  # per pseudo-layer (T, N, H), zero beyond each length
    kink: float  # smallest distance of any value from a point where the network has no derivative


class PseudoLayer(NamedTuple):
    """The named weights of one layer and direction; what the network does not have is None."""

    weight_ih: np.ndarray | None
    weight_hh: np.ndarray
    weight_hr: np.ndarray | None
    bias_ih: np.ndarray | None
    bias_hh: np.ndarray | None

    def input_side(self, gate, x, size):
        """W x + bW of one gate; without W (skip input) x itself takes the place of W x."""
        rows = slice(gate * size, (gate + 1) * size)
        product = x if self.weight_ih is None else self.weight_ih[rows] @ x
        return product if self.bias_ih is None else product + self.bias_ih[rows]

    def recurrent_side(self, gate, h, size):
        """R h + bR of one gate."""
        rows = slice(gate * size, (gate + 1) * size)
        own = self.weight_hh[rows]
        if len(h) == own.shape[1]:
            product = own @ h
        else:  # R in blocks: the units of a head see h of their own head
            parts = zip(*(np.split(one, len(h) // own.shape[1]) for one in (own, h)), strict=True)
            product = np.concatenate([block @ part for block, part in parts])
        return product if self.bias_hh is None else product + self.bias_hh[rows]

    def both_sides(self, gate, x, h, size):
        return self.input_side(gate, x, size) + self.recurrent_side(gate, h, size)


def sigmoid(a):
    return 0.5 * (1 + np.tanh(0.5 * a))  # the logistic function, without overflow


def rnn_step(layer, x, h, size, mode):
    a = layer.both_sides(0, x, h, size)
    if mode == "rnn_tanh":
        return np.tanh(a), np.inf
    return np.maximum(a, 0), np.abs(a).min()


def lstm_step(layer, x, h, c, size, cell_clip):
    i = sigmoid(layer.both_sides(0, x, h, size))
    f = sigmoid(layer.both_sides(1, x, h, size))
    g = np.tanh(layer.both_sides(2, x, h, size))
    o = sigmoid(layer.both_sides(3, x, h, size))
    c = f * c + i * g
    kink = np.inf
    if cell_clip is not None:
        low, high = cell_clip
        kink = min(np.abs(c - low).min(), np.abs(c - high).min())
        c = np.minimum(np.maximum(c, low), high)
    h = o * np.tanh(c)
    if layer.weight_hr is not None:
        h = layer.weight_hr @ h
    return h, c, kink


def gru_step(layer, x, h, size, reset_after):
    r = sigmoid(layer.both_sides(0, x, h, size))
    z = sigmoid(layer.both_sides(1, x, h, size))
    if reset_after:
        n = np.tanh(layer.input_side(2, x, size) + r * layer.recurrent_side(2, h, size))
    else:
        n = np.tanh(layer.input_side(2, x, size) + layer.recurrent_side(2, r * h, size))
    return (1 - z) * n + z * h


def peephole_step(gate, own, h, states, act=sigmoid, squash=np.tanh, show=np.tanh):
    (c,) = states
    i = act(gate("i", h) + own["peephole_i"] * c)
    f = act(gate("f", h) + own["peephole_f"] * c)
    c = f * c + i * squash(gate("g", h))
    o = act(gate("o", h) + own["peephole_o"] * c)
    return o * show(c), (c,)


def coupled_step(gate, own, h, states, act=sigmoid, squash=np.tanh, show=np.tanh):
    i, g, o = act(gate("i", h)), squash(gate("g", h)), act(gate("o", h))
    c = (1 - i) * states[0] + i * g
    return o * show(c), (c,)


def activated_step(gate, own, h, states, act, squash, show):
    i, f, g, o = act(gate("i", h)), act(gate("f", h)), squash(gate("g", h)), act(gate("o", h))
    c = f * states[0] + i * g
    return o * show(c), (c,)


def minimal_step(gate, own, h, states):
    f = sigmoid(gate("f", h))
    return (1 - f) * h + f * np.tanh(gate("n", f * h)), ()


def indrnn_step(gate, own, h, states, act=lambda x: np.maximum(x, 0)):
    return act(gate("a", None) + own["u"] * h), ()


def mingru_step(gate, own, h, states):
    z = sigmoid(gate("z", None))
    return (1 - z) * h + z * gate("n", None), ()


def slstm_step(gate, own, h, states, log_forget=lambda a: a):
    c, n, m = states
    log_i, log_f = gate("i", h), log_forget(gate("f", h)) + m
    m = np.where(n == 0, log_i, np.maximum(log_i, log_f))
    i, f = np.exp(log_i - m), np.exp(np.minimum(log_f - m, 0))
    c, n = f * c + i * np.tanh(gate("z", h)), f * n + i
    return sigmoid(gate("o", h)) * c / n, (c, n, m)


def janet_step(gate, own, h, states):
    f = gate("f", h)
    return sigmoid(f) * h + (1 - sigmoid(f - 1)) * np.tanh(gate("n", h)), ()


def ligru_step(gate, own, h, states, act=lambda x: np.maximum(x, 0)):
    z = sigmoid(gate("z", h))
    return z * h + (1 - z) * act(gate("n", h)), ()


def ugrnn_step(gate, own, h, states):
    g = sigmoid(gate("g", h))
    return g * h + (1 - g) * np.tanh(gate("n", h)), ()


def ran_step(gate, own, h, states, show=np.tanh):
    c = sigmoid(gate("i", h)) * gate("n", None) + sigmoid(gate("f", h)) * states[0]
    return show(c), (c,)


def star_step(gate, own, h, states):
    k = sigmoid(gate("k", h))
    return np.tanh((1 - k) * h + k * np.tanh(gate("z", None))), ()


def cornn_step(gate, own, h, states):
    (z,) = states
    z = z + 0.042 * (np.tanh(gate("a", h) + gate("v", z)) - 2.7 * h - 4.7 * z)
    return h + 0.042 * z, (z,)


def lem_step(gate, own, h, states):
    ty, tz = sigmoid(gate("ty", h)), sigmoid(gate("tz", h))
    z = (1 - tz) * states[0] + tz * np.tanh(gate("n", h))
    return (1 - ty) * h + ty * np.tanh(gate("y", z)), (z,)


def minimal_rnn_step(gate, own, h, states):
    z = np.tanh(gate("n", None))
    u = sigmoid(gate("u", h) + gate("v", z))
    return u * h + (1 - u) * z, ()


def multiplicative_step(gate, own, h, states):
    m = gate("p", None) * gate("q", h)
    i, f, o = sigmoid(gate("i", m)), sigmoid(gate("f", m)), sigmoid(gate("o", m))
    c = f * states[0] + i * np.tanh(gate("n", m))
    return o * np.tanh(c), (c,)


def bistable_step(gate, own, h, states):
    a, c = 1 + np.tanh(gate("a", h)), sigmoid(gate("c", h))
    return c * h + (1 - c) * np.tanh(gate("n", None) + a * h), ()


def fast_step(gate, own, h, states):
    a = gate("a", h)
    share = sigmoid(own["zeta"]) * (1 - sigmoid(a)) + sigmoid(own["nu"])
    return share * np.tanh(a + own["shift"]) + sigmoid(a) * h, ()


def independent_step(gate, own, h, states):
    s = gate("a", None) + own["u"] * h
    return 1.5 * np.where(s > 0, s, 0.125 * s), ()


def feedforward_step(gate, own, h, states):
    f = sigmoid(gate("f", None))
    c = f * states[0] + (1 - f) * np.tanh(gate("z", None))
    return np.tanh(c), (c,)


class Own(NamedTuple):
    """What the twin of a cell is: its step, the names of its gates, the number of its states, and the names of the
    rows of R where they are others: those of gates without R are missing, and those kept apart have names of their own.
    """

    step: object
    gates: str
    states: int
    recurrent: str | None = None


OWN = {
    "Independent": Own(independent_step, "a", 0),
    "Feedforward": Own(feedforward_step, "f z", 1),
    "PeepholeLSTM": Own(peephole_step, "i f g o", 1),
    "CoupledLSTM": Own(coupled_step, "i g o", 1),
    "ActivatedLSTM": Own(activated_step, "i f g o", 1),
    "MinimalGatedUnit": Own(minimal_step, "f n", 0),
    "IndRNN": Own(indrnn_step, "a", 0),
    "MinGRU": Own(mingru_step, "z n", 0),
    "SLSTM": Own(slstm_step, "z i f o", 3),
    "MultiHeadSLSTM": Own(slstm_step, "z i f o", 3),
    "JANET": Own(janet_step, "f n", 0),
    "LiGRU": Own(ligru_step, "z n", 0),
    "UGRNN": Own(ugrnn_step, "n g", 0),
    "FastGRNN": Own(fast_step, "a", 0),
    "RAN": Own(ran_step, "n i f", 1, "i f"),
    "STAR": Own(star_step, "z k", 0, "k"),
    "CoRNN": Own(cornn_step, "a", 1, "a v"),
    "LEM": Own(lem_step, "ty tz n y", 1),
    "MinimalRNN": Own(minimal_rnn_step, "n", 0, "u v"),
    "NBR": Own(bistable_step, "a c n", 0, "a c"),
    "MultiplicativeLSTM": Own(multiplicative_step, "p i f n o", 1, "q i f n o"),
}

# By their names in ONNX's documentation.
ACTIVATIONS = {
    "Sigmoid": sigmoid,
    "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0),
    "Affine": lambda x, alpha, beta: alpha * x + beta,
    "LeakyRelu": lambda x, alpha: np.where(x >= 0, x, alpha * x),
    "ThresholdedRelu": lambda x, alpha: np.where(x > alpha, x, 0),
    "ScaledTanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "HardSigmoid": lambda x, alpha, beta: np.minimum(np.maximum(alpha * x + beta, 0), 1),
    "Elu": lambda x, alpha: np.where(x >= 0, x, alpha * np.expm1(x)),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Softplus": lambda x: np.logaddexp(x, 0),
    "log_sigmoid": lambda x: -np.logaddexp(-x, 0),
}


def forward_own(
    name,
    weights,
    x,
    hx=None,
    cx=None,
    *,
    hidden_size,
    num_layers,
    bidirectional,
    lengths=None,
    mask=None,
    activations=(),
):
    """Run a network of a cell that no mode names; `activations` are functions that its step takes besides."""
    own, size, directions = OWN[name], hidden_size, 2 if bidirectional else 1
    of_w, of_r = own.gates.split(), (own.recurrent or own.gates).split()
    lengths = [len(x)] * x.shape[1] if lengths is None else lengths
    mask = np.ones(x.shape[:2]) if mask is None else mask
    states = [hx, *([None] * own.states if cx is None else arrays_of(cx))]
    empty = np.zeros((num_layers * directions, x.shape[1], size))
    hy, *finals = (empty.copy() if state is None else np.array(state, np.float64) for state in states)
    y = np.asarray(x, np.float64)
    for row in range(num_layers * directions):
        layer, direction = divmod(row, directions)
        suffix = f"_l{layer}" + ("_reverse" if direction else "")
        block = pseudo_layer(weights, layer, direction)
        found = {key.removesuffix(suffix): value for key, value in weights.items() if key.endswith(suffix)}
        vectors = {key: np.asarray(value, np.float64) for key, value in found.items()}
        if direction == 0:
            source, y = y, np.zeros((*x.shape[:2], directions * size))
        for n, length in enumerate(lengths):
            for t in reversed(range(length)) if direction else range(length):

                def gate(key, h, step=source[t, n], block=block):
                    found = block.input_side(of_w.index(key), step, size) if key in of_w else 0
                    return found if h is None else found + block.recurrent_side(of_r.index(key), h, size)

                if mask[t, n]:
                    before = tuple(one[row, n] for one in finals)
                    hy[row, n], after = own.step(gate, vectors, hy[row, n], before, *activations)
                    for one, value in zip(finals, after, strict=True):
                        one[row, n] = value
                y[t, n, direction * size : (direction + 1) * size] = hy[row, n]
    return Result(y, hy, as_given(finals), None, None, np.inf)


def pseudo_layer(weights, layer, direction):
    suffix = f"_l{layer}" + ("_reverse" if direction else "")
    kinds = ("weight_ih", "weight_hh", "weight_hr", "bias_ih", "bias_hh")
    named = (weights.get(kind + suffix) for kind in kinds)
    return PseudoLayer(*(None if array is None else np.asarray(array, np.float64) for array in named))


def run_sequence(layer, x, h, c, mask=None, *, mode, hidden_size, reverse, cell_clip, reset_after):
    """One sequence x (length, in) through one layer in one direction; states stand at their own time. Where `mask` is 0
    the state stays as it is; None: 1 everywhere."""
    mask = np.ones(len(x)) if mask is None else mask
    hidden = np.zeros((len(x), len(h)))
    cell = np.zeros((len(x), hidden_size))
    kink = np.inf
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        distance = np.inf
        if not mask[t]:
            pass
        elif mode == "lstm":
            h, c, distance = lstm_step(layer, x[t], h, c, hidden_size, cell_clip)
        elif mode == "gru":
            h = gru_step(layer, x[t], h, hidden_size, reset_after)
        else:
            h, distance = rnn_step(layer, x[t], h, hidden_size, mode)
        hidden[t], cell[t] = h, c
        kink = min(kink, distance)
    return hidden, cell, h, c, kink


def forward(
    weights,
    x,
    hx=None,
    cx=None,
    *,
    mode,
    hidden_size,
    num_layers=1,
    bidirectional=False,
    proj_size=None,
    cell_clip=None,
    reset_after=True,
    lengths=None,
    mask=None,
    masks=None,
):
    """Run the network on x (T, N, I) with a dict of named weights.

    `masks` holds the scaled dropout mask (T, N, D*P) of every layer's output but the last one's; None drops nothing.
    A layer without `weight_ih` adds its input to every gate's pre-activation. `mask` (T, N) is 0 at steps to skip.
    """
    seq_len, batch_size = x.shape[:2]
    directions = 2 if bidirectional else 1
    out_size = proj_size or hidden_size
    lengths = [seq_len] * batch_size if lengths is None else lengths
    mask = np.ones((seq_len, batch_size)) if mask is None else mask
    states = (num_layers * directions, batch_size)
    hy = np.array(np.zeros((*states, out_size)) if hx is None else hx, np.float64)
    cy = np.array(np.zeros((*states, hidden_size)) if cx is None else cx, np.float64)
    hidden = [np.zeros((seq_len, batch_size, out_size)) for _ in range(states[0])]
    cell = [np.zeros((seq_len, batch_size, hidden_size)) for _ in range(states[0])]
    options = dict(mode=mode, hidden_size=hidden_size, cell_clip=cell_clip, reset_after=reset_after)
    kink = np.inf
    y = np.asarray(x, np.float64)
    for layer in range(num_layers):
        if layer > 0 and masks is not None:
            y = y * masks[layer - 1]
        for direction in range(directions):
            row = layer * directions + direction
            block = pseudo_layer(weights, layer, direction)
            for n, length in enumerate(lengths):
                hidden[row][:length, n], cell[row][:length, n], hy[row, n], cy[row, n], distance = run_sequence(
                    block, y[:length, n], hy[row, n], cy[row, n], mask[:, n], reverse=direction == 1, **options
                )
                kink = min(kink, distance)
        y = np.concatenate(hidden[layer * directions : (layer + 1) * directions], axis=2)
    return Result(y, hy, cy if mode == "lstm" else None, hidden, cell, kink)
