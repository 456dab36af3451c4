"""Small language models, and what one makes of bytes when it is written out step by step."""

import itertools
import math

import numpy as np

import rnnkit
from rnnkit.language_model.model import ALL_BYTES, TextModel


def small_model(mode="lstm", dtype="float64", num_layers=2, seed=0, alphabet=ALL_BYTES, dropout=0.0):
    desc = rnnkit.RNNDescriptor(mode, 3, 4, num_layers, dropout=dropout, dtype=dtype)
    return TextModel.random(desc, seed, np.asarray(alphabet, np.uint8))


def bytes_of(seed, shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def naive_nats(model, data):
    """-ln p of every byte of data but the first, one step at a time and with the softmax written out."""
    letters = list(model.alphabet)
    classes = [letters.index(byte) if byte in letters else len(letters) for byte in data]
    state, nats = (None, None), []
    for own, following in itertools.pairwise(classes):
        x = model.parameters.embedding[[[own]]]
        y, *state = rnnkit.infer(model.desc, model.parameters.network, x, *state)
        scores = model.parameters.output_weight @ y[0, 0] + model.parameters.output_bias
        nats.append(math.log(sum(math.exp(score) for score in scores)) - scores[following])
        if following == len(letters):
            nats[-1] += math.log(256 - len(letters))
    return nats


def fixed_model(shares):
    """A model that gives byte b the probability shares[b], whatever came before."""
    model = small_model()
    model.parameters.flat[:] = 0
    model.parameters.output_bias[:-1] = np.log(shares)
    model.parameters.output_bias[-1] = -np.inf
    return model
