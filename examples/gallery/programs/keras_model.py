"""
A Keras model on this engine
============================

A bidirectional LSTM of Keras finds the class of a noisy wave. After
`rnnkit.keras.accelerate` the same model trains on this engine.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras  # noqa: E402  the backend is chosen before
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

import rnnkit.keras  # noqa: E402

rng = np.random.default_rng(0)


def waves(count):
    """Sines, triangles and squares with noise (N, T, 1), and classes."""
    kinds = rng.integers(3, size=count)
    angle = 0.3 * np.arange(50) + rng.uniform(0, 6, (count, 1))
    sine = np.sin(angle)
    shapes = np.stack([sine, np.arcsin(sine) * 2 / np.pi, np.sign(sine)])
    x = shapes[kinds, np.arange(count)] + rng.normal(0, 0.2, (count, 50))
    return x.astype("float32")[..., None], kinds


keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.layers.Bidirectional(keras.layers.LSTM(24)),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
optimizer = keras.optimizers.Adam(0.01)
loss = "sparse_categorical_crossentropy"
model.compile(optimizer, loss, metrics=["accuracy"])
x, kinds = waves(900)
model.build(x.shape)
changed, left = rnnkit.keras.accelerate(model)
print("on this engine:", *changed)
history = model.fit(
    x, kinds, epochs=8, batch_size=50, validation_split=0.2, verbose=0
).history
print(f"accuracy on new waves: {history['val_accuracy'][-1]:.2f}")

# %%
figure, (curves, shapes) = plt.subplots(1, 2, figsize=(8, 3.5))
curves.plot(history["accuracy"], label="training")
curves.plot(history["val_accuracy"], label="new waves")
curves.set(xlabel="epoch", ylabel="accuracy", ylim=(0, 1.02))
curves.legend(loc="lower right")
names = "sine", "triangle", "square"
for kind, name in enumerate(names):
    one = x[np.flatnonzero(kinds == kind)[0], :, 0]
    shapes.plot(one - 3 * kind, label=name)
shapes.set(yticks=[0, -3, -6], yticklabels=names, xlabel="step")
plt.tight_layout()
plt.show()
