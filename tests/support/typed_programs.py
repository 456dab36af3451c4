"""Programs as people write them, for type checkers: those lines are wrong, and no others, that say so."""

from typing import NamedTuple, assert_type

import numpy as np
import numpy.typing as npt

import rnnkit
from rnnkit import GRU, LSTM, RNN, Infer, Network, Plan, RNNDescriptor, training
from rnnkit.cells import (
    Activation,
    Gate,
    HardSigmoid,
    PeepholeLSTM,
    Sigmoid,
    Vector,
    cell,
    clip,
    exp,
    fma,
    forward,
    gradient,
    sigmoid,
    slope,
    tanh,
    value,
)

Floats = npt.NDArray[np.floating]  # as a user writes it


def results(x: npt.NDArray[np.float32]) -> None:
    lstm, gru, rnn = LSTM(3, 5, seed=0), GRU(3, 5), RNN(3, 5, nonlinearity="relu")
    y, hy, cy, workspace = lstm.forward(x, lengths=[4, 2])
    total: float = (y.sum() + hy.sum() + cy.sum()).item()
    lstm.weights -= 0.1 * lstm.backward(workspace, dy=y, dcy=cy).dw
    lstm.weights, lstm.views["bias_ih_l0"] = 0.5 * lstm.weights, np.zeros(20, np.float32)
    lstm.views["bias_ih_l0"] += 1
    print(total, lstm.views["weight_ih_l0"].shape, lstm.dtype.name, lstm.num_parameters + gru.num_parameters)
    assert_type(gru.infer(x).cy, None)
    assert_type(rnn.forward(x).cy, None)
    print(gru.infer(x).cy.shape)  # wrong: a GRU has no cell
    print(gru.backward(gru.forward(x).workspace, dy=y).dcx + 1)  # wrong
    print(lstm.forward(x).c)  # wrong
    plan = lstm.prepare()
    state, cell = plan.step(x[0], None, None)[1:]
    print(cell.mean(), state.mean(), gru.prepare().step(x[0]).cy is None)
    assert_type(gru.prepare(precision="int8"), Plan[None])
    gru.prepare(precision="int4")  # wrong


def descriptors(w: Floats) -> None:
    desc = RNNDescriptor("lstm", 3, 5, num_layers=2, bias="input", proj_size=4, dtype=np.float64)
    RNNDescriptor("lstn", 3, 5)  # wrong: no mode
    RNNDescriptor("gru", 3, 5, bias="one")  # wrong
    RNNDescriptor("gru", 3, 5, dtype="int8")  # wrong
    RNNDescriptor("gru", 3, "5")  # wrong
    RNNDescriptor("gru", 3, 5, num_layer=2)  # wrong
    net = LSTM.from_descriptor(desc, w)
    assert_type(net, LSTM)
    assert_type(net.copy().astype("float32"), LSTM)
    LSTM.from_descriptor("lstm")  # wrong
    found: Infer[Floats] = net.infer(w)
    print(found.cy.size, rnnkit.infer(desc, w, w).y.size, rnnkit.weight_views(desc, w)["bias_ih_l0"])


def options() -> None:
    LSTM(3, 5, bias=True, cell_clip=(-1, 1), batch_first=False)
    LSTM(3, 5, reset_after=True)  # wrong: a GRU's
    LSTM(3, 5, nonlinearity="tanh")  # wrong: an RNN's
    LSTM(3, 5, batch_first=True)  # wrong: x is time-major
    GRU(3, 5, reset_after=False, dtype="float64")
    GRU(3, 5, proj_size=2)  # wrong: an LSTM's
    RNN(3, 5, nonlinearity="sigmoid")  # wrong
    RNN(3, 5, dropout="0.5")  # wrong
    Network("gru", 3, 5, reset_after=False)
    Network("gru", 3, 5, hidden=2)  # wrong


def files() -> None:
    net = rnnkit.load("model")
    net.save("model", readout=np.zeros(3), words=["a", "b"])
    print(net.arrays["readout"].shape, net.desc.hidden_size + net.hidden_size)
    print(net.hidden)  # wrong
    rnnkit.load(3)  # wrong
    rnnkit.lode("model")  # wrong: no such name
    print(rnnkit.__version__.split("."))
    if isinstance(net, LSTM):
        print(net.infer(np.zeros((1, 1, 3))).cy.shape)


def arrays(x: npt.NDArray[np.float32]) -> None:
    net, memmap = LSTM(3, 5), np.memmap("x", np.float32)
    optimizer = training.Adam([net.weights, net.views["bias_ih_l0"]], weight_decay=[0.1, 0])
    optimizer.step(net.weights, learning_rate=0.1)
    print(net.infer(memmap).y, training.clip_gradient_norm(net.weights, 1.0) + 1, rnnkit.infer(net.desc, x, x).y)
    training.Adam(net)  # wrong: it takes net.weights
    training.SGD([net])  # wrong
    training.clip_gradient_norm(net, 1.0)  # wrong
    net.forward([[[0.0, 1.0, 2.0]]])  # wrong: an array
    net.infer(x, hx=[0.0])  # wrong
    net.prepare().infer([x])  # wrong
    net.weights = [0.0]  # wrong
    rnnkit.forward(net.desc, [0.0], x)  # wrong
    rnnkit.forward(net, net.weights, x)  # wrong: net.desc


@cell(gates=[Gate("g"), Gate("c", multiplies=None)], states="s", vectors=[Vector("p", 0, 1), "q"], slots=["kept"])
class Own(NamedTuple):
    """A cell of all that a declaration can have, and what the checkers must not mind."""

    rate: float = 0.5
    gate: Activation = Sigmoid()
    smooth: bool = True

    @forward("g c kept s h")
    def update(
        self, g: float, c: float, s_prev: float, h_prev: float, p: float, q: float
    ) -> tuple[float, float, float, float, float]:
        g, c = value(self.gate, g), tanh(c) if self.smooth else clip(c, 0, 1)
        return g, c, exp(g), sigmoid(s_prev), fma(self.rate, g * p, c * q * h_prev)

    @gradient("dg dc ds_prev dh_prev dp dq")
    def through_update(self, g: float, c: float, dh: float, ds: float) -> tuple[float, ...]:
        return dh * slope(self.gate, g), dh * fma("c", c, 1), ds, dh, dh, dh  # wrong: a text


def cells() -> None:
    net = Network(Own(rate=0.1, gate=HardSigmoid(alpha=0.3)), 3, 5)
    print(Network(Own, 3, 5).desc == net.desc, RNNDescriptor(PeepholeLSTM(gate=Sigmoid()), 3, 5))
    print(rnnkit.check_cell(Own, seed=1)[0].right, rnnkit.load("net", cell=Own).views["p_l0"], tanh(1) + exp(2))
    Own(rate="fast")  # wrong
    Own(gate=tanh)  # wrong: Tanh()
    PeepholeLSTM(gate=0.5)  # wrong
    cell(gates=5)  # wrong
    forward(3)  # wrong
    Gate(1)  # wrong
    Vector("p", "low")  # wrong
    sigmoid("x")  # wrong
    fma(1, 2)  # wrong
