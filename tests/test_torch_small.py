"""Small calls with plain tensors go a way of their own: to the bits of the long one."""

import os

import numpy as np
import pytest
from messages import says
from tolerances import assert_same_bits

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")
from small_calls import F, H, N, T, assert_same, both_ways, calls_made, drawn, module, trained, ways_to_keep  # noqa: E402, F401 - fixtures  # noqa: E402
from torch import nn  # noqa: E402

import rnnkit  # noqa: E402
import rnnkit.cells  # noqa: E402
from rnnkit.cells import RegularizedLSTM  # noqa: E402
from rnnkit.interop import from_torch  # noqa: E402
from rnnkit.torch import Recurrent  # noqa: E402


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("options", [
    {}, {"bias": False}, {"num_layers": 3}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True},
    {"batch_first": True}, {"dtype": torch.float64},
], ids=lambda options: " ".join(options) or "plain")  # fmt: skip
def test_the_bits_of_the_long_way(monkeypatch, made, kind, options, kept):
    dtype = options.get("dtype")
    x = drawn(*((N, T, F) if options.get("batch_first") else (T, N, F)), dtype=dtype, gradient=True)
    found, expected = both_ways(monkeypatch, made, lambda: trained(module(kind, **options), x, wanted=(x,)))
    assert_same(found, expected)
    assert found[0].is_contiguous()


def test_a_projection_and_initial_states(monkeypatch, made):
    x, h, c = drawn(T, N, F), drawn(2, N, 3, gradient=True), drawn(2, N, H, gradient=True)
    for wanted in ((h, c), (c,)):
        compute = lambda wanted=wanted: trained(module("LSTM", proj_size=3, num_layers=2), x, (h, c), wanted=wanted)  # noqa: E731
        assert_same(*both_ways(monkeypatch, made, compute))


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (40, 1), (60, 20)])
def test_sizes_read_in_place_and_packed(monkeypatch, made, shape):
    x = drawn(*shape, F)
    assert_same(*both_ways(monkeypatch, made, lambda: trained(module("LSTM", num_layers=2), x)))


@pytest.mark.parametrize("used", ["output", "states", "one state"])
def test_what_the_loss_does_not_use(monkeypatch, made, used):
    loss = {
        "output": lambda output, states: output.sum(),
        "states": lambda output, states: states[0].sum() + states[1].sum(),
        "one state": lambda output, states: states[1].square().sum(),
    }[used]
    assert_same(*both_ways(monkeypatch, made, lambda: trained(module("LSTM"), drawn(T, N, F), loss=loss)))


def test_a_strided_input(monkeypatch, made):
    x = drawn(F, N, 2 * T).permute(2, 1, 0)[::2]
    assert not x.is_contiguous()
    assert_same(*both_ways(monkeypatch, made, lambda: trained(module(), x)))


def test_a_negated_gradient(monkeypatch, made):
    """PyTorch negates some tensors only when they are read."""
    def compute():
        own = module("LSTM")
        output, _ = own(drawn(T, N, F))
        return torch.autograd.grad(output, list(own.parameters()), torch._neg_view(drawn(T, N, H)))

    assert_same(*both_ways(monkeypatch, made, compute))


@pytest.mark.parametrize("used", [1, 3])
def test_a_cell_with_several_states_of_which_some_are_used(monkeypatch, made, kept, used):
    def compute():
        torch.manual_seed(0)
        own, x = rnnkit.torch.Recurrent(rnnkit.cells.SLSTM(), F, H), drawn(T, N, F)
        own(x)
        output, states = own(x, tuple(drawn(1, N, H, gradient=True).exp() for _ in range(4)))
        given = [output, *states][:used]
        return *given, *torch.autograd.grad(sum(one.sum() for one in given), list(own.parameters()))

    assert_same(*both_ways(monkeypatch, made, compute))


@pytest.mark.parametrize("negated", [False, True])
def test_strided_and_negated_states_and_their_gradients(monkeypatch, made, negated):
    """Kernels read them by their addresses."""
    def compute():
        own, x, given = module("LSTM"), drawn(T, N, F), drawn(2, H, N, 1)
        h, c = given[0].permute(2, 1, 0), given[1].permute(2, 1, 0).requires_grad_()
        output, (hy, cy) = own(x, (h, c))
        dhy = torch._neg_view(drawn(1, N, H)) if negated else drawn(1, H, N).transpose(1, 2)
        found = torch.autograd.grad((output, hy, cy), (c, *own.parameters()), (drawn(T, H, N).mT, dhy, dhy))
        with torch.no_grad():
            return *found, output, *own(x, (h, c))[1]

    assert_same(*both_ways(monkeypatch, made, compute))


@pytest.mark.parametrize("which", ["x", "state", "gradient"])
def test_a_tensor_of_zeros_without_memory(made, which):
    own, zeros, x = module(), torch._efficientzerotensor((1, N, H)), drawn(1, N, F, gradient=True)
    given = torch._efficientzerotensor((1, N, F)) if which == "x" else x, zeros if which == "state" else None
    found, cotangent = own(*given)[0], zeros if which == "gradient" else torch.ones(1, N, H)
    expected = own(torch.zeros(1, N, F) if which == "x" else x, torch.zeros(1, N, H))[0]
    assert_same([found], [expected])
    weights = list(own.parameters())
    assert_same(*(torch.autograd.grad(one, weights, cotangent.clone()) for one in (found, expected)))
    with torch.no_grad():
        assert_same([own(*given)[0]], [expected])


def test_as_pytorch(made):
    own, x = module("LSTM", num_layers=2, bidirectional=True), drawn(T, N, F, gradient=True)
    plain = nn.LSTM(F, H, num_layers=2, bidirectional=True)
    plain.load_state_dict(own.state_dict())
    for found, expected in zip(trained(own, x, wanted=(x,)), trained(plain, x, wanted=(x,)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert made


def test_the_gradient_of_a_gradient_is_refused(made):
    own, x = module(), drawn(T, N, F, gradient=True)
    (dx,) = torch.autograd.grad(own(x)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=says("backward: order", 1, 2, "PyTorch's own module")):
        dx.sum().backward()
    assert made


def test_debugging_goes_the_long_way(made):
    own, x = module(), drawn(T, N, F)
    own(x)
    rnnkit.set_debug(True)
    try:
        loss = own(x)[0].sum()
        own.weight_hh_l0.data.mul_(2)
        with pytest.raises(rnnkit.WorkspaceError, match=says("backward: w", "changed")):
            loss.backward()
    finally:
        rnnkit.set_debug(False)


def test_no_steps_go_the_long_way(made):
    for shape in ((0, N), (T, 0)):
        module()(drawn(*shape, F))[0].sum().backward()
    assert not made


DRAWING = RegularizedLSTM(recurrent_dropout=0.4, zoneout=0.3)


@pytest.mark.parametrize(("cell", "options"), [
    ("lstm", {"num_layers": 3, "dropout": 0.5}), ("gru", {"num_layers": 2, "dropout": 0.5, "bidirectional": True}),
    (DRAWING, {"num_layers": 2, "dropout": 0.5}), (DRAWING, {"bidirectional": True}),
])  # fmt: skip
def test_what_is_drawn(monkeypatch, made, cell, options, kept):
    def compute():
        torch.manual_seed(0)
        own, x = Recurrent(cell, F, H, **options), drawn(T, N, F, gradient=True)
        return *trained(own, x, wanted=(x,)), *trained(own, x, wanted=(x,))

    found, expected = both_ways(monkeypatch, made, compute)
    assert_same(found, expected)
    assert not torch.equal(found[0], found[len(found) // 2]), "each call has a seed of its own"


def test_what_is_drawn_without_a_gradient(made):
    own, x = Recurrent(DRAWING, F, H), drawn(T, N, F)
    torch.manual_seed(1)
    expected, _ = own(x)
    with torch.no_grad():
        torch.manual_seed(1)
        found, _ = own(x)
    assert_same([found], [expected])
    assert made


def test_training_and_evaluation_in_turn(made):
    own, x = Recurrent(DRAWING, F, H, num_layers=2, dropout=0.5), drawn(T, N, F)
    with torch.no_grad():
        expected, _ = own.eval()(x)
    for _ in range(2):
        assert not torch.equal(own.train()(x)[0], own(x)[0])
        assert_same([own.eval()(x)[0], own(x)[0]], [expected, expected])
    own.dropout = 0.0
    assert not own.train()(x)[0].equal(own.eval()(x)[0])
    assert made


def test_a_chain_that_draws():
    """The calls of one sequence are gathered, with the noises that each has kept."""
    torch.manual_seed(0)
    own, steps = Recurrent(DRAWING, F, 128), drawn(40, 1, F)
    state, total, seeds = None, 0, range(len(steps))
    own(steps[:1])
    for step, seed in zip(steps, seeds, strict=True):
        torch.manual_seed(seed)
        output, state = own(step[None], state)
        total = total + output.square().sum()
    found = torch.autograd.grad(total, list(own.parameters()))
    (size,) = own._rnnkit_cache.flat.sizes.values()
    assert size.gathered
    state, loss = None, 0
    for step, seed in zip(steps, seeds, strict=True):
        torch.manual_seed(seed)
        output, state = own(step[None], state, resets=torch.zeros(1, 1))  # the long way
        loss = loss + output.square().sum()
    expected = torch.autograd.grad(loss, list(own.parameters()))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_numpy_has_the_same_bits(made):
    own, x = module("GRU", num_layers=2, bidirectional=True), drawn(T, N, F, gradient=True)
    output, state, dx, *_ = trained(own, x, wanted=(x,))
    net = from_torch(own.state_dict())
    result = net.forward(x.detach().numpy())
    back = net.backward(result.workspace, 2 * result.y, np.ones_like(result.hy))
    assert_same_bits("output", output.detach().numpy(), result.y)
    assert_same_bits("dx", dx.numpy(), back.dx)
