"""Chains of calls of one step, which add up one gradient of all parameters, whose memory is used again."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from messages import says
from tolerances import assert_gradient_close, assert_same_bits

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import rnnkit.torch  # noqa: E402
from rnnkit.cells import RegularizedGRU  # noqa: E402
from rnnkit.torch import small  # noqa: E402

N, F, H = 3, 4, 6


def module(kind="GRU"):
    torch.manual_seed(0)
    return getattr(rnnkit.torch, kind)(F, H)


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


def test_a_chain_adds_to_one_gradient(monkeypatch):
    own, steps, made = module(), drawn(6, N, F), []
    new = small.new_gradient

    def noted(found):
        made.append(new(found))
        return made[-1]

    monkeypatch.setattr(small, "new_gradient", noted)
    chained(own, steps).backward()
    assert len(made) == 2, "that of the first call, and that of the others"


def separately(own, steps):
    """The gradients of a chain's loss by the parameters, as those of each call, added up in float64."""
    state, states = None, [None]
    with torch.no_grad():
        for step in steps:
            _, state = own(step[None], state)
            states.append(state)
    totals, dstate = [torch.zeros_like(one, dtype=torch.float64) for one in own.parameters()], None
    for step, state in zip(reversed(steps), reversed(states[:-1]), strict=True):
        given = None if state is None else tuple(one.requires_grad_() for one in state)
        output, after = own(step[None], given)
        loss = output.square().sum()
        if dstate is not None:
            loss = loss + sum((one * dstate_one).sum() for one, dstate_one in zip(after, dstate, strict=True))
        found = torch.autograd.grad(loss, [*own.parameters(), *(given or ())])
        for total, one in zip(totals, found, strict=False):
            total += one
        dstate = found[len(totals) :]
    return totals


def assert_gradients(found, expected):
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_gradient_close(f"parameter {number}", one.numpy(), other.numpy(), "float32")


LARGE = 128  # of an LSTM of this size the calls of one sequence are gathered


def large(inputs=F):
    torch.manual_seed(0)
    own = rnnkit.torch.LSTM(inputs, LARGE)
    own(torch.ones(1, 1, inputs))
    return own


@pytest.mark.parametrize("count", [1, 2, 33, 70])
def test_gathered_calls(count):
    own, steps = large(), drawn(count, 1, F)
    assert_gradients(torch.autograd.grad(chained(own, steps), list(own.parameters())), separately(own, steps))
    (size,) = own._rnnkit_cache.flat.sizes.values()
    chained(own, steps).backward()
    assert len(size.gathered) == (count > 2), "its memory is used again"


def test_gathered_calls_of_other_sizes_and_modules_in_one_pass():
    one, other, steps = large(), large(inputs=2), drawn(5, 4, F)
    parameters = [*one.parameters(), *other.parameters()]
    loss = chained(one, steps[:, :1]) + chained(one, steps[:, 1:]) + chained(other, steps[:, :1, :2])
    both = separately(one, steps[:, :1]), separately(one, steps[:, 1:])
    expected = [first + second for first, second in zip(*both, strict=True)]
    expected += separately(other, steps[:, :1, :2])
    assert_gradients(torch.autograd.grad(loss, parameters), expected)


def test_passes_through_a_graph_again_and_through_parts_of_it():
    own, steps = large(), drawn(40, 1, F).requires_grad_()
    parameters, loss = list(own.parameters()), chained(own, steps)
    expected = torch.autograd.grad(loss, parameters, retain_graph=True)
    (dx,) = torch.autograd.grad(loss, [steps], retain_graph=True)  # no parameter's: autograd drops what it is given
    assert_same(torch.autograd.grad(loss, parameters, retain_graph=True), expected)
    *again, both = torch.autograd.grad(loss, [*parameters, steps])
    assert_same(again, expected)
    assert_same([both], [dx])


def test_a_pass_that_ends_in_an_error_leaves_nothing():
    own, steps = large(), drawn(40, 1, F)
    expected = torch.autograd.grad(chained(own, steps), list(own.parameters()))
    kept = own._rnnkit_cache.flat.chains[0].sums._sums
    for _ in range(3):
        state, total = (torch.zeros(1, 1, LARGE, requires_grad=True), torch.zeros(1, 1, LARGE)), 0
        state[0].register_hook(lambda _: 1 / 0)
        for step in steps:
            output, state = own(step[None], state)
            total = total + output.square().sum()
        with pytest.raises(ZeroDivisionError):
            total.backward()
    assert len(kept) <= 1
    assert_same(torch.autograd.grad(chained(own, steps), list(own.parameters())), expected)
    assert not kept


def test_passes_at_once():
    own = large()
    chains = [drawn(40, 1, F) * (1 + number) for number in range(4)]
    expected = [torch.autograd.grad(chained(own, steps), list(own.parameters())) for steps in chains]
    with ThreadPoolExecutor(len(chains)) as pool:
        for _ in range(5):
            found = pool.map(lambda steps: torch.autograd.grad(chained(own, steps), list(own.parameters())), chains)
            for one, other in zip(found, expected, strict=True):
                assert_same(one, other)


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
    with pytest.raises(RuntimeError, match=says("backward: order", 1, 2)):
        found.sum().backward()


@torch.inference_mode()
@torch.enable_grad()
def in_inference_with_grad_mode(own, *given):
    return own(*given)


CONTEXTS = {
    "no_grad": lambda own, *given: torch.no_grad()(own)(*given), "inference": in_inference_with_grad_mode,
    "inference without grad mode": lambda own, *given: torch.inference_mode()(own)(*given),
}  # fmt: skip


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("draws", ["dropout", "noise", "nothing"])
def test_a_chain_after_a_step_without_a_gradient(context, draws):
    """Its hx may require one. Dropout and noise are drawn in such a step, too."""
    made = {
        "dropout": lambda: rnnkit.torch.GRU(F, H, 2, dropout=0.5), "nothing": lambda: rnnkit.torch.GRU(F, H, 2),
        "noise": lambda: rnnkit.torch.Recurrent(RegularizedGRU(zoneout=0.1), F, H, 2),
    }  # fmt: skip
    found = []
    for called in (False, True):
        torch.manual_seed(0)
        own, steps = made[draws](), drawn(3, N, F)
        state = torch.zeros(2, N, H, requires_grad=True)
        if called:
            output, _ = CONTEXTS[context](own, steps[:1], state)
            assert not output.requires_grad
        torch.manual_seed(1)
        for step in steps:
            _, state = own(step[None], state)
        found.append(torch.autograd.grad(state.sum(), list(own.parameters())))
    assert_same(*found)
