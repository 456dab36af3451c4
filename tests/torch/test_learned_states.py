"""Initial states that are parameters of a module: PyTorch's own module with the same states given is the reference."""

import copy
import pickle

import pytest
import torch
from messages import raises
from torch import nn
from torch.testing import assert_close
from torch_tensors import assert_equal, flat

import rnnkit
import rnnkit.torch
from rnnkit.cells import SLSTM
from rnnkit.interop import from_torch, to_torch

T, N, F, H = 6, 4, 3, 5
KINDS = {
    "RNN": (rnnkit.torch.RNN, {}),
    "GRU": (rnnkit.torch.GRU, {"num_layers": 2, "bidirectional": True}),
    "LSTM": (rnnkit.torch.LSTM, {"num_layers": 2, "bidirectional": True}),
    "batch first": (rnnkit.torch.LSTM, {"batch_first": True}),
    "projection": (rnnkit.torch.LSTM, {"proj_size": 2}),
    "Recurrent": (lambda *sizes, **options: rnnkit.torch.Recurrent("lstm", *sizes, **options), {"num_layers": 2}),
}


def module(kind):
    torch.manual_seed(0)
    make, options = KINDS[kind]
    own = make(F, H, learned_initial_state=True, dtype=torch.float64, **options)
    assert not own.h0_l0.any()
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            if name.startswith(("h0", "c0")):
                parameter.normal_()
    return own


def states_of(own, names):
    """The module's states as PyTorch's modules take them, with a gradient."""
    ends = [f"_l{layer}{end}" for layer in range(own.num_layers) for end in ("", "_reverse")[: 1 + own.bidirectional]]
    stacked = [torch.stack([getattr(own, f"{name}0{end}") for end in ends]) for name in names]
    found = tuple(one[:, None].repeat(1, N, 1) for one in stacked)
    return found if len(found) > 1 else found[0]


def gradients(output, states, own, x):
    loss = output.cos().sum() + sum(((1 + i) * one.sin()).sum() for i, one in enumerate(flat(states)))
    return torch.autograd.grad(loss, [x, *own.parameters()])


@pytest.mark.parametrize("kind", KINDS)
def test_module_computes_what_pytorch_does_from_its_states(kind):
    own = module(kind)
    shape = (N, T, F) if own.batch_first else (T, N, F)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    like = "LSTM" if kind == "Recurrent" else type(own).__name__
    names = ("num_layers", "batch_first", "bidirectional") + ("proj_size",) * (like == "LSTM")
    plain = getattr(nn, like)(F, H, **{name: getattr(own, name) for name in names}, dtype=torch.float64)
    shared = {name: getattr(own, name) for name, _ in plain.named_parameters()}
    states = states_of(own, "hc" if like == "LSTM" else "h")
    expected = torch.func.functional_call(plain, shared, (x, states))
    found = own(x)
    assert_close(flat(found), flat(expected))
    assert_close(gradients(*found, own, x), gradients(*expected, own, x))
    with torch.no_grad():
        assert_equal(own(x), found)


@pytest.mark.parametrize("kind", ["GRU", "batch first"])
def test_resets_are_to_them(kind):
    own = module(kind)
    x = torch.randn((N, T, F) if own.batch_first else (T, N, F), dtype=torch.float64, requires_grad=True)
    resets = torch.zeros(x.shape[:2])
    (resets[:, 2] if own.batch_first else resets[2])[:] = 1
    late = x[:, 2:] if own.batch_first else x[2:]
    found, states = own(x, resets=resets)
    expected, _ = own(late)
    if not own.bidirectional:
        assert torch.equal(found[:, 2:] if own.batch_first else found[2:], expected)
    torch.compiler.reset()
    compiled = torch.compile(own, backend="aot_eager")(x, resets=resets)
    assert_equal(compiled, (found, states))
    assert_equal(gradients(*compiled, own, x), gradients(found, states, own, x))
    exported = torch.export.export(own, (x.detach(),)).module()
    assert_equal(exported(x.detach()), own(x.detach()))


def test_copies_and_files_have_them():
    own, x = module("LSTM"), torch.randn(T, N, F, dtype=torch.float64)
    expected = own(x)
    fresh = rnnkit.torch.LSTM(F, H, 2, bidirectional=True, learned_initial_state=True, dtype=torch.float64)
    fresh.load_state_dict(own.state_dict())
    net = from_torch(own)
    assert net.desc.learned_initial_state and torch.equal(torch.from_numpy(net.infer(x.numpy()).y), expected[0])
    written = rnnkit.torch.LSTM(F, H, 2, bidirectional=True, learned_initial_state=True, dtype=torch.float64)
    to_torch(net, module=written)
    for one in (fresh, written, copy.deepcopy(own), copy.copy(own), pickle.loads(pickle.dumps(own))):
        assert_equal(one(x), expected)
    recurrent = rnnkit.torch.Recurrent(SLSTM, F, H, learned_initial_state=True)
    again = rnnkit.torch.Recurrent.from_network(recurrent.network())
    assert again.learned_initial_state and repr(again).endswith("learned_initial_state=True)")
    own.reset_parameters()
    assert not own.h0_l0.any() and not own.c0_l1_reverse.any() and own.weight_hh_l0.all()


def test_what_cannot_be_is_refused():
    own = module("LSTM")
    model = nn.Sequential(rnnkit.torch.GRU(F, H), own)
    with raises(ValueError, "restore: learned_initial_state | False | '1' | LSTM | True"):
        rnnkit.torch.restore(model)
    assert type(model[0]) is rnnkit.torch.GRU
    with raises(TypeError, "LSTM: learned_initial_state | bool | int"):
        rnnkit.torch.LSTM(F, H, learned_initial_state=1)
    with raises(TypeError, "RNNDescriptor: learned_initial_state | bool | int"):
        rnnkit.torch.Recurrent(SLSTM, F, H, learned_initial_state=1)
    with raises(ValueError, "to_torch: module | h0_l0"):
        to_torch(from_torch(own), module=nn.LSTM(F, H, 2, bidirectional=True, dtype=torch.float64))
