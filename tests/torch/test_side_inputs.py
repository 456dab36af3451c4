"""Side inputs of a cell in PyTorch: values and gradients are those of the steps written out, and of the engine."""

import numpy as np
import pytest
import torch
from attentive import Attentive, H, N, T
from messages import says
from optional import needs
from own_cells import GivenInputs
from torch_tensors import assert_equal

import rnnkit
from rnnkit.call.side_inputs import with_inputs
from rnnkit.cells import AUGRU
from rnnkit.network import engine

recurrent = needs("rnnkit.torch.recurrent")
WIDTH = 3


def drawn(*shape):
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def module(**options):
    torch.manual_seed(0)
    return recurrent.Recurrent(Attentive, WIDTH, H, dtype=torch.float64, **options)


def steps(own, x, a, gap):
    """y of one layer, written in PyTorch."""
    h, found = x.new_zeros(x.shape[1], H), []
    for row, u_scale, time in zip(x, a.expand(len(x), -1, H), gap.expand(len(x), -1, H), strict=True):
        r, u, n = (row @ own.weight_ih_l0.T + own.bias_ih_l0).chunk(3, 1)
        r_h, u_h, q = (h @ own.weight_hh_l0.T + own.bias_hh_l0).chunk(3, 1)
        u = u_scale * torch.sigmoid(u + u_h)
        n = torch.tanh(n + torch.sigmoid(r + r_h) * q) + 0.5 * time * h
        h = h + u * (n - h)
        found.append(h)
    return torch.stack(found)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("shape", [(T, N, H), (T, N, 1), (N, H)])
def test_values_and_gradients_match_a_loop_over_the_steps(batch_first, shape):
    def turn(one):
        return one.transpose(0, 1) if one.dim() == 3 and batch_first else one

    own, x, dy = module(batch_first=batch_first), drawn(T, N, WIDTH), drawn(T, N, H)
    a, gap = drawn(T, N, H), drawn(*shape)
    given = {"gap": turn(gap), "a": turn(a)}
    y, hy = own(turn(x), inputs=given)
    wanted = steps(own, x, a, gap)
    torch.testing.assert_close(turn(y), wanted, rtol=0, atol=1e-12)
    tensors = [x, a, gap, *own.parameters()]
    found, expected = (torch.autograd.grad(one, tensors, dy) for one in (turn(y), wanted))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    with torch.no_grad():
        assert torch.equal(own(turn(x), inputs=given)[0], y)
    net = own.network()
    arrays = {name: one.detach().numpy() for name, one in {"gap": gap, "a": a}.items()}
    assert np.array_equal(net.infer(x.detach().numpy(), inputs=arrays).y, turn(y).detach().numpy())


def test_packed_side_inputs_are_those_of_lengths():
    own, x, a = module(num_layers=2, bidirectional=True), drawn(T, N, WIDTH), drawn(T, N, H)
    lengths = [3, T, 1, 2]
    pack = torch.nn.utils.rnn.pack_padded_sequence
    gap = torch.ones(T, N, 1, dtype=torch.float64)
    packed = [pack(one, lengths, enforce_sorted=False) for one in (x, a, gap)]
    y, hy = own(packed[0], inputs={"a": packed[1], "gap": packed[2]})
    unpacked, _ = torch.nn.utils.rnn.pad_packed_sequence(y)
    whole, h = own(x, lengths=lengths, inputs={"a": a, "gap": gap})
    assert_equal((unpacked, hy), (whole, h))
    assert_equal(torch.autograd.grad(unpacked.sum(), [x, a]), torch.autograd.grad(whole.sum(), [x, a]))


WRONG = [
    (None, "inputs", ["mapping", "a, gap", "NoneType"]),
    ({"a": 1}, "inputs", ["mapping", "a, gap", "['a']"]),
    ({"a": 1, "gap": 2}, 'inputs["a"]', ["torch.float64", "int"]),
]


@pytest.mark.parametrize(("inputs", "argument", "facts"), WRONG)
def test_missing_or_wrong_side_inputs_are_refused(inputs, argument, facts):
    with pytest.raises(TypeError, match=says(f"forward: {argument}", *facts)):
        module()(drawn(T, N, WIDTH), inputs=inputs)


def test_side_inputs_of_a_cell_without_any_are_refused():
    own = recurrent.Recurrent(rnnkit.cells.MinGRU, WIDTH, H)
    with pytest.raises(TypeError, match=says("forward: inputs", None, "no side inputs", ["a"])):
        own(torch.zeros(T, N, WIDTH), inputs={"a": 1})


@pytest.mark.parametrize("hidden_size", [1, 5, 16])
@pytest.mark.parametrize("batch_first", [False, True])
def test_gradients_do_not_depend_on_other_sequences(batch_first, hidden_size):
    own = recurrent.Recurrent(rnnkit.cells.AUGRU, WIDTH, hidden_size, batch_first=batch_first)
    x, dy = (torch.randn(200, N, size) for size in (WIDTH, hidden_size))

    def gradient(rows):
        attention = torch.linspace(0.1, 0.9, N * hidden_size).view(N, hidden_size)[rows].requires_grad_()
        given, cotangent = (one[:, rows].transpose(0, int(batch_first)) for one in (x, dy))
        y, _ = own(given, inputs={"attention": attention})
        return torch.autograd.grad(y, attention, cotangent)[0]

    whole = gradient(slice(0, N))
    for row in range(N):
        assert torch.equal(gradient(slice(row, row + 1)), whole[row : row + 1])


@pytest.mark.parametrize("steps", [0, 5])
def test_side_input_of_all_steps_in_graphs_and_transforms(steps):
    own = recurrent.Recurrent(rnnkit.cells.AUGRU, WIDTH, H)
    x, attention = torch.randn(steps, N, WIDTH), torch.rand(N, H, requires_grad=True)

    def loss(attention):
        y, h = own(x, inputs={"attention": attention})
        return y.square().sum() + h.sum()

    (expected,) = torch.autograd.grad(loss(attention), attention)
    assert torch.equal(torch.func.grad(loss)(attention.detach()), expected)
    if steps:
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(torch.autograd.grad(compiled(attention), attention)[0], expected)


@pytest.mark.parametrize("batch_first", [False, True])
def test_cell_without_w_takes_an_input_without_columns(batch_first):
    own = recurrent.Recurrent(GivenInputs, 0, 5, batch_first=batch_first, bidirectional=True, dtype=torch.float64)
    shape = (3, 7) if batch_first else (7, 3)
    inputs = {
        name: torch.randn(*shape, 5, dtype=torch.float64, requires_grad=True) for name in ("xi", "xf", "xg", "xo")
    }
    x = torch.empty(*shape, 0, dtype=torch.float64)
    output, (h, c) = own(x, inputs=inputs)
    output.square().sum().backward()
    arrays = {name: (one.transpose(0, 1) if batch_first else one).detach().numpy() for name, one in inputs.items()}
    net = own.network()
    found = net.forward(np.empty((7, 3, 0)), inputs=arrays)
    gradients = net.backward(found.workspace, 2 * found.y)
    ours = output.transpose(0, 1) if batch_first else output
    assert np.array_equal(ours.detach().numpy(), found.y) and np.array_equal(h.detach().numpy(), found.hy)
    for name, one in inputs.items():
        own_gradient = one.grad.transpose(0, 1) if batch_first else one.grad
        assert np.array_equal(own_gradient.numpy(), gradients.inputs[name])


def test_input_and_side_inputs_are_copied_once(monkeypatch):
    """By the module; the engine takes them as they lie, and gives their gradient so."""
    seen = []

    def watched(*arguments):
        seen.append((arguments[2], with_inputs(*arguments)))
        return seen[-1][1]

    monkeypatch.setattr(engine, "with_inputs", watched)
    own, inputs = recurrent.Recurrent(AUGRU, 3, 5), {"attention": torch.rand(4, 2, 1)}
    own(torch.randn(4, 2, 3, requires_grad=True), inputs=inputs, lengths=[4, 2])[0].sum().backward()
    ((x, wide),) = seen
    assert np.shares_memory(x, wide) and x.base is not None
