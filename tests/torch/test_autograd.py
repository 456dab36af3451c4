"""The engine under autograd's rules: what may be changed in place, run again, recomputed, compiled."""

import copy
import gc
import io
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from messages import says
from small_calls import assert_same
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_tensors import assert_equal

import rnnkit
import rnnkit.torch
from rnnkit.call.memory import Memory
from rnnkit.cpu import prepared
from rnnkit.cpu.backward import PreparedBackward

T, N, F, H = 6, 4, 3, 5
LAYERS = {"num_layers": 2, "bidirectional": True}


@pytest.fixture
def gru():
    torch.manual_seed(0)
    return rnnkit.torch.GRU(F, H, **LAYERS)


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(T, N, F, requires_grad=True)


def loss_of(results):
    output, hx = results
    return output.sin().sum() + hx.cos().sum()


def gradients(module, x):
    return torch.autograd.grad(loss_of(module(x)), [x, *module.parameters()])


@pytest.mark.parametrize("way", ["small", "long"])
@pytest.mark.parametrize(("kind", "options", "steps"), [("GRU", LAYERS, T), ("GRU", LAYERS, 1), ("RNN", {}, T)])
@pytest.mark.parametrize("wanted", ["", "x", "hx", "frozen"])
def test_parameters_that_backward_reads_match_pytorch(kind, options, steps, wanted, way):
    """The others may change before backward, whose gradients are bit-identical."""
    torch.manual_seed(0)
    plain, own = (getattr(library, kind)(F, H, **options) for library in (nn, rnnkit.torch))
    rows = own.num_layers * (1 + own.bidirectional)
    x = torch.randn(steps, N, F, requires_grad=wanted in ("x", "frozen"))
    hx = torch.randn(rows, N, H, requires_grad=True) if wanted == "hx" else None
    leaves = [one for one in (x, hx) if one is not None and one.requires_grad]

    def outcome(module, name=None):
        options = {"lengths": [steps] * N} if way == "long" and module is own else {}
        module = copy.deepcopy(module)
        output, _ = module(x, hx, **options)
        if name:
            with torch.no_grad():
                module.get_parameter(name).fill_(torch.nan)
        wanted = [*leaves, *(one for one in module.parameters() if one.requires_grad)]
        try:
            return torch.autograd.grad(output.sum(), wanted)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)

    for module in (plain, own):
        module.requires_grad_(wanted != "frozen")
    expected, free = outcome(own), 0
    for name, _ in own.named_parameters():
        found = outcome(own, name)
        assert (found is None) == (outcome(plain, name) is None), name
        if found is not None:
            free += 1
            assert_equal(found, expected)
    assert free


@pytest.mark.parametrize("options", [{}, {"lengths": [T] * N}], ids=["small", "any"])
def test_input_of_frozen_weights_may_change_before_backward(gru, x, options):
    data, hx = x.detach().clone(), torch.zeros(4, N, H, requires_grad=True)
    gru.requires_grad_(False)
    for trained in ((), (gru.bias_hh_l0,), (gru.weight_ih_l1,)):
        leaves = [hx, *(one.requires_grad_(True) for one in trained)]
        expected = torch.autograd.grad(gru(data, hx)[0].sum(), leaves)
        given = data.clone()
        output, _ = gru(given, hx, **options)
        given.fill_(torch.nan)
        assert_equal(torch.autograd.grad(output.sum(), leaves), expected)
    gru.weight_ih_l0_reverse.requires_grad_(True)
    output, _ = gru(data, hx, **options)
    data.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_workspace_is_kept_only_with_gradients(gru, x, mode):
    with mode():
        gru(x, lengths=[T] * N)  # the general path
    assert not Memory.shelf(gru._rnnkit_desc(0.0), N).idle


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_is_bit_identical(gru, x, reentrant):
    expected = gradients(gru, x)
    checkpoint(lambda x: loss_of(gru(x)), x, use_reentrant=reentrant).backward()
    assert_equal([x.grad, *(one.grad for one in gru.parameters())], expected)


def test_gradients_accumulate_over_backward_calls(gru, x):
    expected = gradients(gru, x)
    for _ in range(2):
        loss_of(gru(x)).backward()
    assert_equal([one.grad for one in gru.parameters()], [2 * one for one in expected[1:]])


@pytest.fixture
def no_call_is_prepared(monkeypatch):
    """All run with a workspace."""
    monkeypatch.setattr(prepared, "is_prepared", lambda *size: False)


def test_released_workspace_is_reused(no_call_is_prepared, gru, x):
    output, _ = gru(x)
    shelf = Memory.shelf(gru._rnnkit_desc(0.0), x.shape[1])
    assert not shelf.idle
    output.sum().backward()
    (first,) = shelf.idle  # dropped with what autograd saved, though the output is still there
    again = gru(x)
    assert not shelf.idle
    del again
    gc.collect()
    assert list(shelf.idle) == [first]


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, LAYERS])
def test_input_gradient_is_computed_only_if_required(no_call_is_prepared, monkeypatch, options, x):
    """The other gradients are bit-identical without it."""
    own = rnnkit.torch.GRU(F, H, **options)
    parameters, sizes, run = list(own.parameters()), [], PreparedBackward.run
    noted = lambda self, arrays, dx: (sizes.append(dx.size), run(self, arrays, dx))  # noqa: E731
    expected = torch.autograd.grad(own(x.detach().requires_grad_())[0].square().sum(), parameters)
    monkeypatch.setattr(PreparedBackward, "run", noted)
    found = torch.autograd.grad(own(x.detach())[0].square().sum(), parameters)
    assert sizes == [0]
    assert_same(found, expected)


def test_module_is_freed_after_backward(x):
    own = rnnkit.torch.GRU(F, H)
    own(x)[0].sum().backward()
    gone = weakref.ref(own)
    del own
    gc.collect()
    assert gone() is None


def test_torch_compile_breaks_the_graph_at_the_module(x):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(F, F), rnnkit.torch.LSTM(F, H))
    expected, found = model(x)[0], torch.compile(model, backend="eager")(x)[0]
    torch.testing.assert_close(found, expected)
    both = [torch.autograd.grad(one.sum(), [x, *model.parameters()]) for one in (found, expected)]
    torch.testing.assert_close(*both)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traces_are_refused(gru, x):
    """Results of the engine would be constants of a trace."""
    for trace in (torch.jit.trace, partial(torch.onnx.export, f=io.BytesIO(), dynamo=False)):
        for mode in (torch.no_grad, torch.enable_grad):
            with mode(), pytest.raises(rnnkit.BackendError, match=says("forward: call", "traced")):
                trace(gru, (x.detach(),))


def test_inputs_are_freed_after_the_call(gru):
    """The workspace that is kept for the next call releases them, too."""
    arrays = [np.ones(shape, np.float32) for shape in ((T, N, F), (4, N, H))]
    gone = [weakref.ref(array) for array in arrays]
    results = gru(*map(torch.from_numpy, arrays))
    del arrays, results
    assert all(one() is None for one in gone)


def test_default_device_does_not_change_the_engines(x):
    own = rnnkit.torch.GRU(F, H, 2, dropout=0.5)
    with torch.device("meta"):
        output, _ = own(x)
    output.sum().backward()
    assert own.weight_hh_l0.grad.device.type == "cpu"
