"""Classify sequences of different lengths: does a string belong to the
embedded Reber grammar?

The grammar is from Hochreiter and Schmidhuber's paper on the LSTM (1997): a
string such as BTBTXSETE walks through a small graph. Its second letter (T
or P) must come back just before the last one, so the network has to
remember it.
"""

import numpy as np

import rnnkit
from rnnkit import training

ALPHABET = "BEPSTVX"
GRAPH = [
    [("T", 1), ("P", 2)],
    [("S", 1), ("X", 3)],
    [("T", 2), ("V", 4)],
    [("X", 2), ("S", 5)],
    [("P", 3), ("V", 5)],
]
rng = np.random.default_rng(0)


def grammatical():
    node, walk, branch = 0, "B", rng.choice(["T", "P"])
    while node < 5:
        letter, node = GRAPH[node][rng.integers(2)]
        walk += letter
    return f"B{branch}{walk}E{branch}E"


def ungrammatical():
    # change one letter: with probability 0.5 the last but one, else any
    text = grammatical()
    place = len(text) - 2 if rng.random() < 0.5 else rng.integers(len(text))
    choices = "TP" if place == len(text) - 2 else ALPHABET
    other = rng.choice([one for one in choices if one != text[place]])
    return text[:place] + other + text[place + 1 :]


labels = rng.integers(2, size=10_000)
texts = [grammatical() if label else ungrammatical() for label in labels]
one_hot = np.eye(len(ALPHABET), dtype=np.float32)
indices = [[ALPHABET.index(letter) for letter in text] for text in texts]
sequences = [one_hot[index] for index in indices]  # (T_i, 7) each
lengths = np.array([len(text) for text in texts])
print(f"{len(texts)} strings of {lengths.min()} to {lengths.max()} letters")

net = rnnkit.LSTM(len(ALPHABET), 32, seed=0)
# open forget gates (i, f, g, o): it remembers from the start
net.views["bias_ih_l0"][32:64] = 1.0
# linear layer: last hidden state -> score per class
output_layer = training.init_dense(32, num_outputs=2, seed=1)
optimizer = training.Adam([net.weights, output_layer])
for epoch in range(20):
    losses = []
    # similar lengths together: little padding
    for batch in training.bucket_batches(lengths[:5000], 32, seed=epoch):
        # (T, N, 7) and (N,)
        x, batch_lengths = training.pad([sequences[i] for i in batch])
        y, hy, cy, workspace = net.forward(x, lengths=batch_lengths)
        scores = training.dense(output_layer, hy[0], 2)
        loss = training.softmax_cross_entropy(scores, labels[batch])
        dhy, doutput_layer = training.dense_backward(
            output_layer, hy[0], loss.gradient
        )
        dw = net.backward(workspace, dhy=dhy[None]).dw
        gradients = [dw, doutput_layer]
        training.clip_gradient_norm(gradients, 1.0)
        optimizer.step(gradients, learning_rate=0.01 * (1 - epoch / 20))
        losses.append(loss.loss)
    if epoch % 4 == 3:
        print(f"epoch {epoch + 1:2}: cross-entropy {np.mean(losses):.3f}")

# random strings repeat: test only those that are not in training
new = np.flatnonzero(~np.isin(texts, texts[:5000]))
x, new_lengths = training.pad([sequences[i] for i in new])
hy = net.infer(x, lengths=new_lengths).hy
predicted = training.dense(output_layer, hy[0], 2).argmax(axis=1)
accuracy = (predicted == labels[new]).mean()
print(
    f"accuracy on {len(new)} strings that training has not seen: "
    f"{accuracy:.3f}"
)
