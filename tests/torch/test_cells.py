"""`nn.LSTMCell` and `nn.GRUCell` on the engine; `nn.RNNCell` stays PyTorch's."""

import contextlib
import copy
import pickle

import numpy as np
import pytest
import torch
from combinations import pairs
from messages import says
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


@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell"])
def test_step_is_bit_identical_to_a_network_of_one_step(kind):
    own = cell(kind)
    x, hx = step(kind)
    layer = getattr(rnnkit.torch, kind[:-4])(F, H)
    layer.load_state_dict({f"{name}_l0": value for name, value in own.state_dict().items()})
    net = from_torch(layer)
    expected = net.infer(x.detach().numpy()[None], *(one.detach().numpy()[None] for one in flat(hx)))
    for mode in torch.enable_grad, torch.no_grad:
        with mode():
            for _ in range(2):
                for found, state in zip(flat(own(x, hx)), expected[1:], strict=False):
                    assert np.array_equal(found.detach(), state[0])


@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell"])
def test_step_without_a_prepared_call_is_bit_identical(monkeypatch, kind):
    own, (x, hx) = cell(kind), step(kind)
    expected = gradients(own, x, hx, steps=1)
    route.is_prepared.cache_clear()
    monkeypatch.setattr(route, "_PREPARED_BYTES", 0)
    again = cell(kind)
    assert_equal(gradients(again, x, hx, steps=1), expected)
    assert next(iter(again._rnnkit_cache.flat.sizes.values())).calls is None


@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell"])
def test_step_takes_one_sequence_and_states_in_a_list(kind):
    own, (x, hx) = cell(kind), step(kind)
    expected = own(x[:1], tuple(one[:1] for one in flat(hx)) if kind == "LSTMCell" else hx[:1])
    one = own(x[0], [state[0] for state in hx] if kind == "LSTMCell" else hx[0])
    assert_equal(one, [state[0] for state in flat(expected)])
    assert_equal(own(x[0]), [state[0] for state in flat(own(x[:1]))])


def test_states_can_be_changed_in_place():
    own, (x, hx) = cell("LSTMCell"), step("LSTMCell")
    own(x, hx)
    expected = gradients(own, x, hx)
    states = hx
    for _ in range(3):
        states = own(x, states)
    with torch.no_grad():
        h, c = own(x, hx)
        h.zero_(), c.zero_()
    assert_equal(torch.autograd.grad(loss_of(states), [x, *hx, *own.parameters()]), expected)


@pytest.mark.parametrize("called", [False, True])
def test_wrong_input_and_states_are_named(called):
    own, (x, hx) = cell("GRUCell"), step("GRUCell")
    if called:
        own(x, hx)
    for given, where, facts in (
        ((x[None], hx), "forward: input", ["tensor", "(N, I)", "(I,)", "torch.Size([1, 3, 5])"]),
        ((x[:, 1:], hx), "forward: input", [(3, 5), "torch.float32", (3, 4)]),
        ((x.double(), hx), "forward: input", ["torch.float32", "torch.float64"]),
        ((x, hx[1:]), "forward: hx", [(3, 7), "torch.float32", (2, 7)]),
        ((x, (hx, hx)), "forward: hx", [None, "tensor", "tuple of 2"]),
        (("x", hx), "forward: input", ["torch.Tensor", "str"]),
    ):
        with pytest.raises((ValueError, TypeError, RuntimeError), match=says(where, *facts)):
            own(*given)
    assert own(x, hx).shape == (N, H)


def test_model_with_a_cell_is_accelerated_and_restored():
    torch.manual_seed(0)
    model = nn.ModuleDict({"cell": nn.LSTMCell(F, H), "readout": nn.Linear(H, F)})
    start = torch.randn(N, F)

    def decoded():
        states, outputs = None, [start]
        for _ in range(4):
            states = model["cell"](outputs[-1], states)
            outputs.append(model["readout"](states[0]))
        return torch.stack(outputs)

    expected = decoded()
    expected_gradients = torch.autograd.grad(expected.sum(), [*model.parameters()])
    assert rnnkit.torch.accelerate(model) == (("cell",), {})
    assert isinstance(model["cell"], nn.LSTMCell) and type(model["cell"]) is rnnkit.torch.LSTMCell
    for _ in range(2):
        assert_close(decoded(), expected)
        assert_close(torch.autograd.grad(decoded().sum(), [*model.parameters()]), expected_gradients)
    assert rnnkit.torch.restore(model) == ("cell",)
    assert type(model["cell"]) is nn.LSTMCell and torch.equal(decoded(), expected)


@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell"])
def test_cell_made_in_accelerated_is_pickled_as_pytorchs(kind):
    with rnnkit.torch.accelerated():
        own = getattr(nn, kind)(F, H)
    x, hx = step(kind)
    found = own(x, hx)
    assert type(own) is getattr(rnnkit.torch, kind)
    assert own._rnnkit_cache.flat is not None  # its parameters are neighbours
    loaded = pickle.loads(pickle.dumps(own))
    assert type(loaded) is getattr(nn, kind)
    assert_close(loaded(x, hx), found)
    assert_equal(copy.deepcopy(own)(x, hx), found)


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


@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell"])
def test_cell_can_be_compiled_exported_and_transformed(kind):
    """Dynamo takes cells into its graphs without a switch."""
    torch.compiler.reset()
    own, (x, hx) = cell(kind), step(kind)
    compiled = torch.compile(own, backend="aot_eager", fullgraph=True)
    assert_equal(compiled(x, hx), own(x, hx))
    assert_equal(gradients(compiled, x, hx, steps=1), gradients(own, x, hx, steps=1))
    assert_close(gradients(compiled, x, hx), gradients(own, x, hx))  # which adds them up itself
    program = torch.export.export(own, (x.detach(), hx))
    assert_equal(program.module()(x, hx), own(x, hx))
    found = torch.func.grad(lambda x: sum(one.sum() for one in flat(own(x, hx))))(x.detach())
    assert_equal([found], torch.autograd.grad(sum(one.sum() for one in flat(own(x, hx))), x))


@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell"])
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


def test_autocast_keeps_the_dtype_of_a_cell():
    own, (x, hx) = cell("GRUCell"), step("GRUCell")
    expected, rounded = own(x, hx), own(x.bfloat16().float(), hx)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(own(x, hx), expected) and torch.equal(own(x.bfloat16(), hx), rounded)


def test_parametrized_subclass_is_accelerated_and_restored():
    class Scaled(nn.GRUCell):
        def forward(self, x, hx=None):
            return 2 * super().forward(x, hx)

    torch.manual_seed(0)
    own, (x, hx) = Scaled(F, H, dtype=torch.float64), step("GRUCell", dtype=torch.float64)
    nn.utils.parametrizations.weight_norm(own, "weight_hh")
    expected = own(x, hx)
    expected_gradients = gradients(own, x, hx)
    assert rnnkit.torch.accelerate(own) == (("",), {})
    for _ in range(2):
        assert_close(own(x, hx), expected)
        assert_close(gradients(own, x, hx), expected_gradients)
    rnnkit.torch.restore(own)
    assert torch.equal(own(x, hx), expected)
