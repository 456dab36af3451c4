"""The same bits on every CPU with fused multiply-add: digests of results, in digests.json, hold wherever this runs.

`python tests/cpu/test_digests.py > tests/cpu/digests.json` prints the table anew. That is legitimate only for a commit
that means to change bits: another order of summation, another activation, another generator of dropout, or another
network here. It says so in the CHANGELOG, and another kind of CPU has confirmed the new table. A CPU, an operating
system or a version of NumPy or Numba that alone disagrees has found a defect, and the table stays.
"""

import hashlib
import json
import sys
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
from combinations import nightly
from problems import Problem

import rnnkit
from rnnkit.cells import LayerNormGRU, LayerNormLSTM, VariationalGRU
from rnnkit.language_model import corpus
from rnnkit.language_model.model import TextModel
from rnnkit.language_model.settings import Settings
from rnnkit.language_model.training import Run, optimizer_of
from rnnkit.training import SGD, clip_gradient_norm, dense, dense_backward, sigmoid_cross_entropy, squared_error
from rnnkit_kernels.machine.registers import HAS_FMA

TABLE = Path(__file__).with_name("digests.json")


class Exact(Problem):
    """A problem whose values are the same on every machine and with every NumPy.

    They are integers as the bit generator gives them, times a power of two: no distribution, no libm.
    """

    def draw(self, stream, shape):
        """Uniform in [-1, 1), with all bits that the dtype has."""
        bits = np.finfo(self.dtype).nmant + 1
        raw = np.random.Philox(key=[self.seed, stream]).random_raw(int(np.prod(shape)))
        integers = (raw >> np.uint64(64 - bits)).astype(np.int64) - 2 ** (bits - 1)
        return (integers * 2.0 ** (1 - bits)).astype(self.dtype).reshape(shape)

    @cached_property
    def w(self):
        """Scaled by about 1/sqrt(H)."""
        scale = 2.0 ** -(self.hidden_size.bit_length() // 2)
        return self.draw(0, (rnnkit.num_weights(self.desc),)) * np.dtype(self.dtype).type(scale)

    @cached_property
    def cx(self):
        """None for cells that no mode names, as in the table."""
        return None if self.is_own else super().cx

    @cached_property
    def dcy(self):
        return None if self.is_own else super().dcy


# Sizes around the lanes of a vector register, which differ from CPU to CPU. They share few kinds of kernel, since each
# CPU compiles all of them: cells in either dtype with two layers or directions, and one layer alone.
TWO_BY_TWO = dict(num_layers=2, bidirectional=True, seq_len=7, batch_size=5, lengths=(4, 0, 7, 1, 6))
PROJECTED = dict(mode="lstm", proj_size=15, cell_clip=(-0.25, 0.125), hidden_size=33, input_size=9)
BEFORE, BFLOAT16 = dict(mode="gru", reset_after=False), dict(precision="bfloat16")
NETWORKS = {
    "tanh-h1": dict(mode="rnn_tanh", hidden_size=1, input_size=2, num_layers=2, batch_size=40, dtype="float32"),
    "tanh-two-by-two-float64": dict(mode="rnn_tanh", hidden_size=17, **TWO_BY_TWO),
    "relu-two-by-two": dict(mode="rnn_relu", hidden_size=33, **TWO_BY_TWO, dtype="float32"),
    "relu-h1-float64": dict(mode="rnn_relu", hidden_size=1, bidirectional=True, batch_size=40),
    "lstm-two-by-two": dict(mode="lstm", hidden_size=17, **TWO_BY_TWO, dtype="float32"),
    "lstm-float64": dict(mode="lstm", hidden_size=15, input_size=1, num_layers=3),
    "lstm-projected-clipped": dict(**PROJECTED, **TWO_BY_TWO, dtype="float32"),
    "lstm-projected-clipped-float64": dict(**PROJECTED, num_layers=2),
    "gru-two-by-two-float64": dict(mode="gru", hidden_size=15, **TWO_BY_TWO),
    "gru-before-two-by-two": dict(**BEFORE, hidden_size=65, **TWO_BY_TWO, dtype="float32"),
    "gru-before-float64": dict(**BEFORE, hidden_size=17, bidirectional=True, batch_size=9),
    "gru-dropout": dict(mode="gru", hidden_size=65, num_layers=3, dropout=0.25, seed=2, dtype="float32"),
    # Means of rows of one, two and three panels, and what is drawn of each kind.
    "layer-norm-lstm": dict(mode=LayerNormLSTM(0.25, 0.5, 0.25, 0.125), hidden_size=33, **TWO_BY_TWO, dtype="float32"),
    "layer-norm-gru-float64": dict(mode=LayerNormGRU(), hidden_size=80, bidirectional=True, batch_size=9),
    "variational-gru": dict(mode=VariationalGRU(0.5), hidden_size=17, **TWO_BY_TWO, dtype="float32"),
    # A product of 1100 terms is done in several blocks of k, here of inputs and of states.
    "tanh-deep": dict(mode="rnn_tanh", hidden_size=1100, input_size=1100, bidirectional=True, dtype="float32"),
    # A sequence of 1350 rows is done in several chunks, and the weights' gradient in several blocks of rows.
    "lstm-long": dict(mode="lstm", hidden_size=65, input_size=15, seq_len=150, batch_size=9, dtype="float32"),
    # Products of bfloat16: with few rows and many, and with gradients that are far apart in size.
    "lstm-two-by-two-bfloat16": dict(mode="lstm", hidden_size=65, **TWO_BY_TWO, dtype="float32", **BFLOAT16),
    "lstm-long-bfloat16": dict(
        mode="lstm", hidden_size=65, input_size=15, seq_len=150, batch_size=9, dtype="float32", **BFLOAT16
    ),
}
LAYER_NORM = "language-model-layer-norm"
# Their kernels are not among those of the default part (`problems.FLOAT32`).
NIGHTLY = "relu-two-by-two", "gru-before-two-by-two", "layer-norm-gru-float64", "variational-gru", LAYER_NORM


def results(name):
    """Every array of a training step, by its name."""
    fields = NETWORKS[name]
    options = {key: fields[key] for key in fields.keys() & BFLOAT16}
    problem = Exact(**{key: value for key, value in fields.items() if key not in options})
    forward = problem.forward(**options)
    backward = problem.backward(forward.workspace)
    arrays = {**forward._asdict(), **backward._asdict()}
    return {key: array for key, array in arrays.items() if isinstance(array, np.ndarray)}


def trained(name):
    """What a language model's training ends with, after a few steps that clip, drop and decay."""
    settings = Settings(**TRAININGS[name], steps=3, batch=5, seq_len=7, weight_decay=0.25, clip=0.5, seed=3)
    text = np.random.Philox(key=7).random_raw(40).tobytes() * 3
    model = TextModel.random(settings.desc, settings.seed, corpus.alphabet(text))
    run = Run(model, optimizer_of(model, settings), text, settings)
    bits = [run.advance().bits for _ in range(3)]
    return {"parameters": model.parameters.flat, "bits": np.array(bits), **run.optimizer.state}


def fitted(name):
    """What a readout ends with after a few steps of SGD for other losses."""
    exact = Exact(mode="rnn_tanh", hidden_size=1, seed=5, dtype=TRAININGS[name])
    w, x, targets = (exact.draw(stream, shape) for stream, shape in enumerate([(33 * 18,), (40, 17), (40, 33)]))
    optimizer, found = SGD(w, momentum=0.75, nesterov=True), []
    for loss in (squared_error, sigmoid_cross_entropy) * 2:
        given = targets if loss is squared_error else targets > 0
        value, gradient, losses = loss(dense(w, x, 33), given)
        dx, dw = dense_backward(w, x, gradient)
        norm = clip_gradient_norm(dw, 0.125)
        optimizer.step(dw, 0.5)
        found += [value, norm, *losses.ravel(), *dx.ravel()]
    return {"w": w, "found": np.array(found)}


TRAININGS = {
    "language-model": dict(hidden=33, embedding=9, layers=2, dropout=0.25),
    LAYER_NORM: dict(mode="gru", hidden=17, embedding=15, layer_norm=True, zoneout=0.25),
    "readout-float32": "float32",
    "readout-float64": "float64",
}


def digests(name):
    found = (results if name in NETWORKS else fitted if name.startswith("readout") else trained)(name)
    return {key: hashlib.sha256(array.tobytes()).hexdigest() for key, array in found.items()}


NAMES = [*NETWORKS, *TRAININGS]


@pytest.mark.xfail(not HAS_FMA, reason="without fused multiply-add every product is rounded, which gives other bits")
@pytest.mark.parametrize("name", [nightly(name) if name in NIGHTLY else name for name in NAMES])
def test_every_cpu_gives_the_same_bits(name):
    found, expected = digests(name), json.loads(TABLE.read_text())[name]
    assert found.keys() == expected.keys()
    different = [key for key in expected if found[key] != expected[key]]
    assert not different, f"{name}: {', '.join(different)} have other bits here than in {TABLE.name}"


if __name__ == "__main__":
    json.dump({name: digests(name) for name in NAMES}, sys.stdout, indent=1)
    sys.stdout.write("\n")
