"""Modules in small calls, and what the tests of those have in common."""

import pytest
import torch
from tolerances import assert_same_bits

import rnnkit.torch
from rnnkit.cpu import prepared, route

T, N, F, H = 5, 3, 4, 6


@pytest.fixture(name="kept", params=["copied", "held"])
def ways_to_keep(request, monkeypatch):
    """How a call keeps what backward needs: as a copy of its arrays, or these, which no other call has meanwhile."""
    if request.param == "held":
        monkeypatch.setattr(route, "_COPIED_BYTES", 0)
    return request.param


@pytest.fixture(name="made")
def calls_made(monkeypatch):
    """The calls that are laid out from here on."""
    found = []

    class Noted(prepared.PreparedCall):
        def __init__(self, *size):
            super().__init__(*size)
            found.append(self)

    monkeypatch.setattr(prepared, "PreparedCall", Noted)
    return found


def module(kind="GRU", size=F, **options):
    torch.manual_seed(0)
    return getattr(rnnkit.torch, kind)(size, H, **options)


def drawn(*shape, dtype=None, gradient=False):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype or torch.float32).requires_grad_(gradient)


def trained(own, *inputs, wanted=(), loss=lambda output, states: output.square().sum() + sum(map(torch.sum, states))):
    """Outputs, then the gradients of a loss of all of them by what is wanted and the parameters."""
    output, states = own(*inputs)
    states = states if isinstance(states, tuple) else (states,)
    return (output, *states, *torch.autograd.grad(loss(output, states), (*wanted, *own.parameters())))


def assert_same(found, expected):
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.shape == other.shape
        assert_same_bits(f"tensor {number}", one.detach().numpy(), other.detach().numpy())


def both_ways(monkeypatch, made, compute):
    """What is computed in small calls, and the long way."""
    found = compute()
    assert made
    with monkeypatch.context() as patch:
        patch.setattr(prepared, "is_prepared", lambda *size: False)
        count, expected = len(made), compute()
    assert len(made) == count
    return found, expected
