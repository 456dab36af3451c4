"""`nn.LSTMCell` and `nn.GRUCell` on the engine; `nn.RNNCell` stays PyTorch's."""

import contextlib
import copy
import os
import pickle

import numpy as np
import pytest
from combinations import pairs
from messages import says

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import rnnkit  # noqa: E402
import rnnkit.torch  # noqa: E402
from rnnkit.cpu import route  # noqa: E402
from rnnkit.interop import from_torch  # noqa: E402

N, F, H = 3, 5, 7
CELLS = {
    "GRUCell": ("GRUCell", {}),
    "LSTMCell": ("LSTMCell", {}),
    "LSTMCell without bias": ("LSTMCell", {"bias": False}),
}


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


def flat(states):
    return states if isinstance(states, tuple) else (states,)


def gradients(module, x, hx, steps=3):
    """Of all leaves, in a loop over time."""
    states = hx
    for _ in range(steps):
        states = module(x, states)
    leaves = [x, *(() if hx is None else flat(hx)), *module.parameters()]
    return torch.autograd.grad(sum((one * (2 + index)).sin().sum() for index, one in enumerate(flat(states))), leaves)


def assert_close(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def assert_equal(found, expected):
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("cell_of", "rows", "dtype", "given"),
    pairs(CELLS.values(), [1, N, 16, 17], [torch.float32, torch.float64], [False, True]),
)
def test_a_step_is_pytorchs(cell_of, rows, dtype, given):
    """The first call, and later ones, which go a way of their own."""
    kind, own = cell_of[0], cell(cell_of[0], dtype, **cell_of[1])
    x, hx = step(kind, rows, dtype)
    hx = hx if given else None
    expected = plain(own)
    for _ in range(2):
        assert_close(flat(own(x, hx)), flat(expected(x, hx)))
        assert_close(gradients(own, x, hx), gradients(expected, x, hx))
        with torch.no_grad():
            assert_close(flat(own(x, hx)), flat(expected(x, hx)))
    assert own._rnnkit_cache.flat is not None
    assert type(own(x, hx)) is type(expected(x, hx))


@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell"])
def test_the_bits_are_those_of_one_step_of_the_network(kind):
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
def test_a_large_step(monkeypatch, kind):
    """Whose workspace is not kept with what is laid out."""
    own, (x, hx) = cell(kind), step(kind)
    expected = gradients(own, x, hx, steps=1)
    route.is_prepared.cache_clear()
    monkeypatch.setattr(route, "_PREPARED_BYTES", 0)
    again = cell(kind)
    assert_equal(gradients(again, x, hx, steps=1), expected)
    assert next(iter(again._rnnkit_cache.flat.sizes.values())).calls is None


@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell"])
def test_one_sequence_and_states_in_a_list(kind):
    own, (x, hx) = cell(kind), step(kind)
    expected = own(x[:1], tuple(one[:1] for one in flat(hx)) if kind == "LSTMCell" else hx[:1])
    one = own(x[0], [state[0] for state in hx] if kind == "LSTMCell" else hx[0])
    assert_equal(flat(one), [state[0] for state in flat(expected)])
    assert_equal(flat(own(x[0])), [state[0] for state in flat(own(x[:1]))])


def test_results_are_the_users():
    own, (x, hx) = cell("LSTMCell"), step("LSTMCell")
    own(x, hx)
    expected = gradients(own, x, hx)
    states = hx
    for _ in range(3):
        states = own(x, states)
    with torch.no_grad():
        h, c = own(x, hx)
        h.zero_(), c.zero_()
    loss = sum((one * (2 + index)).sin().sum() for index, one in enumerate(states))
    assert_equal(torch.autograd.grad(loss, [x, *hx, *own.parameters()]), expected)


@pytest.mark.parametrize("called", [False, True])
def test_wrong_input_is_told(called):
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


def test_accelerate_and_restore():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.readout = nn.LSTMCell(F, H), nn.Linear(H, F)

        def forward(self, x, states=None):
            outputs = []
            for _ in range(4):
                states = self.cell(x, states)
                x = self.readout(states[0])
                outputs.append(x)
            return torch.stack(outputs)

    torch.manual_seed(0)
    model, x = Decoder(), torch.randn(N, F)
    expected = model(x)
    expected_gradients = torch.autograd.grad(expected.sum(), [*model.parameters()])
    assert rnnkit.torch.accelerate(model) == (("cell",), {})
    assert isinstance(model.cell, nn.LSTMCell) and type(model.cell) is rnnkit.torch.LSTMCell
    for _ in range(2):
        torch.testing.assert_close(model(x), expected)
        assert_close(torch.autograd.grad(model(x).sum(), [*model.parameters()]), expected_gradients)
    assert rnnkit.torch.restore(model) == ("cell",)
    assert type(model.cell) is nn.LSTMCell and torch.equal(model(x), expected)


@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell"])
def test_born_accelerated(kind):
    with rnnkit.torch.accelerated():
        own = getattr(nn, kind)(F, H)
    x, hx = step(kind)
    assert type(own) is getattr(rnnkit.torch, kind)
    found = own(x, hx)
    assert own._rnnkit_cache.flat is not None  # its parameters are neighbours
    loaded = pickle.loads(pickle.dumps(own))
    assert type(loaded) is getattr(nn, kind)
    assert_close(flat(loaded(x, hx)), flat(found))
    assert_equal(flat(copy.deepcopy(own)(x, hx)), flat(found))


def test_an_rnn_cell_is_left():
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
def test_in_graphs_and_transforms(kind):
    """Dynamo takes cells into its graphs without a switch."""
    import torch._dynamo

    torch._dynamo.reset()
    own, (x, hx) = cell(kind), step(kind)
    compiled = torch.compile(own, backend="aot_eager", fullgraph=True)
    assert_equal(flat(compiled(x, hx)), flat(own(x, hx)))
    assert_equal(gradients(compiled, x, hx, steps=1), gradients(own, x, hx, steps=1))
    assert_close(gradients(compiled, x, hx), gradients(own, x, hx))  # which adds them up itself
    program = torch.export.export(own, (x.detach(), hx))
    assert_equal(flat(program.module()(x, hx)), flat(own(x, hx)))
    found = torch.func.grad(lambda x: sum(one.sum() for one in flat(own(x, hx))))(x.detach())
    expected = torch.autograd.grad(sum(one.sum() for one in flat(own(x, hx))), x)
    assert_equal([found], expected)


@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell"])
@pytest.mark.parametrize("born", [False, True])
def test_names_that_a_subclass_has(kind, born):
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
    x, hx = step(kind)
    for _ in range(2):
        assert_close(flat(own(x, hx)), flat(expected(x, hx)))
        assert_close(gradients(own, x, hx), gradients(expected, x, hx))


def test_a_nonlinearity_that_changes():
    layer, x = rnnkit.torch.RNN(F, H), torch.randn(N, F)
    for _ in range(2):
        layer(x[None])
    layer.mode = "RNN_RELU"
    restored = copy.deepcopy(layer)
    rnnkit.torch.restore(restored)
    torch.testing.assert_close(layer(x[None])[0], restored(x[None])[0])


def test_autocast():
    own, (x, hx) = cell("GRUCell"), step("GRUCell")
    expected, rounded = own(x, hx), own(x.bfloat16().float(), hx)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(own(x, hx), expected) and torch.equal(own(x.bfloat16(), hx), rounded)


def test_subclasses_and_parametrizations():
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
        torch.testing.assert_close(own(x, hx), expected)
        assert_close(gradients(own, x, hx), expected_gradients)
    rnnkit.torch.restore(own)
    assert torch.equal(own(x, hx), expected)
