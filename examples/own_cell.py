"""A cell from its equations: the UR-LSTM on the adding problem.

Gu, Gulcehre, Paine, Hoffman and Pascanu (arXiv 1910.09890): a unit that
remembers for a long time needs a forget gate close to 1, where the sigmoid
is flat and hardly learns. A second gate r refines it:

    f' = r*(1 - (1 - f)**2) + (1 - r)*f**2

The initial biases make units forget at very different speeds, and 1 - f'
replaces the input gate. The LSTM learns the same for comparison.
"""

from typing import NamedTuple

import numpy as np

import rnnkit
from rnnkit import training
from rnnkit.cells import cell, forward, sigmoid, tanh


@cell(gates="f r g o", states="c")
class URLSTM(NamedTuple):
    # for one unit; each gate is W x + R h + biases
    @forward("c h")
    def step(self, f, r, g, o, c_prev):
        f, r = sigmoid(f), sigmoid(r)
        refined = r * (1 - (1 - f) ** 2) + (1 - r) * f**2
        c = refined * c_prev + (1 - refined) * tanh(g)
        return c, sigmoid(o) * tanh(c)


# the derived gradient against finite differences
print(rnnkit.check_cell(URLSTM))

STEPS, UNITS = 200, 32
refined = rnnkit.Network(URLSTM, 2, UNITS, seed=0)
# initial values of the forget gates
initial = np.random.default_rng(0).uniform(1 / UNITS, 1 - 1 / UNITS, UNITS)
logits = np.log(initial / (1 - initial))
# of f and r
refined.views["bias_ih_l0"][: 2 * UNITS] = np.concatenate([logits, -logits])
lstm = rnnkit.LSTM(2, UNITS, seed=0)
# forget gates start mostly open: sigmoid(1) = 0.73
lstm.views["bias_ih_l0"][UNITS : 2 * UNITS] = 1


def errors(net, updates=600):
    """Learn the sum of two marked numbers among 200, one in each half.

    Return the mean error of each hundred updates.
    """
    rng, batch = np.random.default_rng(1), np.arange(32)
    losses, workspace = [], None
    output_layer = training.init_dense(UNITS, 1, seed=1)
    optimizer = training.Adam([net.weights, output_layer])
    for _ in range(updates):
        x = np.zeros((STEPS, 32, 2), np.float32)  # (T, N, 2)
        x[:, :, 0] = rng.random((STEPS, 32), np.float32)
        marked = rng.integers(STEPS // 2, size=(2, 32))
        marked[1] += STEPS // 2
        x[marked, batch, 1] = 1
        target = x[marked, batch, 0].sum(axis=0)[:, None]
        y, hy, cy, workspace = net.forward(x, workspace=workspace)
        found = training.dense(output_layer, hy[0], 1)
        loss = training.squared_error(found, target)
        dhy, doutput_layer = training.dense_backward(
            output_layer, hy[0], loss.gradient
        )
        dw = net.backward(workspace, dhy=dhy[None]).dw
        gradients = [dw, doutput_layer]
        training.clip_gradient_norm(gradients, 1.0)
        optimizer.step(gradients, learning_rate=0.01)
        losses.append(loss.loss)
    return np.reshape(losses, (6, -1)).mean(axis=1)


print("\nMean squared error; the constant guess 1 gives 0.167")
print("updates  UR-LSTM    LSTM")
rows = zip(errors(refined), errors(lstm), strict=True)
for number, row in enumerate(rows):
    print(f"{100 * number + 100:7}   {row[0]:.4f}  {row[1]:.4f}")
