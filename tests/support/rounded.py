"""One step of the built-in cells on rounded numbers: the naive twin of plans with quantized weights."""

import ml_dtypes
import numpy as np


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def int8(rows):
    """Each row in steps of its largest magnitude / 127; where two are as near, float32 arithmetic decides."""
    largest = np.abs(rows).max(axis=1, keepdims=True).astype(np.float32)
    scale, inverse = largest / np.float32(127), np.float32(127) / largest
    return np.rint(rows * inverse).astype(np.float64) * scale


def factors(weights):
    """The power of two nearest to the largest magnitude of each column, relative to that of all."""
    largest = np.abs(weights).max(axis=0)
    return np.exp2(np.rint(np.log2(np.where(largest > 0, largest, largest.max()) / largest.max())))


def bfloat16(rows):
    return rows.astype(ml_dtypes.bfloat16).astype(np.float64)


def one_step(desc, views, x, h, c, of_weights, of_values, of_columns=np.ones_like):
    """The states after one step of a layer: rows `of_weights` and rows `of_values` are rounded by these. Columns of the
    weights of one product are divided by the factors `of_columns`, and values multiplied with them."""

    def multiplied(values, name, rows=slice(None), product=slice(None)):
        factors = of_columns(views[name][product])
        factors = (factors if factors.ndim == 1 else factors[0]).astype(np.float32)
        return of_values(values.astype(np.float32) * factors) @ of_weights(views[name][rows] / factors).T

    units = desc.hidden_size
    if desc.input_mode == "skip":
        a = np.tile(x, views["weight_hh_l0"].shape[0] // units).astype(np.float64)
    else:
        a = multiplied(x, "weight_ih_l0")
    a = a + views.get("bias_ih_l0", 0)
    bias = views.get("bias_hh_l0", np.zeros(a.shape[1]))
    if desc.mode == "gru":
        parts = [slice(i * units, (i + 1) * units) for i in range(3)]
        together = slice(None) if desc.reset_after else slice(2 * units)  # what multiplies h
        r, z = (sigmoid(a[:, own] + multiplied(h, "weight_hh_l0", own, together) + bias[own]) for own in parts[:2])
        last = parts[2]
        if desc.reset_after:
            n = np.tanh(a[:, last] + r * (multiplied(h, "weight_hh_l0", last) + bias[last]))
        else:
            n = np.tanh(a[:, last] + multiplied(r * h, "weight_hh_l0", last, last) + bias[last])
        return (1 - z) * n + z * h, None
    a = a + multiplied(h, "weight_hh_l0") + bias
    if desc.mode != "lstm":
        return (np.tanh(a) if desc.mode == "rnn_tanh" else np.maximum(a, 0)), None
    i, f, g, o = np.split(a, 4, axis=1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    if desc.cell_clip is not None:
        c = np.clip(c, *desc.cell_clip)
    h = sigmoid(o) * np.tanh(c)
    return (multiplied(h, "weight_hr_l0") if desc.proj_size else h), c
