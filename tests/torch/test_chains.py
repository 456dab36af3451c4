"""Chains of calls of one step, which add up one gradient of all parameters, whose memory is used again."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from small_calls import F, H, N, assert_same, drawn, module
from tolerances import assert_gradient_close
from torch import nn

from rnnkit.cells import RegularizedGRU, RegularizedLSTM
from rnnkit.torch import GRU, LSTM, Recurrent, small

GENERAL = {"all_states": True}  # calls take the general path, where each returns its gradient


def chained(own, steps, **options):
    """The outputs of a chain of calls, added up."""
    state, total = None, 0
    for seed, step in enumerate(steps):
        torch.manual_seed(seed)
        output, state, *_ = own(step[None], state, **options)
        total = total + output.square().sum()
    return total


def chain_gradients(own, steps, **options):
    return torch.autograd.grad(chained(own, steps, **options), list(own.parameters()))


def test_kept_gradients_are_not_overwritten():
    """Their memory is not used again, that of others is."""
    own, steps = module(), drawn(4, N, F)
    first = chain_gradients(own, steps)
    expected = [one.clone() for one in first]
    chained(own, 2 * steps).backward()
    assert_same(first, expected)
    again = chain_gradients(own, steps)
    assert_same(again, expected)
    assert not {one.data_ptr() for one in first} & {one.data_ptr() for one in again}


def test_chain_accumulates_into_one_gradient(monkeypatch):
    own, steps, made = module(), drawn(6, N, F), []
    new = small.new_gradient
    monkeypatch.setattr(small, "new_gradient", lambda flat: made.append(new(flat)) or made[-1])
    chained(own, steps).backward()
    assert len(made) == 2, "that of the first call, and that of the others"


def assert_gradients(found, expected):
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_gradient_close(f"parameter {number}", one.numpy(), other.numpy(), "float32")


LARGE = 128  # of an LSTM of this size the calls of one sequence are gathered


def large(inputs=F, make=LSTM):
    torch.manual_seed(0)
    own = make(inputs, LARGE)
    own(torch.ones(1, 1, inputs))
    return own


NOISY = partial(Recurrent, RegularizedLSTM(recurrent_dropout=0.4, zoneout=0.3))


@pytest.mark.parametrize(
    ("count", "make"), [(1, LSTM), (2, LSTM), (33, LSTM), (70, LSTM), (40, NOISY)], ids=["1", "2", "33", "70", "noise"]
)
def test_gathered_calls_match_separate_calls(count, make):
    """With the noises that each has kept."""
    own, steps = large(make=make), drawn(count, 1, F)
    assert_gradients(chain_gradients(own, steps), chain_gradients(own, steps, **GENERAL))
    (size,) = own._rnnkit_cache.flat.sizes.values()
    chained(own, steps).backward()
    assert len(size.gathered) == (count > 2), "its memory is used again"


def test_gathered_calls_of_several_sizes_and_modules():
    one, other, steps = large(), large(inputs=2), drawn(5, 4, F)

    def gradients(**options):
        loss = chained(one, steps[:, :1], **options) + chained(one, steps[:, 1:], **options)
        loss = loss + chained(other, steps[:, :1, :2], **options)
        return torch.autograd.grad(loss, [*one.parameters(), *other.parameters()])

    assert_gradients(gradients(), gradients(**GENERAL))


def test_repeated_and_partial_passes_are_bit_identical():
    own, steps = large(), drawn(40, 1, F).requires_grad_()
    parameters, loss = list(own.parameters()), chained(own, steps)
    expected = torch.autograd.grad(loss, parameters, retain_graph=True)
    (dx,) = torch.autograd.grad(loss, [steps], retain_graph=True)  # no parameter's: autograd drops what it is given
    assert_same(torch.autograd.grad(loss, parameters, retain_graph=True), expected)
    assert_same(torch.autograd.grad(loss, [*parameters, steps]), [*expected, dx])


def test_failed_backward_pass_releases_its_gradients():
    own, steps = large(), drawn(40, 1, F)
    expected = chain_gradients(own, steps)
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
    assert_same(chain_gradients(own, steps), expected)
    assert not kept


def test_concurrent_backward_passes_are_independent():
    own = large()
    chains = [drawn(40, 1, F) * (1 + number) for number in range(4)]
    expected = [chain_gradients(own, steps) for steps in chains]
    with ThreadPoolExecutor(len(chains)) as pool:
        for _ in range(5):
            found = pool.map(lambda steps: chain_gradients(own, steps), chains)
            for one, other in zip(found, expected, strict=True):
                assert_same(one, other)


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_chain_follows_requires_grad_of_its_parameters(kind):
    own, steps = module(kind), drawn(4, N, F)
    parameters = list(own.parameters())
    *others, last = chain_gradients(own, steps)
    parameters[-1].requires_grad_(False)
    assert_same(torch.autograd.grad(chained(own, steps), parameters[:-1]), others)
    parameters[-1].requires_grad_(True)
    assert_same(torch.autograd.grad(chained(own, steps), parameters), [*others, last])


def test_replaced_parameter_gets_the_gradient():
    own, steps = module(), drawn(4, N, F)
    chained(own, steps).backward()
    before, expected = own.bias_hh_l0, own.bias_hh_l0.grad.clone()
    own.bias_hh_l0 = nn.Parameter(before.data)  # in the same memory
    chained(own, steps).backward()
    assert_same([own.bias_hh_l0.grad, before.grad], [expected, expected])


def test_parameter_hook_sees_the_gradient_of_a_chain_once():
    own, steps, seen = module(), drawn(4, N, F), []
    own.weight_hh_l0.register_hook(lambda grad: seen.append(grad.clone()))
    chained(own, steps).backward()
    assert_same(seen, [own.weight_hh_l0.grad])


@torch.inference_mode()
@torch.enable_grad()
def in_inference_with_grad_mode(own, *given):
    return own(*given)


def without_grad(mode):
    return lambda own, *given: mode()(own)(*given)


CONTEXTS = {"no_grad": without_grad(torch.no_grad), "inference": in_inference_with_grad_mode}
CONTEXTS["inference without grad mode"] = without_grad(torch.inference_mode)
DRAWS = {"dropout": partial(GRU, dropout=0.5), "noise": partial(Recurrent, RegularizedGRU(zoneout=0.1)), "nothing": GRU}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("draws", DRAWS)
def test_step_without_grad_does_not_change_a_chain(context, draws):
    """Its hx may require one. Dropout and noise are drawn in such a step, too."""
    found = []
    for called in (False, True):
        torch.manual_seed(0)
        own, steps = DRAWS[draws](F, H, 2), drawn(3, N, F)
        state = torch.zeros(2, N, H, requires_grad=True)
        if called:
            output, _ = CONTEXTS[context](own, steps[:1], state)
            assert not output.requires_grad
        torch.manual_seed(1)
        for step in steps:
            _, state = own(step[None], state)
        found.append(torch.autograd.grad(state.sum(), list(own.parameters())))
    assert_same(*found)
