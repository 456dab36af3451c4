"""
Generated text, letter by letter
================================

A GRU learns from Python's own help pages and then writes. The picture shows
how likely it held each next letter.
"""

from pydoc_data import topics

import matplotlib.pyplot as plt
import numpy as np

import rnnkit
from rnnkit import training

T, N, UNITS, UPDATES = 40, 32, 128, 500
rng = np.random.default_rng(0)
pages = [topics.topics[name] for name in sorted(topics.topics)]
text = " ".join(" ".join(pages).lower().split())
letters = [chr(code) for code in range(97, 123)] + [" ", ".", ",", "(", ")"]
numbers = {letter: number for number, letter in enumerate(letters)}
codes = np.array([numbers[one] for one in text if one in numbers])
one_hot = np.eye(len(letters), dtype=np.float32)
print(f"{len(codes):,} letters, {len(letters)} different ones")

net = rnnkit.GRU(len(letters), UNITS, seed=0)
output_layer = training.init_dense(UNITS, len(letters), seed=1)
optimizer, workspace = training.Adam([net.weights, output_layer]), None
losses = []
for update in range(UPDATES):
    start = rng.integers(len(codes) - T - 1, size=N)
    part = codes[start + np.arange(T + 1)[:, None]]
    x = one_hot[part[:-1]]
    y, _, _, workspace = net.forward(x, workspace=workspace)
    scores = training.dense(output_layer, y, len(letters))
    loss = training.softmax_cross_entropy(scores, part[1:])
    dy, doutput_layer = training.dense_backward(
        output_layer, y, loss.gradient
    )
    gradients = [net.backward(workspace, dy).dw, doutput_layer]
    training.clip_gradient_norm(gradients, 1.0)
    optimizer.step(gradients, learning_rate=0.008 * (1 - update / UPDATES))
    losses.append(loss.loss / np.log(2))
    if update % 100 == 99:
        bits = np.mean(losses[-20:])
        print(f"update {update + 1}: {bits:.2f} bits a letter")

# %%
# It writes: each letter is drawn from the probabilities, a little
# sharpened, and read as the next input.

stream = net.prepare().stream(1)
written, likely = "the ", []
for number in [numbers[one] for one in written]:
    y = stream.step(one_hot[[number]])
while len(written) < 400:
    scores = training.dense(output_layer, y, len(letters))[0] * 1.4
    chances = np.exp((scores - scores.max()).astype(float))
    chances /= chances.sum()
    number = rng.choice(len(letters), p=chances)
    likely.append(chances)
    written += letters[number]
    y = stream.step(one_hot[[number]])
for first in range(0, 400, 70):
    print(written[first : first + 70])

# %%
shown = np.array(likely[:60]).T
plt.figure(figsize=(9, 4.5))
plt.imshow(shown**0.5, aspect="auto", cmap="Blues")
plt.xticks(range(60), [one if one != " " else "_" for one in written[4:64]])
plt.yticks(range(len(letters)), [one.replace(" ", "_") for one in letters])
plt.tick_params(labelsize=7, length=0)
plt.xlabel("what it wrote")
plt.ylabel("what it held likely")
plt.tight_layout()
plt.show()
