"""Chains of calls of one step: autograd adds up one gradient of all parameters, whose memory is used again."""

import os

import pytest
from tolerances import assert_same_bits

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import rnnkit.torch  # noqa: E402
from rnnkit.torch import small  # noqa: E402

N, F, H = 3, 4, 6


def module(kind="GRU"):
    torch.manual_seed(0)
    own = getattr(rnnkit.torch, kind)(F, H)
    own(torch.ones(1, 1, F))  # which looks at the parameters
    return own


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def assert_same(found, expected):
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_same_bits(f"tensor {number}", one.numpy(), other.numpy())



def chained(own, steps):
    """The outputs of a chain of calls, added up."""
    state, total = None, 0
    for step in steps:
        output, state = own(step[None], state)
        total = total + output.square().sum()
    return total


def test_gradients_that_somebody_keeps_stay():
    """Their memory is not used again, that of others is."""
    own, steps = module(), drawn(4, N, F)
    parameters = list(own.parameters())
    first = torch.autograd.grad(chained(own, steps), parameters)
    expected = [one.clone() for one in first]
    chained(own, 2 * steps).backward()
    assert_same(first, expected)
    again = torch.autograd.grad(chained(own, steps), parameters)
    assert_same(again, expected)
    assert not {one.data_ptr() for one in first} & {one.data_ptr() for one in again}


def test_a_chain_uses_the_memory_of_a_gradient_again(monkeypatch):
    own, steps, addresses = module(), drawn(6, N, F), []
    old = small._new_gradient

    def noted(found):
        array = old(found)
        addresses.append(array.ctypes.data)
        return array

    monkeypatch.setattr(small, "_new_gradient", noted)
    chained(own, steps).backward()
    assert len(addresses) == 6 and len(set(addresses)) == 2, "the first gradient, to which the others are added"


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_a_chain_whose_parameters_are_frozen_and_thawed(kind):
    own, steps = module(kind), drawn(4, N, F)
    chained(own, steps).backward()
    expected = {name: one.grad for name, one in own.named_parameters()}
    own.zero_grad()
    own.bias_hh_l0.requires_grad_(False)
    chained(own, steps).backward()
    assert own.bias_hh_l0.grad is None
    for name, one in own.named_parameters():
        if name != "bias_hh_l0":
            assert_same_bits(name, one.grad.numpy(), expected[name].numpy())
    own.zero_grad()
    own.bias_hh_l0.requires_grad_(True)
    chained(own, steps).backward()
    assert_same_bits("bias_hh_l0", own.bias_hh_l0.grad.numpy(), expected["bias_hh_l0"].numpy())


def test_a_parameter_in_the_place_of_another_has_the_gradient():
    own, steps = module(), drawn(4, N, F)
    chained(own, steps).backward()
    before, expected = own.bias_hh_l0, own.bias_hh_l0.grad.clone()
    own.bias_hh_l0 = nn.Parameter(before.data)  # in the same memory
    chained(own, steps).backward()
    assert_same_bits("the new one's", own.bias_hh_l0.grad.numpy(), expected.numpy())
    assert_same_bits("the old one's", before.grad.numpy(), expected.numpy())


def test_hooks_of_parameters_see_a_chains_gradient_once():
    own, steps, seen = module(), drawn(4, N, F), []
    own.weight_hh_l0.register_hook(lambda grad: seen.append(grad.clone()))
    chained(own, steps).backward()
    assert len(seen) == 1
    assert_same_bits("weight_hh_l0", seen[0].numpy(), own.weight_hh_l0.grad.numpy())


def test_second_derivatives_of_a_chain_are_refused():
    own, steps = module(), drawn(4, N, F)
    (found,) = torch.autograd.grad(chained(own, steps), [own.weight_hh_l0], create_graph=True)
    with pytest.raises(RuntimeError, match="order must be 1"):
        found.sum().backward()
