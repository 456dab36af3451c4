"""Side inputs of a cell in PyTorch: their forms, graphs, and what is wrong. What is computed: `test_bits`."""

import numpy as np
import pytest
import torch
from attentive import Attentive, H, N, T
from messages import raises

from rnnkit.call.side_inputs import with_inputs
from rnnkit.cells import AUGRU, MinGRU
from rnnkit.network import engine
from rnnkit.torch import Recurrent

WIDTH = 3


def drawn(*shape):
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def module(**options):
    torch.manual_seed(0)
    return Recurrent(Attentive, WIDTH, H, dtype=torch.float64, **options)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("shape", [(T, N, 1), (N, H)])
def test_side_inputs_of_one_column_or_of_all_steps_are_repeated(batch_first, shape):
    axes = (1, 0, 2) if batch_first else (0, 1, 2)
    own, gap = module(batch_first=batch_first), drawn(*shape)
    x, a, dy = (drawn(T, N, size).permute(axes) for size in (WIDTH, H, H))
    narrow = gap.permute(axes) if gap.dim() == 3 else gap
    found = own(x, inputs={"gap": narrow, "a": a})[0]
    expected = own(x, inputs={"gap": gap.expand(T, N, H).permute(axes), "a": a})[0]
    assert torch.equal(found, expected)
    leaves = [gap, *own.parameters()]
    found, expected = (torch.autograd.grad(one, leaves, dy) for one in (found, expected))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


WRONG = [
    (Attentive, None, "inputs | mapping | a, gap | NoneType"),
    (Attentive, {"a": 1}, "inputs | mapping | a, gap | ['a']"),
    (Attentive, {"a": 1, "gap": 2}, 'inputs["a"] | torch.float32 | int'),
    (MinGRU, {"a": 1}, "inputs | None | no side inputs | ['a']"),
]


@pytest.mark.parametrize(("cell", "inputs", "expected"), WRONG)
def test_missing_or_wrong_side_inputs_are_refused(cell, inputs, expected):
    with raises(TypeError, f"forward: {expected}"):
        Recurrent(cell, WIDTH, H)(torch.zeros(T, N, WIDTH), inputs=inputs)


@pytest.mark.parametrize("hidden_size", [1, 5, 16])
@pytest.mark.parametrize("batch_first", [False, True])
def test_gradients_do_not_depend_on_other_sequences(batch_first, hidden_size):
    own = Recurrent(AUGRU, WIDTH, hidden_size, batch_first=batch_first)
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
    own = Recurrent(AUGRU, WIDTH, H)
    x, attention = torch.randn(steps, N, WIDTH), torch.rand(N, H, requires_grad=True)

    def loss(attention):
        y, h = own(x, inputs={"attention": attention})
        return y.square().sum() + h.sum()

    (expected,) = torch.autograd.grad(loss(attention), attention)
    assert torch.equal(torch.func.grad(loss)(attention.detach()), expected)
    if steps:
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(torch.autograd.grad(compiled(attention), attention)[0], expected)


def test_input_and_side_inputs_are_copied_once(monkeypatch):
    """By the module; the engine takes them as they lie, and gives their gradient so."""
    seen = []

    def watched(*arguments):
        seen.append((arguments[2], with_inputs(*arguments)))
        return seen[-1][1]

    monkeypatch.setattr(engine, "with_inputs", watched)
    own, inputs = Recurrent(AUGRU, 3, 5), {"attention": torch.rand(4, 2, 1)}
    own(torch.randn(4, 2, 3, requires_grad=True), inputs=inputs, lengths=[4, 2])[0].sum().backward()
    ((x, wide),) = seen
    assert np.shares_memory(x, wide) and x.base is not None
