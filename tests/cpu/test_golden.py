"""NVIDIA's published checksums of the cuDNN RNN sample (cudnn_samples_v8, RNN_v8.0/golden_1.txt to golden_4.txt).

The sample runs T=20, L=2, I=H=512, N=64 with two biases and without dropout. Each gate's matrix is filled with
1/(rows*columns), every bias, x, hx, cx, dy, dhy and dcy with 1; the sums of the results are published, to be met within
a relative 1e-3. All units are equal here, so this says nothing of layout and gate order; the other tests do.
"""

import numpy as np
import pytest
from combinations import nightly
from tolerances import GOLDEN

import rnnkit

SEQ_LEN, NUM_LAYERS, SIZE, BATCH_SIZE = 20, 2, 512, 64

SUMS = {
    "rnn_relu": dict(y=1.315793e6, hy=1.315212e5, dx=6.676003e1, dhx=6.425050e1, dw=1.453750e9),
    "rnn_tanh": dict(y=6.319591e5, hy=6.319605e4, dx=4.501830e0, dhx=4.489543e0, dw=5.012598e7),
    "lstm": dict(
        y=5.749536e5, hy=5.774818e4, cy=4.365091e5, dx=3.842206e2, dhx=1.182562e1, dcx=9.323785e3, dw=4.313461e8
    ),
    "gru": dict(y=6.358978e5, hy=6.281680e4, dx=6.296622e0, dhx=2.289960e5, dw=5.397419e7),
}


@pytest.mark.parametrize("mode", [nightly("rnn_relu"), "rnn_tanh", "lstm", "gru"])
def test_engine_meets_the_sums_of_the_cudnn_sample(mode):
    desc = rnnkit.RNNDescriptor(mode, SIZE, SIZE, NUM_LAYERS)
    w = np.empty(rnnkit.num_weights(desc), desc.dtype)
    for name, view in rnnkit.weight_views(desc, w).items():
        view[:] = 1 if name.startswith("bias") else 1 / SIZE**2
    ones, state = (np.ones((steps, BATCH_SIZE, SIZE), np.float32) for steps in (SEQ_LEN, NUM_LAYERS))
    cell = state if mode == "lstm" else None
    outputs = rnnkit.forward(desc, w, ones, state, cell)
    gradients = rnnkit.backward(desc, w, outputs.workspace, ones, state, cell)
    found = {**outputs._asdict(), **gradients._asdict()}
    for name, expected in SUMS[mode].items():
        total = found[name].sum(dtype=np.float64)
        assert abs(total - expected) <= GOLDEN * expected, f"sum of {name} is {total:.6e}, published: {expected:.6e}"
