"""Modules of bfloat16 and torch.autocast, whose bits are in `test_bits`: products of rounded numbers, by the engine."""

import copy

import pytest
import torch
from combinations import nightly
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import rnnkit.torch
from rnnkit.torch import accelerate

T, N, F, H = 7, 5, 9, 17
MODULES = {
    "LSTM": lambda: rnnkit.torch.LSTM(F, H, num_layers=2),
    "projected": lambda: rnnkit.torch.LSTM(F, H, proj_size=3, bidirectional=True),
    "GRU": lambda: rnnkit.torch.GRU(F, H, bidirectional=True),
}


def module(kind):
    torch.manual_seed(0)
    return MODULES[kind]()


def drawn(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(T, N, F).to(dtype).requires_grad_()


def trained(own, x, **options):
    """The output, and the gradients of the input and the parameters."""
    own.zero_grad()
    y, _ = own(x, **options)
    y.float().square().sum().backward()
    return y.detach(), x.grad, *(one.grad for one in own.parameters())


@pytest.mark.parametrize("kind", ["LSTM", nightly("projected"), "GRU"])
def test_module_of_bfloat16_is_the_network_of_its_rounded_weights(kind):
    own = module(kind).bfloat16()
    found = trained(own, drawn(torch.bfloat16))
    assert all(one.dtype is torch.bfloat16 for one in found)
    wide = copy.deepcopy(own).float()
    with torch.autocast("cpu", torch.bfloat16):
        y, *gradients = trained(wide, drawn(torch.bfloat16).detach().float().requires_grad_())
    assert torch.equal(found[0], y.bfloat16())
    for one, other in zip(found[1:], gradients, strict=True):  # of a loss of rounded outputs
        torch.testing.assert_close(one.float(), other, rtol=0, atol=0.02 * other.abs().max().item())


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_accelerated_module_of_bfloat16_is_near_pytorchs(kind):
    torch.manual_seed(0)
    plain = getattr(nn, kind)(F, H).bfloat16()
    own = copy.deepcopy(plain)
    assert accelerate(own).changed == ("",)
    found, expected = (trained(module, drawn(torch.bfloat16)) for module in (own, plain))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=0, atol=0.05 * other.abs().max().float().item())


def test_lengths_masks_and_packed_sequences_are_rounded_too():
    own, lengths = module("GRU"), [7, 3, 5, 1, 2]
    x = drawn().detach()
    mask = torch.arange(T)[:, None] < torch.tensor(lengths)
    packed = pack_sequence([x[:length, n] for n, length in enumerate(lengths)], enforce_sorted=False)
    with torch.autocast("cpu", torch.bfloat16):
        expected = own(x, lengths=lengths)[1]
        assert torch.equal(own(packed)[1], expected) and torch.equal(own(x, mask=mask)[1], expected)
    assert not torch.equal(own(x, lengths=lengths)[1], expected)


def test_float64_float16_and_cells_stay_as_they_are():
    wide, (own, cell) = module("LSTM").double(), (module("LSTM"), rnnkit.torch.LSTMCell(F, H))
    x = drawn().detach()
    rounded = x[0].bfloat16()
    expected = wide(x.double())[0], own(x)[0], cell(x[0])[0], cell(rounded.float())[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(wide(x)[0], expected[0])
        assert torch.equal(cell(x[0])[0], expected[2]) and torch.equal(cell(rounded)[0], expected[3])
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(own(x)[0], expected[1])


@pytest.mark.parametrize("half", [False, True])
def test_compiled_module_has_the_same_bits(half):
    own = module("LSTM").bfloat16() if half else module("LSTM")
    x = drawn(torch.bfloat16 if half else torch.float32)
    compiled = torch.compile(own, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16), torch._dynamo.config.patch(allow_rnn=True):
        expected = [one.clone() for one in trained(own, x)]
        x.grad = None
        for one, other in zip(trained(compiled, x), expected, strict=True):
            assert torch.equal(one, other)
