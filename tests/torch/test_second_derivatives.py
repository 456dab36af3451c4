"""Second and third derivatives through the modules: by PyTorch's checks, in every mode and with every option."""

import gc
import warnings
import weakref
from functools import partial

import pytest
import torch
from differentiated import CLOSE, EACH, F, H, N, T, drawn, inputs, module, total, weights_of
from messages import raises, says
from several_states import as_given
from torch.func import functional_call, grad, vmap
from torch.nn.utils.rnn import pack_padded_sequence
from torch_tensors import assert_equal, flat

import rnnkit.torch
from rnnkit.cells import AUGRU, RegularizedLSTM
from rnnkit.torch import FallbackWarning, Recurrent

IGNORED = "ignore::rnnkit.torch.FallbackWarning", "ignore:`torch.jit.script` is deprecated"  # when PyTorch imports it
pytestmark = pytest.mark.filterwarnings(*IGNORED)


@EACH
def test_second_derivatives_are_right(kind):
    """Of all results by the input, the states and the parameters, by PyTorch's check."""
    own, x = module(kind), inputs(kind)
    states = flat(own(x))[0 if "Cell" in kind else 1 :]
    states = [drawn(*one.shape) + 2 * (number > 0) for number, one in enumerate(states)]
    leaves = [one.requires_grad_() for one in (x, *states, *own.parameters())]

    def run(x, *tensors):
        hx, named = tensors[: len(states)], zip(weights_of(own), tensors[len(states) :], strict=True)
        return tuple(flat(functional_call(own, dict(named), (x, as_given(hx)))))

    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


OPTIONS = {
    "nothing": {},
    "lengths": dict(lengths=[4, 0, 2]),
    "resets": dict(resets=torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 1, 1]])),
    "mask": dict(mask=torch.tensor([[1, 0, 0], [0, 1, 0], [1, 1, 0], [1, 1, 0]]), lengths=[4, 3, 4]),
}
DRAWING = {
    "dropout": partial(rnnkit.torch.GRU, F, H, 3, dropout=0.4, bidirectional=True),
    "noises": partial(Recurrent, RegularizedLSTM(zoneout=0.3, recurrent_dropout=0.4), F, H, 2, dropout=0.5),
}


@pytest.mark.parametrize("kind", ["LSTM", "learned", "several states", *DRAWING])
@pytest.mark.parametrize("options", OPTIONS)
def test_second_derivatives_with_options_are_right(kind, options):
    """In the calls that autograd records, and in those of torch.func; with the random numbers of forward."""
    torch.manual_seed(0)
    own = DRAWING[kind](dtype=torch.float64) if kind in DRAWING else module(kind)
    x, options = inputs("LSTM").requires_grad_(), OPTIONS[options]
    with torch.no_grad():
        [one.uniform_(-1, 1) for one in own.parameters()]

    def run(x, *_):
        torch.manual_seed(0)
        return tuple(flat(own(x, **options)))

    assert torch.autograd.gradgradcheck(run, (x, *own.parameters()), fast_mode=True)
    loss = lambda x: sum(one.sin().sum() for one in run(x))  # noqa: E731
    (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
    (expected,) = torch.autograd.grad(first.square().sum(), x)
    torch.testing.assert_close(grad(lambda x: grad(loss)(x).square().sum())(x.detach()), expected, **CLOSE)


def test_second_derivatives_of_a_packed_sequence_are_right():
    own, x = module("LSTM"), inputs("LSTM").requires_grad_()
    packed = pack_padded_sequence(x, [2, 4, 1], enforce_sorted=False)
    run = lambda data, *_: own(packed._replace(data=data))[0].data  # noqa: E731
    assert torch.autograd.gradgradcheck(run, (packed.data, *own.parameters()), fast_mode=True)
    both = torch.stack([packed.data, 2 * packed.data])
    torch.testing.assert_close(vmap(run)(both), torch.stack([run(one) for one in both]), **CLOSE)


@pytest.mark.parametrize("kind", DRAWING)
def test_random_numbers_are_those_of_forward_after_a_longer_call(kind):
    """Whose memory has room for more steps."""
    own, x = DRAWING[kind](dtype=torch.float64), inputs("GRU")

    def second():
        torch.manual_seed(0)
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(own(leaf, lengths=[4, 1, 3])[0].sin().sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaf)

    expected = second()
    for steps in (40, 30, 20):
        own(drawn(steps, N, F).requires_grad_(), lengths=[steps, 1, 3])[0].sum().backward()
    assert_equal(second(), expected)


@EACH
def test_second_derivatives_of_no_steps_are_zeros(kind):
    own = module(kind)
    shape = (0, F) if "Cell" in kind else (N, 0, F) if getattr(own, "batch_first", False) else (0, N, F)
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    weight = next(own.parameters())
    first = torch.autograd.grad(flat(own(x))[0].sum(), [x, weight], create_graph=True)
    second = torch.autograd.grad(sum(one.sum() for one in first), [x, weight], allow_unused=True)
    assert second[0].shape == x.shape and (second[1] is None or not second[1].any())


def test_side_inputs_have_second_derivatives():
    own = Recurrent(AUGRU, F, H, dtype=torch.float64)
    x, side = inputs("own cell").requires_grad_(), drawn(T, N, H).sigmoid().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x, side: own(x, inputs={"attention": side})[0], (x, side))


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_second_derivatives_of_a_chain_are_right(kind):
    """Calls of one step that add up the gradient of the parameters themselves."""
    own, steps = getattr(rnnkit.torch, kind)(F, H, dtype=torch.float64), inputs("LSTM").requires_grad_()

    def run(steps, *_):
        state = None
        for step in steps:
            output, state = own(step[None], state)
        return output, *flat(state)

    assert torch.autograd.gradgradcheck(run, (steps, *own.parameters()), fast_mode=True)
    leaves = [own.weight_hh_l0, own.bias_ih_l0]
    loss = sum(one.sin().sum() for one in run(steps))
    rows = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = torch.autograd.grad(loss, leaves, rows, is_grads_batched=True, retain_graph=True)
    own.weight_ih_l0.requires_grad_(False)
    expected = torch.autograd.grad(sum(one.sin().sum() for one in run(steps)), leaves)
    torch.testing.assert_close(list(found), [torch.stack([one, 2 * one]) for one in expected], **CLOSE)


@pytest.mark.parametrize("kind", ["GRU", "learned", "GRUCell"])
def test_third_derivatives_are_right(kind):
    own, x = module(kind), inputs(kind).requires_grad_()

    def second(x):
        (first,) = torch.autograd.grad(total(own, weights_of(own), x), x, create_graph=True)
        return torch.autograd.grad(first.sin().sum(), x, create_graph=True)[0]

    assert torch.autograd.gradcheck(second, x, fast_mode=True)


@pytest.mark.parametrize("kind", ["GRU", "learned"])
def test_first_derivatives_stay_the_engines(kind):
    """With create_graph, and no warning before they are differentiated."""
    own, x = module(kind), inputs(kind).requires_grad_()
    leaves = [x, *own.parameters()]
    loss = lambda: sum(one.sin().sum() for one in flat(own(x)))  # noqa: E731
    expected = torch.autograd.grad(loss(), leaves)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = torch.autograd.grad(loss(), leaves, create_graph=True)
        assert_equal(found, expected)
        with pytest.raises(FallbackWarning, match=says("backward: this call", "second derivatives")):
            found[0].sum().backward()


CHANGES = {
    "initial states": lambda own, hx: [one.zero_() for one in hx],
    "biases": lambda own, hx: own.bias_hh_l0.detach().zero_(),
    "other data": lambda own, hx: setattr(own.bias_ih_l0, "data", own.bias_ih_l0.data + 1),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("options", [{}, {"lengths": [4, 2, 1]}], ids=["prepared", "any"])
def test_what_forward_took_must_not_change_before_second_derivatives(change, options):
    """It may change before a first one."""
    own, x, hx = module("LSTM"), inputs("LSTM").requires_grad_(), (drawn(4, N, H), drawn(4, N, H))
    output, _ = own(x, hx, **options)
    expected = torch.autograd.grad(output.sum(), x, retain_graph=True)
    CHANGES[change](own, hx)
    assert_equal(torch.autograd.grad(output.sum(), x, retain_graph=True), expected)
    with raises(RuntimeError, "backward: input, states and parameters | as they were in forward | changed ones"):
        torch.autograd.grad(output.sum(), x, create_graph=True)


@pytest.mark.parametrize("options", [{}, {"lengths": [4, 2, 1]}], ids=["prepared", "any"])
def test_what_forward_took_is_freed_after_backward(options):
    own, x = module("LSTM"), inputs("LSTM")
    loss = own(x, **options)[0].sum()
    gone = weakref.ref(x)
    del x
    loss.backward(retain_graph=True)
    assert gone() is not None
    loss.backward()
    gc.collect()
    assert gone() is None
