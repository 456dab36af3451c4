"""`nn.LSTMCell` and `nn.GRUCell` on the engine; `nn.RNNCell` stays PyTorch's."""

import contextlib
import copy

import numpy as np
import pytest
import torch
from combinations import pairs
from messages import raises
from torch import nn
from torch.testing import assert_close
from torch_tensors import assert_equal, flat

import rnnkit
import rnnkit.torch
from rnnkit.cpu import route
from rnnkit.interop import from_torch

N, F, H = 3, 5, 7
CELLS = [("GRUCell", {}), ("LSTMCell", {}), ("LSTMCell", {"bias": False})]


def cell(kind, dtype=torch.float32, **options):
    torch.manual_seed(0)
    return getattr(rnnkit.torch, kind)(F, H, dtype=dtype, **options)


def plain(own):
    """PyTorch's cell with the same parameters."""
    module = copy.deepcopy(own)
    rnnkit.torch.restore(module)
    assert not type(module).__module__.startswith("rnnkit")
    return module


def step(kind, rows=N, dtype=torch.float32):
    """An input and states that want gradients."""
    x, *states = (torch.randn(rows, size, dtype=dtype, requires_grad=True) for size in (F, H, H))
    return x, tuple(states) if kind == "LSTMCell" else states[0]


def gradients(module, x, hx, steps=3):
    """Of all leaves, in a loop over time."""
    states = hx
    for _ in range(steps):
        states = module(x, states)
    return torch.autograd.grad(loss_of(states), [x, *([] if hx is None else flat(hx)), *module.parameters()])


def loss_of(states):
    return sum((one * (2 + index)).sin().sum() for index, one in enumerate(flat(states)))


def assert_same_results(own, expected, x, hx):
    """In two calls, as later ones take the fast path."""
    for _ in range(2):
        assert_close(own(x, hx), expected(x, hx))
        assert_close(gradients(own, x, hx), gradients(expected, x, hx))


@pytest.mark.parametrize(
    ("cell_of", "rows", "dtype", "given"), pairs(CELLS, [1, N, 16, 17], [torch.float32, torch.float64], [False, True])
)
def test_step_matches_pytorch(cell_of, rows, dtype, given):
    kind, own = cell_of[0], cell(cell_of[0], dtype, **cell_of[1])
    x, hx = step(kind, rows, dtype)
    hx, expected = hx if given else None, plain(own)
    assert_same_results(own, expected, x, hx)
    with torch.no_grad():
        assert_close(own(x, hx), expected(x, hx))
    assert own._rnnkit_cache.flat is not None
    assert type(own(x, hx)) is type(expected(x, hx))


of_each_cell = pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell"])


@of_each_cell
def test_step_is_bit_identical_to_a_network_of_one_step(kind):
    own = cell(kind)
    x, hx = step(kind)
    expected = from_torch(own).infer(x.detach().numpy()[None], *(one.detach().numpy()[None] for one in flat(hx)))
    for mode in torch.enable_grad, torch.no_grad:
        with mode():
            for _ in range(2):
                for found, state in zip(flat(own(x, hx)), expected[1:], strict=False):
                    assert np.array_equal(found.detach(), state[0])


@of_each_cell
def test_step_without_a_prepared_call_is_bit_identical(monkeypatch, kind):
    own, (x, hx) = cell(kind), step(kind)
    expected = gradients(own, x, hx, steps=1)
    monkeypatch.setattr(route, "_PREPARED_BYTES", 0)
    again = cell(kind)
    assert_equal(gradients(again, x, hx, steps=1), expected)
    assert next(iter(again._rnnkit_cache.flat.sizes.values())).calls is None


@of_each_cell
def test_step_takes_one_sequence_and_states_in_a_list(kind):
    own, (x, hx) = cell(kind), step(kind)
    expected = own(x[:1], tuple(one[:1] for one in flat(hx)) if kind == "LSTMCell" else hx[:1])
    one = own(x[0], [state[0] for state in hx] if kind == "LSTMCell" else hx[0])
    assert_equal(one, [state[0] for state in flat(expected)])
    assert_equal(own(x[0]), [state[0] for state in flat(own(x[:1]))])


@pytest.mark.parametrize("called", [False, True])
def test_wrong_input_and_states_are_named(called):
    own, (x, hx) = cell("GRUCell"), step("GRUCell")
    if called:
        own(x, hx)
    for given, expected in (
        ((x[None], hx), "input | tensor | (N, I) | (I,) | torch.Size([1, 3, 5])"),
        ((x[:, 1:], hx), "input | (3, 5) | torch.float32 | (3, 4)"),
        ((x.double(), hx), "input | torch.float32 | torch.float64"),
        ((x, hx[1:]), "hx | (3, 7) | torch.float32 | (2, 7)"),
        ((x, (hx, hx)), "hx | None | tensor | tuple of 2"),
        (("x", hx), "input | torch.Tensor | str"),
    ):
        with raises((ValueError, TypeError, RuntimeError), f"forward: {expected}"):
            own(*given)
    assert own(x, hx).shape == (N, H)


def test_rnn_cell_stays_pytorchs():
    class Own(nn.RNNCell):
        def forward(self, x, hx=None):
            return super().forward(x, hx)

    with rnnkit.torch.accelerated():
        normed = nn.utils.parametrizations.weight_norm(nn.RNNCell(F, H), "weight_hh")
        cells = nn.ModuleList([nn.RNNCell(F, H), Own(F, H), normed])
    kinds = [*map(type, cells)]
    assert rnnkit.torch.accelerate(cells) == ((), dict.fromkeys("012", "PyTorch's own RNNCell is faster"))
    assert [*map(type, cells)] == kinds and kinds[:2] == [nn.RNNCell, Own]


@of_each_cell
@pytest.mark.parametrize("born", [False, True])
def test_attributes_of_a_subclass_do_not_clash(kind, born):
    """Those of modules over sequences, and of what runs a call, are free for cells."""

    class Own(getattr(nn, kind)):
        def __init__(self):
            super().__init__(F, H)
            self.dropout, self.mode, self.num_layers, self.batch_first = nn.Dropout(0.0), "fast", 2, True
            self.bidirectional, self.proj_size, self._flat_weights = True, 3, None

        def _run(self, x):
            return self.dropout(x) if self.mode == "fast" else None

        def forward(self, x, hx=None):
            return super().forward(self._run(x), hx)

    torch.manual_seed(0)
    expected = Own()
    with rnnkit.torch.accelerated() if born else contextlib.nullcontext():
        torch.manual_seed(0)
        own = Own()
    if not born:
        assert rnnkit.torch.accelerate(own).changed == ("",)
    assert_same_results(own, expected, *step(kind))
