"""The engine under autograd's rules: what may be changed in place, run again, recomputed, compiled."""

import gc
import io
import weakref

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


@pytest.mark.filterwarnings("error")
def test_output_can_be_changed_in_place(gru, x):
    expected = torch.autograd.grad(gru(x)[0].mul(2).relu().sum(), list(gru.parameters()))
    output, _ = gru(x)
    output.mul_(2).relu_()
    assert_equal(torch.autograd.grad(output.sum(), list(gru.parameters())), expected)
    output, _ = gru(x)
    output.detach().numpy()[:] = 7.0  # nobody's but the caller's
    found = torch.autograd.grad((2 * output).sum(), gru.weight_hh_l0)
    assert_equal(found, torch.autograd.grad((2 * gru(x)[0]).sum(), gru.weight_hh_l0))


@pytest.mark.parametrize("options", [{}, {"lengths": [T] * N}], ids=["small", "any"])
@pytest.mark.parametrize("what", ["input", "weight"])
def test_changing_what_backward_reads_is_an_error(gru, x, what, options):
    data = x.detach().clone()
    output, _ = gru(data, **options)
    with torch.no_grad():
        (data if what == "input" else gru.weight_hh_l0).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


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
        output, _ = module(x, hx, **({"lengths": [steps] * N} if way == "long" and module is own else {}))
        before = module.get_parameter(name).detach().clone() if name else None
        if name:
            with torch.no_grad():
                module.get_parameter(name).fill_(torch.nan)
        wanted = [*leaves, *(one for one in module.parameters() if one.requires_grad)]
        try:
            return torch.autograd.grad(output.sum(), wanted)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
        finally:
            if name:
                with torch.no_grad():
                    module.get_parameter(name).copy_(before)

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


def test_input_of_frozen_weights_may_change_before_backward(gru, x):
    data, hx = x.detach().clone(), torch.zeros(4, N, H, requires_grad=True)
    gru.requires_grad_(False)
    for trained in (None, gru.bias_hh_l0, gru.weight_ih_l1):
        if trained is not None:
            trained.requires_grad_(True)
        leaves = [one for one in (hx, trained) if one is not None]
        expected = torch.autograd.grad(gru(data, hx)[0].sum(), leaves)
        for options in ({}, {"lengths": [T] * N}):  # the general path, too
            given = data.clone()
            output, _ = gru(given, hx, **options)
            given.fill_(torch.nan)
            assert_equal(torch.autograd.grad(output.sum(), leaves), expected)
    gru.weight_ih_l0_reverse.requires_grad_(True)
    output, _ = gru(data, hx)
    data.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_backward_reads_weights_copied_by_saved_tensor_hooks(x):
    """As in PyTorch; no version counter tells, if the weights change meanwhile."""
    own = rnnkit.torch.GRU(F, H)
    expected = gradients(own, x)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda one: one):
        results = own(x)
    with torch.no_grad():
        own.weight_hh_l0.mul_(2)
    assert_equal(torch.autograd.grad(loss_of(results), [x, *own.parameters()]), expected)


def test_initial_states_may_change_after_the_call(gru, x):
    hx = torch.randn(4, N, H)
    expected = torch.autograd.grad(gru(x, hx)[0].sum(), x)
    output, _ = gru(x, hx)
    hx.zero_()
    assert_equal(torch.autograd.grad(output.sum(), x), expected)


def test_only_tensors_that_require_a_gradient_get_one(gru, x):
    output, hx = gru.requires_grad_(False)(x.detach())
    assert not output.requires_grad and not hx.requires_grad
    gru.bias_hh_l1.requires_grad_(True)
    gru(x.detach())[0].sum().backward()
    assert {name for name, one in gru.named_parameters() if one.grad is not None} == {"bias_hh_l1"}
    gru.bias_hh_l1.requires_grad_(False)
    hx = torch.zeros(4, N, H, requires_grad=True)
    assert torch.autograd.grad(gru(x.detach(), hx)[1].sum(), hx)[0].any()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_workspace_is_kept_only_with_gradients(gru, x, mode):
    lengths = torch.full((N,), len(x))  # the general path
    expected, states = gru(x, lengths=lengths)
    with mode():
        output, hx = gru(x, lengths=lengths)
    assert torch.equal(output, expected) and torch.equal(hx, states)
    assert not output.requires_grad and output.grad_fn is None
    assert not Memory.shelf(gru._rnnkit_desc(0.0), N).idle  # the first one's is in use


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

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.readout = rnnkit.torch.LSTM(F, H), nn.Linear(H, 2)

        def forward(self, x):
            return self.readout(self.rnn(x + 1)[0]).relu()

    model = Model()
    expected, found = model(x), torch.compile(model, backend="eager")(x)
    torch.testing.assert_close(found, expected)
    both = [torch.autograd.grad(one.sum(), [x, *model.parameters()]) for one in (found, expected)]
    torch.testing.assert_close(*both)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traces_are_refused(gru, x):
    """Results of the engine would be constants of a trace."""
    traces = (
        lambda: torch.jit.trace(gru, x.detach()),
        lambda: torch.onnx.export(gru, (x.detach(),), io.BytesIO(), dynamo=False),
    )
    for trace in traces:
        for mode in (torch.no_grad, torch.enable_grad):
            with mode(), pytest.raises(rnnkit.BackendError, match=says("forward: call", "traced")):
                trace()


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
