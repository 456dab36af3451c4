"""Modules are bit-identical to their networks on NumPy arrays, in results and in all gradients."""

import copy
import pickle
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from attentive import Attentive
from combinations import nightly
from own_cells import GivenInputs
from recurrent_modules import CELLS
from several_states import arrays_of, as_given
from tolerances import assert_same_bits
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch_tensors import assert_equal, flat, reloaded

import rnnkit
import rnnkit.torch
from rnnkit.cells import MultiHeadSLSTM, PeepholeLSTM, Scalar, cell, forward, tanh
from rnnkit.interop import from_torch
from rnnkit.torch import Recurrent

T, N, F, H = 6, 4, 3, 8


@cell(gates="a", scalars=[Scalar("rate", 0.25, 0.5)])
class Paced(NamedTuple):
    @forward("h")
    def step(self, a, rate, h_prev):
        return h_prev + rate * (tanh(a) - h_prev)


DEEP = {"num_layers": 2, "bidirectional": True}
MODULES = {
    "RNN": partial(rnnkit.torch.RNN, F, H, nonlinearity="relu", bias=False),
    "GRU": partial(rnnkit.torch.GRU, F, H, 2, batch_first=True),
    "LSTM": partial(rnnkit.torch.LSTM, F, H, **DEEP),
    "projected": partial(rnnkit.torch.LSTM, F, H, proj_size=2),
    "learned GRU": partial(rnnkit.torch.GRU, F, H, **DEEP, batch_first=True, learned_initial_state=True),
    "learned LSTM": partial(rnnkit.torch.LSTM, F, H, proj_size=2, learned_initial_state=True),
    "side inputs": partial(Recurrent, Attentive, F, H, batch_first=True),
    "no W": partial(Recurrent, GivenInputs, 0, H, bidirectional=True),
    "no bias": partial(Recurrent, CELLS["no state"][0], F, H, 2, bias=False, batch_first=True),
    "heads": partial(Recurrent, MultiHeadSLSTM, F, H),
    "a scalar": partial(Recurrent, Paced, F, H),
    "peepholes": partial(Recurrent, PeepholeLSTM, F, H),
}
MODULES |= {name: partial(Recurrent, one, F, H, **DEEP) for name, (one, _) in CELLS.items()}
LATER = "R of a state", "vectors", "no R", "heads", "a scalar"  # each cell is kernels of its own
MARKS = np.random.default_rng(0).random((T, N)) < 0.3
OPTIONS = {
    "nothing": {},
    "large": {},
    "lengths": {"lengths": [6, 0, 4, 1]},
    "packed": {"lengths": [3, 6, 1, 6]},
    "resets": {"resets": MARKS},
    "mask": {"mask": MARKS},
    "autocast": {"precision": "bfloat16"},
}
CASES = [(kind, options) for kind in MODULES for options in OPTIONS if kind != "peepholes" and options != "autocast"]
CASES.remove(("no W", "packed"))  # PyTorch packs nothing without columns
CASES = [nightly(*one) if one[0] in LATER else one for one in CASES] + [nightly("three states", "float32")]
CASES += [("LSTM", "autocast"), ("GRU", "autocast")]
CASES += [nightly(kind, "autocast") for kind in ("RNN", "projected", "peepholes")]


def drawn(own, steps):
    """x, initial states unless the module has its own, and side inputs."""
    torch.manual_seed(1)
    desc, dtype = own._rnnkit_desc(0.0), own._rnnkit_dtype()
    sizes = [] if own.learned_initial_state else [desc.output_size, *(H for _ in desc.states)]
    sides = [one.name for one in desc.cell.declaration.inputs]
    x = torch.randn(steps, N, own.input_size, dtype=dtype)
    hx = [torch.rand(desc.num_pseudo_layers, N, size, dtype=dtype) + 0.5 for size in sizes]
    sides = {name: torch.rand(steps, N, H, dtype=dtype) for name in sides}
    for one in (x, *hx, *sides.values()):
        one.requires_grad_()
    return x, hx, sides


def by_network(own, x, hx, sides, options):
    """Results, states after each step, and gradients of all that is given and of the parameters."""
    net = own.network() if isinstance(own, Recurrent) else from_torch(own)
    h, *others = [one.detach().numpy() for one in hx] or [None]
    inputs = {name: one.detach().numpy() for name, one in sides.items()} or None
    result = net.forward(x.detach().numpy(), h, as_given(others), inputs=inputs, **options)
    places = [divmod(row, net.desc.num_directions) for row in range(net.desc.num_pseudo_layers)]
    names = "h", *net.desc.states
    every = [np.stack([result.workspace.state(name, *place) for place in places], 1) for name in names]
    dhy, *dothers = [np.ones_like(one) for one in (result.hy, *arrays_of(result.cy))]
    back = net.backward(result.workspace, 2 * result.y, dhy, as_given(dothers))
    given = [back.dhx, *arrays_of(back.dcx)] if hx else []
    given += [back.inputs[name] for name in sides] if sides else []
    dw = rnnkit.weight_views(net.desc, back.dw)
    dws = [dw[name] for name, _ in own.named_parameters()]
    return [result.y, result.hy, *arrays_of(result.cy), *every, back.dx, *given, *dws]


def by_module(own, x, hx, sides, options, is_packed=False):
    """The same by the module, time first."""

    def turned(one):
        return one.transpose(0, 1) if own.batch_first else one

    options = {name: one.T if name != "lengths" and own.batch_first else one for name, one in options.items()}
    given, of_sides = turned(x), {name: turned(one) for name, one in sides.items()}
    if is_packed:
        pack = partial(pack_padded_sequence, lengths=options.pop("lengths"), enforce_sorted=False)
        given, *others = (pack(one, batch_first=own.batch_first) for one in (given, *of_sides.values()))
        of_sides = dict(zip(sides, others, strict=True))
    if sides:
        options["inputs"] = of_sides

    def run(**further):
        y, *results = own(given, as_given(hx), **options, **further)
        return (pad_packed_sequence(y, own.batch_first)[0] if is_packed else y), *results

    y, states = run()
    assert y.is_contiguous() or is_packed
    loss = y.square().sum() + sum(one.sum() for one in flat(states))
    leaves = [x, *hx, *sides.values(), *own.parameters()]
    found = torch.autograd.grad(loss, leaves, materialize_grads=True)
    *results, every = run(all_states=True)
    assert_equal(results, (y, states))
    for mode in torch.no_grad, torch.inference_mode:
        with mode():
            assert_equal(run(), (y, states))
    assert not any(one.requires_grad for one in flat(every))
    return [turned(y), *flat(states), *flat(every), *found]


def module(kind, dtype=torch.float64):
    own = MODULES[kind](dtype=dtype)
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.uniform_(-0.5, 0.5)  # initial states, too
    return own


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_modules_are_bit_identical_to_their_networks(kind, options):
    torch.manual_seed(0)
    own = module(kind, torch.float32 if options in ("autocast", "float32") else torch.float64)
    given = drawn(own, 3000 if options == "large" else T)
    expected = by_network(own, *given, OPTIONS.get(options, {}))
    for _ in range(2):  # the second is a plain call
        with torch.autocast("cpu", torch.bfloat16, enabled=options == "autocast"):
            ours = {} if options == "autocast" else OPTIONS.get(options, {})
            found = by_module(own, *given, ours, options == "packed")
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same_bits(f"tensor {number}", one.detach().numpy(), other)


@pytest.mark.parametrize("kind", [nightly(kind) if kind in LATER else kind for kind in MODULES])
def test_copies_and_files_keep_the_module(kind):
    torch.manual_seed(0)
    own, fresh = module(kind), module(kind)
    given = drawn(own, T)
    expected = by_module(own, *given, {})
    fresh.load_state_dict(own.state_dict())
    copies = [copy.copy(own), copy.deepcopy(own), pickle.loads(pickle.dumps(own)), reloaded(own), fresh]
    if isinstance(own, Recurrent):
        copies.append(Recurrent.from_network(own.network(), batch_first=own.batch_first))
    for one in (*copies, own.to(torch.float64)):
        assert repr(one) == repr(own)
        assert_equal(by_module(one, *given, {}), expected)
        assert one._rnnkit_cache.flat is not None or own.learned_initial_state  # the parameters are in one buffer
    with torch.no_grad():
        next(copies[1].parameters()).mul_(2)
    assert_equal(by_module(own, *given, {}), expected)
    with pytest.raises(RuntimeError, match="Missing key"):
        own.load_state_dict({})
