"""
A forecast with its spread
==========================

A GRU predicts the mean and the variance of the next value. Two hundred
sampled futures show how far the forecast can be trusted.
"""

import matplotlib.pyplot as plt
import numpy as np

import rnnkit
from rnnkit import training

SEEN, AHEAD, PATHS = 80, 60, 200
rng = np.random.default_rng(0)


def series(steps, count):
    """Waves whose speed drifts, with noise: (steps, count, 1)."""
    speed = 0.35 + 0.03 * rng.standard_normal((steps, count)).cumsum(0) / 5
    angle = rng.uniform(0, 2 * np.pi, count) + speed.cumsum(0)
    values = np.sin(angle) + 0.05 * rng.standard_normal((steps, count))
    return values.astype(np.float32)[..., None]


# %%
# The loss is the negative log-likelihood of a normal distribution. Its
# gradient by the mean m and the log-variance v is two lines.

net = rnnkit.GRU(1, 48, seed=0)
output_layer = training.init_dense(48, 2, seed=1)
optimizer, workspace = training.Adam([net.weights, output_layer]), None
for update in range(500):
    values = series(101, 32)
    y, _, _, workspace = net.forward(values[:-1], workspace=workspace)
    m, v = np.split(training.dense(output_layer, y, 2), 2, axis=-1)
    error, precision = values[1:] - m, np.exp(-v)
    loss = 0.5 * (v + error**2 * precision).mean()
    dm = -error * precision / error.size
    dv = 0.5 * (1 - error**2 * precision) / error.size
    dy, doutput_layer = training.dense_backward(
        output_layer, y, np.concatenate([dm, dv], axis=-1)
    )
    gradients = [net.backward(workspace, dy).dw, doutput_layer]
    training.clip_gradient_norm(gradients, 1.0)
    optimizer.step(gradients, learning_rate=0.01 * (1 - update / 500))
    if update % 100 == 99:
        print(f"update {update + 1}: loss {loss:.3f}")

# %%
# A stream keeps the state of each path. All paths read the same past, then
# each one reads what it has drawn itself.

whole = series(SEEN + AHEAD, 1)[:, 0, 0]
stream = net.prepare().stream(PATHS)
for value in whole[:SEEN]:
    y = stream.step(np.full((PATHS, 1), value, np.float32))
drawn = np.empty((AHEAD, PATHS), np.float32)
for t in range(AHEAD):
    m, v = training.dense(output_layer, y, 2).T
    drawn[t] = m + np.exp(v / 2) * rng.standard_normal(PATHS)
    y = stream.step(drawn[t][:, None])

low, middle, high = np.quantile(drawn, [0.05, 0.5, 0.95], axis=1)
ahead = np.arange(SEEN, SEEN + AHEAD)
inside = np.mean((whole[SEEN:] >= low) & (whole[SEEN:] <= high))
print(f"{inside:.0%} of the future lies within the 90 % band")

plt.figure(figsize=(7, 3.5))
plt.fill_between(ahead, low, high, alpha=0.3, label="90 % of the paths")
plt.plot(ahead, drawn[:, :3], color="tab:blue", linewidth=0.5)
plt.plot(ahead, middle, color="tab:blue", label="median")
plt.plot(whole, color="black", linewidth=1, label="what happened")
plt.axvline(SEEN, color="grey", linestyle="dotted")
plt.xlabel("step; the forecast begins at the dotted line")
plt.ylim(-2, 1.4)
plt.legend(loc="lower left", ncol=3)
plt.tight_layout()
plt.show()
