"""Calls that the engine cannot run: transforms of torch.func, forward mode, other devices.

The engine itself is the reference: its gradients, call by call.
"""

from functools import partial
from operator import itemgetter

import pytest
import torch
from differentiated import CLOSE, EACH, F, H, N, T, drawn, inputs, module, total, weights_of
from messages import raises, says
from one_step import Turning
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_map
from torch_tensors import assert_equal, flat

import rnnkit.torch
from rnnkit import RNNDescriptor
from rnnkit.cells import SLSTM, RegularizedLSTM
from rnnkit.torch import FallbackWarning, Recurrent, calls, equations, fallback

IGNORED = "ignore::rnnkit.torch.FallbackWarning", "ignore:`torch.jit.script` is deprecated"  # when PyTorch imports it
pytestmark = pytest.mark.filterwarnings(*IGNORED)


@EACH
def test_mapped_calls_are_those_of_the_engine(kind):
    """Over inputs, and over weights."""
    own, xs = module(kind), inputs(kind, 3)
    with pytest.warns(FallbackWarning, match=says("forward: this call", "torch.vmap")):
        found = vmap(own)(xs)
    for one, *several in zip(flat(found), *(flat(own(x)) for x in xs), strict=True):
        torch.testing.assert_close(one, torch.stack(several), **CLOSE)
    weights = weights_of(own)
    each = weights, {name: one / 2 for name, one in weights.items()}
    found = vmap(partial(total, own), (0, None))(tree_map(lambda *ones: torch.stack(ones), *each), xs[0])
    torch.testing.assert_close(found, torch.stack([total(own, one, xs[0]) for one in each]), **CLOSE)


@EACH
def test_each_sample_has_a_gradient_of_its_own(kind):
    own, xs = module(kind), inputs(kind, 3)
    weights, gradient = weights_of(own), grad(partial(total, own), (0, 1))
    found = vmap(gradient, (None, 0))(weights, xs)
    for number, x in enumerate(xs):
        torch.testing.assert_close(tree_map(itemgetter(number), found), gradient(weights, x), **CLOSE)


@pytest.mark.parametrize("kind", ["LSTM", "own cell"])
def test_each_sample_has_options_of_its_own(kind):
    """Lengths, resets and masks, whose values are not known while the call is mapped."""
    own, xs, mask = module(kind), inputs(kind, 3), drawn(3, T, N) < 0.7
    lengths, resets = torch.tensor([[4, 1, 3], [2, 0, 4], [4, 4, 4]]), mask & (drawn(3, N, T).mT < 0.2)
    xs[0, -1, 1] = float("nan")  # beyond its length

    def loss(weights, x, lengths, resets, mask):
        return total(own, weights, x, lengths=lengths, resets=resets, mask=mask)

    options = lengths, resets, mask
    found = vmap(grad(loss), (None, 0, 0, 0, 0))(weights_of(own), xs, *options)
    for number, x in enumerate(xs):
        expected = grad(loss)(weights_of(own), x, *(one[number] for one in options))
        torch.testing.assert_close(tree_map(itemgetter(number), found), expected, **CLOSE)
    with raises(ValueError, "unrolled: lengths | (batch_size=3,) | (4,)"):
        vmap(partial(total, own, weights_of(own)), (0, None, 0))(xs, None, torch.ones(3, 4, dtype=torch.int64))


@EACH
def test_jacobians_are_rows_of_the_engines_gradients(kind):
    """By reverse and forward mode, and by both modes without torch.func."""
    own, x = module(kind), inputs(kind)
    output = lambda x: flat(own(x))[0]  # noqa: E731
    rows = torch.eye(output(x).numel(), dtype=torch.float64).view(-1, *output(x).shape)
    leaf = x.clone().requires_grad_()
    expected = torch.stack([torch.autograd.grad(output(leaf), leaf, row)[0] for row in rows])
    expected = expected.view(*output(x).shape, *x.shape)
    for transform in jacrev, jacfwd:
        with pytest.warns(FallbackWarning, match="torch.vmap"):
            torch.testing.assert_close(transform(output)(x), expected, **CLOSE)
    (found,) = torch.autograd.grad(output(leaf), leaf, rows, is_grads_batched=True)
    torch.testing.assert_close(found.view_as(expected), expected, **CLOSE)
    tangent = drawn(*x.shape)
    product = torch.tensordot(expected, tangent, x.dim())
    with pytest.warns(FallbackWarning, match="forward-mode"):
        torch.testing.assert_close(jvp(output, (x,), (tangent,))[1], product, **CLOSE)
    with forward_ad.dual_level():
        found = output(forward_ad.make_dual(x, tangent))
        torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, product, **CLOSE)
        assert forward_ad.unpack_dual(output(x)).tangent is None  # the engine ran


def test_forward_mode_reaches_weights_and_backward():
    own, x, tangent = module("LSTM"), inputs("LSTM"), drawn(16 * H // 4, F)
    name, weights = "weight_ih_l0", weights_of(own)
    along = lambda w: total(own, weights | {name: w}, x)  # noqa: E731
    expected = (grad(along)(weights[name]) * tangent).sum()
    torch.testing.assert_close(jvp(along, (weights[name],), (tangent,))[1], expected, **CLOSE)
    leaf = x.clone().requires_grad_()
    output, _ = own(leaf)
    ones, dy = torch.ones_like(output), drawn(*output.shape)
    expected = torch.autograd.grad(output, leaf, dy, retain_graph=True)[0]
    with forward_ad.dual_level():
        (found,) = torch.autograd.grad(output, leaf, forward_ad.make_dual(ones, dy))
        torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, expected, **CLOSE)


def test_autocast_does_not_reach_the_operations():
    """They compute in the dtype of the parameters, as the engine does; to bfloat16 it rounds what products multiply."""
    for kind in "LSTM", "own cell":
        own, x = module(kind).float(), inputs(kind).float().requires_grad_()
        penalty = lambda: torch.autograd.grad(own(x)[0].sum(), x, create_graph=True)[0].square().sum()  # noqa: B023, E731
        expected = torch.autograd.grad(penalty(), x)
        with torch.autocast("cpu", dtype=torch.float16):
            found = torch.autograd.grad(penalty(), x)
            assert vmap(own)(x[None])[0].dtype == torch.float32
        assert_equal(found, expected)


@EACH
def test_hessians_are_differences_of_the_engines_gradients(kind):
    own, x, eps = module(kind), inputs(kind), 1e-6
    loss = partial(total, own, weights_of(own))
    found = hessian(loss)(x)
    by_autograd = (torch.autograd.functional.hessian(loss, x, vectorize=one) for one in (False, True))
    for way in (jacrev(jacrev(loss))(x), *by_autograd):
        torch.testing.assert_close(way, found, **CLOSE)
    direction = drawn(*x.shape)
    gradients = [grad(loss)(x + sign * eps * direction) for sign in (1, -1)]
    expected = (gradients[0] - gradients[1]) / (2 * eps)
    torch.testing.assert_close(torch.tensordot(found, direction, x.dim()), expected, rtol=1e-6, atol=1e-8)


def test_mapped_calls_draw_numbers_of_their_own():
    own = rnnkit.torch.GRU(F, 64, 2, dropout=0.25)
    x = torch.randn(T, N, F).expand(5, T, N, F)
    same, different = (vmap(own, randomness=one)(x)[0] for one in ("same", "different"))
    assert torch.equal(same[0], same[1]) and not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(own)(x)
    cell = RegularizedLSTM(zoneout=0.25, recurrent_dropout=0.5)
    desc = Recurrent(cell, F, 64, 2, dropout=0.25)._rnnkit_desc(0.25)
    masks, noises = equations.draw(desc, (50, 20), torch.zeros(1, dtype=torch.float64))
    assert masks[0].shape == (50, 20, 64) and masks[0].dtype == torch.float64
    torch.testing.assert_close(masks[0].unique(), torch.tensor([0, 1 / 0.75], dtype=torch.float64))
    assert abs(masks[0].mean() - 1) < 0.02
    for one in desc.cell.declaration.noises:
        found, rate = noises[one.name], getattr(cell, one.rate)
        assert found.shape == ((2, 50, 20, 64) if one.per_step else (2, 20, 64))
        assert abs(found.mean() - (rate if one.choice else 1)) < 0.1 and len(found.unique()) == 1 + (rate > 0)


def test_other_devices_run_pytorchs_module_or_the_equations():
    """Of the meta device only shapes are known."""
    x = torch.zeros(T, N, F, device="meta")
    for kind in ("LSTM", "GRU"):
        own, plain = (getattr(library, kind)(F, H, 2, device="meta") for library in (rnnkit.torch, nn))
        with pytest.warns(FallbackWarning, match=says("forward: this call", "does not run on meta")):
            found = own(x)
        assert [one.shape for one in flat(found)] == [one.shape for one in flat(plain(x))]
        output, *_, states = own(x, lengths=[4, 2, 0], all_states=True)
        assert output.shape == (T, N, H) and flat(states)[0].shape == (T, 2, N, H) and output.device.type == "meta"
    assert rnnkit.torch.LSTMCell(F, H, device="meta")(x[0])[1].shape == (N, H)
    found = Recurrent(SLSTM, F, H, device="meta")(x)
    assert [tuple(one.shape) for one in flat(found)] == [(T, N, H), *[(1, N, H)] * 4]


def test_what_no_gpu_runs_is_known(monkeypatch):
    """Of tensors without values in place of those of a GPU."""
    with FakeTensorMode():
        x = torch.empty(T, N, F, device="cuda")
    monkeypatch.setattr(fallback, "_NO_CUPY", None)
    marks, one, cell = torch.ones(T, N), module("GRU"), module("own cell")
    for own, options in ((one, {}), (one, {"lengths": [4, 3, 2]}), (one, {"mask": marks}), (cell, {"resets": marks})):
        assert fallback.of_place(own, x, None, calls.Options(**options)) is None
    packed = pack_padded_sequence(torch.zeros(T, N, F), [4, 3, 2])
    assert fallback.of_place(one, x, packed, calls.Options()) is None
    half = RNNDescriptor(cell.cell, F, H, dtype="float16")
    assert fallback.of_device(half, (T, N), x.device) == "only cuDNN computes in half precision"
    monkeypatch.setattr(fallback, "_NO_CUPY", "none")
    assert fallback.of_place(cell, x, None, calls.Options()) == "none"
    assert fallback.of_place(one, x, None, calls.Options()) is None


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp", "second"])
def test_compiled_functions_are_transformed(backend, transform):
    """Within a graph, where calls are operators."""
    torch.compiler.reset()
    own, x = module("GRU"), inputs("GRU")
    loss = partial(total, own, weights_of(own))
    function = {
        "grad": grad(loss),
        "vmap": lambda x: vmap(grad(loss))(torch.stack([x, 2 * x])),
        "jvp": lambda x: jvp(loss, (x,), (x,))[1],
        "second": grad(lambda x: grad(loss)(x).sin().sum()),
    }[transform]
    with torch._dynamo.config.patch(allow_rnn=True), pytest.warns(FallbackWarning, match="forward: this call"):
        found = torch.compile(function, backend=backend)(x)
    torch.testing.assert_close(found, function(x), **CLOSE)


def test_function_without_a_form_is_named():
    own, x = Recurrent(Turning, F, H), torch.randn(T, N, F)
    own(x)
    with raises(TypeError, "step: cell Turning: atan | form for torch | @derivative(atan, torch=...)"):
        vmap(own)(x[None])
