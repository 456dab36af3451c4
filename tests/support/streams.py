"""Plans and inputs for tests of streams."""

import numpy as np

import rnnkit


def plan_of(mode="lstm", input_size=3, hidden_size=5, num_layers=2, **options):
    desc = rnnkit.RNNDescriptor(mode, input_size, hidden_size, num_layers, **options)
    return rnnkit.prepare(desc, rnnkit.init_weights(desc, seed=0))


def drawn(desc, *shape, seed=0):
    return np.random.default_rng(seed).standard_normal((*shape, desc.input_size)).astype(desc.dtype)
