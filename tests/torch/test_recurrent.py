"""Networks of any cell as PyTorch modules, against NumPy's networks and against a loop over the steps in PyTorch."""

import copy

import numpy as np
import pytest
import torch
from combinations import nightly
from messages import says
from recurrent_modules import (
    CELLS,
    LENGTHS,
    NAMES,
    OPTIONS,
    F,
    H,
    N,
    T,
    assert_close,
    by_steps,
    gradients,
    inputs,
    module,
)
from several_states import arrays_of, as_given
from tolerances import assert_same_bits
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch_tensors import assert_equal, flat

import rnnkit
from rnnkit.cells import IndRNN, RegularizedLSTM
from rnnkit.torch import Recurrent, calls


@pytest.mark.parametrize("form", ["batch", "lengths", "packed"])
@pytest.mark.parametrize("kind", NAMES)
def test_cells_match_a_loop_over_the_steps(kind, form):
    for options in OPTIONS if form == "batch" else OPTIONS[1:3]:
        own = module(kind, **options)
        x, hx = inputs(own)
        lengths = {"batch": [T] * N, "lengths": LENGTHS, "packed": [3, 6, 1, 6]}[form]
        leaves = [x, *flat(hx), *own.parameters()]
        expected = by_steps(own, CELLS[kind][1], x, hx, lengths)
        expected_gradients = gradients(*expected, leaves)
        for _ in range(2):  # the second is a plain call
            if form == "packed":
                y, states = own(pack_padded_sequence(x, lengths, own.batch_first, enforce_sorted=False), hx)
                y, _ = pad_packed_sequence(y, own.batch_first)
            else:
                y, states = own(x, hx) if form == "batch" else own(x, hx, lengths=lengths)
            assert isinstance(states, tuple) == (len(expected[1]) > 1)
            assert_close(flat((y, states)), flat(expected))
            assert_close(gradients(y, states, leaves), expected_gradients)


LATER = [*((kind, torch.float64) for kind in CELLS if kind != "no state"), ("three states", torch.float32)]


@pytest.mark.parametrize(("kind", "dtype"), [("no state", torch.float64), *(nightly(*one) for one in LATER)])
@pytest.mark.parametrize("steps", [T, 3000], ids=["small", "large"])
def test_cells_are_bit_identical_to_a_network(kind, steps, dtype):
    own = module(kind, num_layers=2, bidirectional=True, dtype=dtype)
    x, hx = inputs(own, steps=steps)
    net = own.network()
    assert net.desc.mode == own.cell and net.dtype.name == str(dtype).removeprefix("torch.")
    h, *others = (one.detach().numpy() for one in flat(hx))
    result = net.forward(x.detach().numpy(), h, as_given(others))
    dhy, dcy = None if others else np.ones_like(h), [np.zeros_like(one) for one in others]
    for one in dcy[-1:]:
        one[:] = 1
    back = net.backward(result.workspace, 2 * result.y, dhy, as_given(dcy))
    expected = result.y, result.hy, *arrays_of(result.cy), back.dx, back.dhx, *arrays_of(back.dcx)
    for _ in range(2):
        y, states = own(x, hx)
        found = torch.autograd.grad(y.square().sum() + flat(states)[-1].sum(), [x, *flat(hx)])
        for number, (one, other) in enumerate(zip(flat((y, states, found)), expected, strict=True)):
            assert_same_bits(f"tensor {number}", one.detach().numpy(), other)
        with torch.no_grad():
            assert_equal(own(x, hx), (y, states))
    with torch.inference_mode():
        assert torch.equal(own(x.detach(), hx)[0], y)


@pytest.mark.parametrize("kind", NAMES)
def test_gradients_of_cells_pass_gradcheck(kind):
    own = module(kind, num_layers=2)
    x, hx = inputs(own, (2,), 3)

    def function(x, *states):
        return tuple(flat(own(x, as_given(states), lengths=[3, 1])))

    assert torch.autograd.gradcheck(function, (x, *flat(hx)))


@pytest.mark.parametrize("kind", NAMES)
def test_one_sequence_is_a_batch_of_one_with_and_without_states(kind):
    own = module(kind, bidirectional=True)
    x, hx = inputs(own)
    batch = [one[:, :1] for one in flat(hx)]
    expected = own(x[:, :1], as_given([torch.zeros_like(one) for one in batch]))
    assert_equal(own(x[:, 0]), [one.squeeze(1) for one in flat(expected)])
    expected = own(x[:, :1], as_given(batch))
    assert_equal(own(x[:, 0], as_given([one[:, 0] for one in batch])), [one.squeeze(1) for one in flat(expected)])


def test_results_can_be_changed_in_place():
    """Also the states of one row, whose numbers are neighbours."""
    own = module("three states")
    for rows in (1, N):
        x, hx = inputs(own, (rows,), 2)
        for _ in range(2):
            expected = gradients(*own(x, hx), [x])
            y, states = own(x, hx)
            torch.manual_seed(2)
            loss = sum((one * torch.randn(one.shape, dtype=one.dtype)).sum() for one in (y, *states))
            with torch.no_grad():
                for one in (y, *states):
                    one.zero_()
            assert_equal(torch.autograd.grad(loss, [x]), expected)
            y, states = own(x, hx)
            others = [one.detach().clone() for one in states[2:]]
            states[1].mul_(2)
            assert_equal(states[2:], others)
            states[1].sum().backward()


@pytest.mark.parametrize("kind", NAMES)
def test_later_calls_take_the_fast_path(kind, monkeypatch):
    """They look at no argument again: as fast as those of PyTorch's cells."""
    own = module(kind, batch_first=True)
    x, hx = inputs(own)
    expected = own(x, hx)[0], own(x)[0]
    monkeypatch.setattr(calls, "run_sequences", None)
    for mode in torch.enable_grad, torch.no_grad:
        with mode():
            assert torch.equal(own(x, hx)[0], expected[0]) and torch.equal(own(x)[0], expected[1])


def test_resets_and_all_states_of_a_cell():
    own = module("three states", batch_first=True)
    x, hx = inputs(own)
    resets = torch.zeros(N, T)
    resets[:, 2] = 1
    y, states, every = own(x, hx, resets=resets, all_states=True)
    assert_equal((y[:, 2:], states), own(x[:, 2:]))
    assert len(every) == 4 and all(one.shape == (T, 1, N, H) for one in every)
    assert_equal([one[-1] for one in every], states)
    assert torch.equal(every[0][:, 0].transpose(0, 1), y)
    of_one = own(x[0], resets=resets[0], all_states=True)
    assert [one.shape for one in of_one[2]] == [(T, 1, H)] * 4


def test_dropout_is_the_networks_and_needs_two_layers():
    assert module("three states", num_layers=2, dropout=0.5).network().desc.dropout == 0.5
    with pytest.warns(UserWarning, match=says("Recurrent: dropout", 0.5, "num_layers=1")):
        module(dropout=0.5)


@pytest.mark.parametrize("kind", NAMES)
def test_parameters_are_the_blocks_of_the_layout(kind):
    own = module(kind, num_layers=2, bidirectional=True)
    layout, found = rnnkit.weight_layout(own.network().desc), own.named_parameters()
    assert [(name, tuple(one.shape)) for name, one in found] == [(one.name, one.shape) for one in layout]
    assert len(own.all_weights) == 4 and sum(map(len, own.all_weights)) == len(layout)


def test_parameters_are_drawn_as_the_cell_declares():
    torch.manual_seed(5)
    own = Recurrent(IndRNN, 30, 400)
    torch.manual_seed(5)
    assert_equal([*own.parameters()], [*Recurrent(IndRNN, 30, 400).parameters()])
    bound = 400**-0.5
    for name, low, high in (("weight_ih_l0", -bound, bound), ("bias_ih_l0", -bound, bound), ("u_l0", 0, 1)):
        drawn, width = getattr(own, name), high - low
        assert low <= drawn.min() < low + 0.05 * width and high - 0.05 * width < drawn.max() <= high
    before = own.u_l0.detach().clone()
    own.reset_parameters()
    assert not torch.equal(own.u_l0, before) and own.u_l0.min() >= 0


def test_mode_matches_pytorchs_module():
    torch.manual_seed(5)
    plain = nn.LSTM(F, H, 2, bidirectional=True, proj_size=2, dtype=torch.float64)
    own = Recurrent("lstm", F, H, 2, bidirectional=True, proj_size=2, dtype=torch.float64)
    own.load_state_dict(plain.state_dict())
    x = torch.randn(T, N, F, dtype=torch.float64)
    hx = torch.randn(4, N, 2, dtype=torch.float64), torch.randn(4, N, H, dtype=torch.float64)
    for _ in range(2):
        assert_close(flat(own(x, hx)), flat(plain(x, hx)))


def test_noise_is_drawn_only_in_training():
    """From PyTorch's generator; in evaluation, where calls have gradients too, they are as in `infer`."""
    own = Recurrent(RegularizedLSTM(recurrent_dropout=0.4, zoneout=0.3, zoneout_c=0.2), F, H)
    x = torch.randn(T, N, F, requires_grad=True)
    own.eval()
    expected = own.network().infer(x.detach().numpy()).y
    for _ in range(2):  # the second is a plain call
        y, _ = own(x)
        np.testing.assert_array_equal(y.detach().numpy(), expected)
    assert y.grad_fn is not None
    (evaluated,) = torch.autograd.grad(y.sum(), x)
    with torch.no_grad():
        np.testing.assert_array_equal(own(x)[0].numpy(), expected)
    own.train()
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        y, _ = own(x)
        found.append((y.detach(), *torch.autograd.grad(y.sum(), x)))
    assert_equal(found[0], found[1])
    assert not torch.equal(found[0][0], found[2][0])
    assert not torch.equal(found[0][1], evaluated)
    torch.manual_seed(1)
    with torch.no_grad():
        assert torch.equal(own(x)[0], found[0][0])
    own.eval()
    np.testing.assert_array_equal(own(x)[0].detach().numpy(), expected)
    assert own.network().desc.draws


def test_recorded_call_draws_noise_only_in_training():
    own = Recurrent(RegularizedLSTM(recurrent_dropout=0.4), F, H)
    x = torch.randn(T, N, F, requires_grad=True)
    for switch in (own.eval, own.train):
        switch()
        torch.manual_seed(1)
        (expected,) = torch.autograd.grad(own(x)[0].sum(), x)
        torch.manual_seed(1)
        assert torch.equal(torch.func.grad(lambda x: own(x)[0].sum())(x.detach()), expected)


def test_assigned_cell_takes_effect():
    """Between calls, too, in copies and in what a module is saved as; its weights fit, or it is refused."""
    own, x = Recurrent(RegularizedLSTM(zoneout=0.5), 3, 4), torch.randn(5, 2, 3)
    other = Recurrent(RegularizedLSTM(), 3, 4)
    other.load_state_dict(own.state_dict())
    expected = other(x)[0]
    assert not torch.equal(own(x)[0], expected)
    own.cell = RegularizedLSTM()
    assert own.cell == own.network().desc.mode == copy.deepcopy(own).cell == RegularizedLSTM()
    assert torch.equal(own(x)[0], expected) and torch.equal(copy.deepcopy(own)(x)[0], expected)
    own.cell = RegularizedLSTM(zoneout=0.5)
    assert not torch.equal(own(x)[0], expected) and "zoneout=0.5" in repr(own)
    plain = Recurrent("lstm", 3, 4)
    plain.load_state_dict(own.state_dict())
    own.cell = "lstm"
    assert torch.equal(own(x)[0], plain(x)[0])
    with pytest.raises(ValueError, match=says("Recurrent: cell", "names and shapes", "lstm", "gru")):
        own.cell = "gru"
    with pytest.raises((TypeError, ValueError), match="^Recurrent: cell"):
        own.cell = 3
    assert own.cell == "lstm" and torch.equal(own(x)[0], plain(x)[0])
