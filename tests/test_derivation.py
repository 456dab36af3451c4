"""Gradients that are derived from forward equations: random cells, interpreted and compiled, against differences; those
that are shipped against what a person writes; what is kept; what is refused."""

import numpy as np
import pytest
from cell_reference import differences, forward
from combinations import nightly
from random_cells import cell_of

import rnnkit


@pytest.mark.parametrize("first", [0, nightly(100), nightly(200)])
def test_random_cells_on_single_numbers(first):
    for seed in range(first, first + 100):
        kind = cell_of(seed)
        for flag in (False, True):
            rnnkit.check_cell(kind(flag=flag))


def problem(seed):
    """A network of a random cell, and what it is called with."""
    rng = np.random.default_rng(seed)
    layers, bidirectional = int(rng.integers(1, 4)), bool(rng.integers(2))
    seq_len, batch_size, input_size, hidden_size = (int(rng.integers(1, stop)) for stop in (6, 4, 4, 20))
    kind = cell_of(seed, smooth=True, most_gates=5)
    bias = rng.choice(["both", "input", "recurrent", "none"])
    if bias == "recurrent" and not kind.declaration.recurrent_gates:
        bias = "none"
    net = rnnkit.Network(
        kind(flag=bool(rng.integers(2))), input_size, hidden_size, layers, bidirectional, bias=str(bias),
        dtype="float64", seed=seed,
    )
    lengths = rng.integers(0, seq_len + 1, batch_size) if rng.integers(2) else None
    resets = rng.integers(0, 4, (seq_len, batch_size)) == 0 if rng.integers(2) else None
    pseudo_layers = net.desc.num_pseudo_layers
    x = rng.normal(size=(seq_len, batch_size, input_size))
    hx = rng.normal(size=(pseudo_layers, batch_size, hidden_size))
    states = [rng.normal(size=hx.shape) for _ in net.desc.states]
    dy = rng.normal(size=(seq_len, batch_size, net.desc.num_directions * hidden_size))
    cotangents = dy, rng.normal(size=hx.shape), [rng.normal(size=hx.shape) for _ in states]
    shapes = (seq_len, batch_size, hidden_size), (seq_len, batch_size, 1), (batch_size, hidden_size)
    names = [one.name for one in kind.declaration.inputs]
    inputs = {name: rng.normal(size=shapes[rng.integers(3)]) for name in names} or None
    return net, x, hx, states, cotangents, {"lengths": lengths, "resets": resets, "inputs": inputs}, rng


def argument(states):
    """States, or gradients by them, as a network takes them: None, an array, or a tuple of several."""
    return None if not states else states[0] if len(states) == 1 else tuple(states)


def listed(states):
    return [] if states is None else list(states) if isinstance(states, tuple) else [states]


@pytest.mark.parametrize("seed", [*range(4), *(nightly(seed) for seed in range(4, 60))])
def test_random_cells_in_networks(seed):
    net, x, hx, states, cotangents, options, rng = problem(seed)
    found = net.forward(x, hx, argument(states), **options)
    y, hy, final = forward(net, x, hx, states, **options)
    for own, wanted in zip([found.y, found.hy, *listed(found.cy)], [y, hy, *final], strict=True):
        np.testing.assert_allclose(own, wanted, rtol=0, atol=1e-12)
    dy, dhy, dstates = cotangents
    back = net.backward(found.workspace, dy, dhy, argument(dstates))
    gradients = {"x": back.dx, "hx": back.dhx} | rnnkit.weight_views(net.desc, back.dw)
    gradients |= back.inputs if options["inputs"] else {}
    gradients |= {f"state{number}": one for number, one in enumerate(listed(back.dcx))}
    for name, (direction, slope, curved) in differences(net, x, hx, states, cotangents, rng, **options).items():
        own = (gradients[name] * direction).sum()
        assert abs(own - slope) <= 1e-7 * (1 + abs(slope)) + 3 * curved, (name, own, slope)
