"""A cell from a paper, from its equations: the UR-LSTM on the adding problem, against the LSTM.

Gu, Gulcehre, Paine, Hoffman and Pascanu (arXiv 1910.09890): a unit that remembers for a long time needs a forget gate
close to 1, where the sigmoid is flat and hardly learns. A second gate r refines it:
f' = r*(1 - (1 - f)**2) + (1 - r)*f**2. The initial biases make units forget at very different speeds, and
1 - f' replaces the input gate.
"""

from typing import NamedTuple

import numpy as np

import rnnkit
from rnnkit import training
from rnnkit.cells import cell, forward, sigmoid, tanh


@cell(gates="f r g o", states="c")
class URLSTM(NamedTuple):
    @forward("c h")
    def step(self, f, r, g, o, c_prev):  # for one unit; each gate is W x + R h + biases
        f, r = sigmoid(f), sigmoid(r)
        refined = r * (1 - (1 - f) ** 2) + (1 - r) * f**2
        c = refined * c_prev + (1 - refined) * tanh(g)
        return c, sigmoid(o) * tanh(c)


print(rnnkit.check_cell(URLSTM))  # the derived gradient against finite differences

STEPS, UNITS = 200, 32
refined = rnnkit.Network(URLSTM, 2, UNITS, seed=0)
initial = np.random.default_rng(0).uniform(1 / UNITS, 1 - 1 / UNITS, UNITS)  # initial values of the forget gates
logits = np.log(initial / (1 - initial))
refined.views["bias_ih_l0"][: 2 * UNITS] = np.concatenate([logits, -logits])  # of f and r
lstm = rnnkit.LSTM(2, UNITS, seed=0)
lstm.views["bias_ih_l0"][UNITS : 2 * UNITS] = 1  # forget gates start mostly open: sigmoid(1) = 0.73


def errors(net, updates=600):
    """Learn the sum of the two marked numbers among 200, one in each half; return the error of each update."""
    rng, batch, losses, workspace = np.random.default_rng(1), np.arange(32), [], None
    output_layer = training.init_dense(UNITS, 1, seed=1)
    optimizer = training.Adam([net.weights, output_layer])
    for _ in range(updates):
        x = np.stack([rng.random((STEPS, 32), np.float32), np.zeros((STEPS, 32), np.float32)], axis=2)  # (T, N, 2)
        marked = rng.integers(STEPS // 2, size=(2, 32)) + [[0], [STEPS // 2]]
        x[marked, batch, 1] = 1
        y, hy, cy, workspace = net.forward(x, workspace=workspace)
        loss = training.squared_error(training.dense(output_layer, hy[0], 1), x[marked, batch, 0].sum(axis=0)[:, None])
        dhy, doutput_layer = training.dense_backward(output_layer, hy[0], loss.gradient)
        gradients = [net.backward(workspace, dhy=dhy[None]).dw, doutput_layer]
        training.clip_gradient_norm(gradients, 1.0)
        optimizer.step(gradients, learning_rate=0.01)
        losses.append(loss.loss)
    return np.reshape(losses, (6, -1)).mean(axis=1)


print("\nupdates  UR-LSTM    LSTM   (mean squared error; the constant guess 1 gives 0.167)")
for number, row in enumerate(zip(errors(refined), errors(lstm), strict=True)):
    print(f"{100 * number + 100:7}   {row[0]:.4f}  {row[1]:.4f}")
