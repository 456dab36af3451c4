"""
The error of quantized weights
==============================

Plans with weights in int8 and bfloat16, against float32: how far the
outputs differ, and how many bytes the weights take.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import rnnkit

net = rnnkit.LSTM(64, 128, num_layers=2, seed=0)
x = np.random.default_rng(0).standard_normal((200, 8, 64), np.float32)
y = net.infer(x).y
errors = {}
for precision, size in (("int8", 1), ("bfloat16", 2)):
    with warnings.catch_warnings():
        # where the CPU has no bfloat16, it is no faster
        warnings.simplefilter("ignore", RuntimeWarning)
        plan = net.prepare(precision=precision)
    errors[precision] = np.abs(plan.infer(x).y - y)
    largest, bytes_ = errors[precision].max(), net.weights.size * size
    print(f"{precision:8}: {bytes_:7,} bytes, error up to {largest:.4f}")
print(f"float32 : {net.weights.nbytes:7,} bytes")

# %%
figure, (over_time, all_errors) = plt.subplots(1, 2, figsize=(8, 3.5))
for precision, found in errors.items():
    over_time.semilogy(found.mean(axis=(1, 2)), label=precision)
    bins = np.geomspace(1e-7, 1e-1, 50)
    all_errors.hist(found.ravel(), bins, alpha=0.6, label=precision)
over_time.set(xlabel="step", ylabel="mean error")
all_errors.set(xscale="log", xlabel="error of an output", yticks=[])
over_time.legend()
plt.tight_layout()
plt.show()
