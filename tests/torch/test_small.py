"""Small calls with plain tensors take a fast path, which is bit-identical to the general one."""

import pytest
import torch
from messages import says
from small_calls import F, H, N, T, assert_same, both_ways, calls_made, drawn, module, trained, ways_to_keep  # noqa: E402, F401 - fixtures

import rnnkit
from rnnkit.cells import SLSTM, RegularizedLSTM
from rnnkit.torch import Recurrent

OPTIONS = [{}, {"bias": False}, {"num_layers": 3}, {"bidirectional": True}, {"batch_first": True}]
OPTIONS += [{"num_layers": 2, "bidirectional": True}, {"dtype": torch.float64}]


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "plain")
def test_small_call_is_bit_identical_to_the_general_path(monkeypatch, made, kind, options, kept):
    dtype = options.get("dtype")
    x = drawn(*((N, T, F) if options.get("batch_first") else (T, N, F)), dtype=dtype, gradient=True)
    found, expected = both_ways(monkeypatch, made, lambda: trained(module(kind, **options), x, wanted=(x,)))
    assert_same(found, expected)
    assert found[0].is_contiguous()


def test_projection_and_initial_states_are_bit_identical(monkeypatch, made):
    x, hx = drawn(T, N, F), (drawn(2, N, 3, gradient=True), drawn(2, N, H, gradient=True))
    compute = lambda: trained(module("LSTM", proj_size=3, num_layers=2), x, hx, wanted=hx)  # noqa: E731
    assert_same(*both_ways(monkeypatch, made, compute))


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (40, 1), (60, 20)])
def test_weights_read_in_place_and_packed_are_bit_identical(monkeypatch, made, shape):
    x = drawn(*shape, F)
    assert_same(*both_ways(monkeypatch, made, lambda: trained(module("LSTM", num_layers=2), x)))


@pytest.mark.parametrize("used", [slice(1), slice(3), slice(1, 3), slice(2, 3)])
@pytest.mark.parametrize("cell", [SLSTM(), "lstm"])
def test_losses_of_some_results_are_bit_identical(monkeypatch, made, kept, cell, used):
    def compute():
        torch.manual_seed(0)
        own, x = Recurrent(cell, F, H), drawn(T, N, F)
        own(x)
        states = tuple(drawn(1, N, H, gradient=True).exp() for _ in own._rnnkit_states)
        output, states = own(x, states)
        given = [output, *states][used]
        return *given, *torch.autograd.grad(sum(one.square().sum() for one in given), list(own.parameters()))

    assert_same(*both_ways(monkeypatch, made, compute))


@pytest.mark.parametrize("negated", [False, True])
def test_strided_and_negated_states_are_bit_identical(monkeypatch, made, negated):
    """Kernels read them by their addresses. PyTorch negates some tensors only when they are read."""

    def compute():
        own, x, given = module("LSTM"), drawn(T, N, F), drawn(2, H, N, 1)
        h, c = given[0].permute(2, 1, 0), given[1].permute(2, 1, 0).requires_grad_()
        output, (hy, cy) = own(x, (h, c))
        dy = torch._neg_view(drawn(T, N, H)) if negated else drawn(T, H, N).mT
        dhy = torch._neg_view(drawn(1, N, H)) if negated else drawn(1, H, N).mT
        found = torch.autograd.grad((output, hy, cy), (c, *own.parameters()), (dy, dhy, dhy))
        with torch.no_grad():
            return *found, output, *own(x, (h, c))[1]

    assert_same(*both_ways(monkeypatch, made, compute))


@pytest.mark.parametrize("which", ["x", "state", "gradient"])
def test_zero_tensor_without_memory_is_read_as_zeros(made, which):
    own, zeros, x = module(), torch._efficientzerotensor((1, N, H)), drawn(1, N, F, gradient=True)
    given = torch._efficientzerotensor((1, N, F)) if which == "x" else x, zeros if which == "state" else None
    found, cotangent = own(*given)[0], zeros if which == "gradient" else torch.ones(1, N, H)
    expected = own(torch.zeros(1, N, F) if which == "x" else x, torch.zeros(1, N, H))[0]
    assert_same([found], [expected])
    weights = list(own.parameters())
    assert_same(*(torch.autograd.grad(one, weights, cotangent.clone()) for one in (found, expected)))
    with torch.no_grad():
        assert_same([own(*given)[0]], [expected])


def test_debugging_takes_the_general_path(made):
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


NOISE = RegularizedLSTM(recurrent_dropout=0.4, zoneout=0.3)
DROPOUT = {"num_layers": 2, "dropout": 0.5}
DRAWN = ("lstm", DROPOUT | {"num_layers": 3}), ("gru", DROPOUT | {"bidirectional": True})


@pytest.mark.parametrize(("cell", "options"), [*DRAWN, (NOISE, DROPOUT), (NOISE, {"bidirectional": True})])
def test_dropout_and_noise_are_bit_identical(monkeypatch, made, cell, options, kept):
    def compute():
        torch.manual_seed(0)
        own, x = Recurrent(cell, F, H, **options), drawn(T, N, F, gradient=True)
        return *trained(own, x, wanted=(x,)), *trained(own, x, wanted=(x,))

    found, expected = both_ways(monkeypatch, made, compute)
    assert_same(found, expected)
    assert not torch.equal(found[0], found[len(found) // 2]), "each call has a seed of its own"
