"""
A network in an ONNX file
=========================

A trained network is saved as ONNX, runs in ONNX Runtime, and is read back.
The outputs of all three lie on each other.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime

import rnnkit
from rnnkit.interop import load_onnx, save_onnx, stack_onnx

net = rnnkit.LSTM(3, 16, num_layers=2, bidirectional=True, seed=0)
x = np.random.default_rng(0).standard_normal((60, 4, 3), np.float32)
lengths = np.array([60, 45, 30, 10])
y = net.infer(x, lengths=lengths).y

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.onnx"
    save_onnx(net, path, inputs=["lengths"])
    print(f"{path.name}: {path.stat().st_size} bytes")
    session = onnxruntime.InferenceSession(path)
    nodes = load_onnx(path)
inputs = {"x": x, "lengths": lengths.astype(np.int32)}
theirs = session.run(["y"], inputs)[0]
print("operators:", *nodes)
restored = stack_onnx(list(nodes.values()))
again = restored.infer(x, lengths=lengths).y
print(f"read back, bit-identical: {np.array_equal(y, again)}")
print(f"largest difference to ONNX Runtime: {np.abs(y - theirs).max():.1e}")

# %%
figure, axes = plt.subplots(2, sharex=True, figsize=(7, 4.5))
for n, color in enumerate(["tab:blue", "tab:orange", "tab:green"]):
    axes[0].plot(y[:, n, 0], color=color, linewidth=4, alpha=0.4)
    axes[0].plot(theirs[:, n, 0], color=color, linewidth=1)
    axes[1].plot(np.abs(y - theirs)[:, n].max(axis=1), color=color)
axes[0].set_ylabel("one output: wide rnnkit,\nthin ONNX Runtime")
axes[1].set(ylabel="largest difference", xlabel="step; then padding")
plt.tight_layout()
plt.show()
