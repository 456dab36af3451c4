"""Calls that are recorded or transformed, which go through an operator of torch.library."""

import io

import pytest
import torch
from combinations import nightly
from differentiated import MODULES, F, H, N, T, drawn, inputs, module
from messages import raises
from several_states import as_given
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.rnn import pack_sequence
from torch_tensors import assert_equal, flat

import rnnkit
import rnnkit.torch

LENGTHS = torch.tensor([4, 0, 2])


class Model(nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x, hx=None, lengths=None):
        y, states = self.rnn(x + 1, hx, lengths=lengths)
        return y * 2, states


def loss(results):
    return sum((one * (1 + index)).sum() for index, one in enumerate(flat(results)))


def gradients(function, leaves, *arguments, **named):
    return torch.autograd.grad(loss(function(*arguments, **named)), leaves, materialize_grads=True)


@pytest.fixture
def whole_graphs():
    """Dynamo takes recurrent modules into its graphs only where this is set."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model(rnnkit.torch.LSTM(F, H, 2, bidirectional=True))


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(T, N, F)


def calls_of(own, kind):
    """Arguments of calls: without options, with initial states, lengths and resets, and with a mask."""
    x = inputs(kind).requires_grad_()
    if "Cell" in kind:
        hx = as_given([one.detach().requires_grad_() for one in flat(own(x))])
        return [(x,), {}], [(x, hx), {}]
    hx = as_given([one.detach().requires_grad_() for one in flat(own(x)[1])])
    marks = drawn(*x.shape[:2]) < -0.5
    lengths = torch.arange(x.shape[0 if own.batch_first else 1]).clamp(max=2)
    return [(x,), {}], [(x, hx), {"lengths": lengths, "resets": marks}], [(x, hx), {"mask": marks}]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Inductor's own
@pytest.mark.parametrize(
    ("kind", "backend"),
    [*((kind, "aot_eager") for kind in MODULES), nightly("LSTM", "inductor")],
    ids=[*MODULES, "inductor"],
)
def test_compiled_graph_is_bit_identical(kind, backend):
    torch.compiler.reset()
    own = module(kind)
    with torch._dynamo.config.patch(allow_rnn="Cell" not in kind):  # cells without a switch
        compiled = torch.compile(own, backend=backend, fullgraph=True)
        for given, options in calls_of(own, kind):
            assert_equal(compiled(*given, **options), own(*given, **options))
            leaves = [*flat(given), *own.parameters()]
            found, expected = (gradients(one, leaves, *given, **options) for one in (compiled, own))
            assert_equal(found, expected)
            with torch.no_grad():
                assert_equal(compiled(*given, **options), own(*given, **options))


def test_compiled_graph_runs_at_any_size(whole_graphs, model, x):
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for seq_len, batch_size in (5, 3), (6, 4), (2, 7):
        x, lengths = torch.randn(seq_len, batch_size, F), torch.arange(batch_size).clamp(max=seq_len)
        assert_equal(compiled(x, None, lengths), model(x, None, lengths))
    torch.compiler.reset()
    assert_equal(torch.compile(model, backend="aot_eager", fullgraph=True)(x[:, 0]), model(x[:, 0]))


def test_dropout_of_a_compiled_graph_follows_pytorchs_seed(whole_graphs, x):
    model = Model(rnnkit.torch.GRU(F, 16, num_layers=2, dropout=0.5))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for mode in torch.enable_grad, torch.no_grad:
        with mode():
            found = []
            for function, seed in ((model, 1), (compiled, 1), (compiled, 2)):
                torch.manual_seed(seed)
                found.append(function(x)[0])
            assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    compiled.eval()
    assert torch.equal(compiled(x)[0], compiled(x)[0])


def test_exported_program_runs_and_trains_at_any_size(model, x):
    steps, rows = torch.export.Dim("steps"), torch.export.Dim("rows")
    dynamic = {"x": {0: steps, 1: rows}, "hx": None, "lengths": {0: rows}}
    program = torch.export.export(model, (x, None, LENGTHS), dynamic_shapes=dynamic)
    targets = [str(node.target) for node in program.graph.nodes]
    assert [target for target in targets if "rnnkit" in target] == ["rnnkit.recurrent.default"]
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    own = torch.export.load(file).module()
    x, lengths = torch.randn(9, 4, F), torch.tensor([9, 2, 0, 3])
    assert_equal(own(x, None, lengths), model(x, None, lengths))
    found, expected = (gradients(one, [*one.parameters()], x, None, lengths) for one in (own, model))
    assert_equal(found, expected)


@pytest.mark.parametrize("kind", ["learned", "LSTMCell"])
def test_exported_module_is_bit_identical(kind):
    own, x = module(kind), inputs(kind)
    assert_equal(torch.export.export(own, (x,)).module()(x), own(x))


@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_make_fx_records_the_gradient(model, x, mode):
    parameters = dict(model.named_parameters())

    def step(x, lengths, *values):
        results = torch.func.functional_call(model, dict(zip(parameters, values, strict=True)), (x, None, lengths))
        return torch.autograd.grad(loss(results), values)

    values = [one.detach().requires_grad_() for one in parameters.values()]
    recorded = make_fx(step, tracing_mode=mode)(x, LENGTHS, *values)
    expected = gradients(model, [*model.parameters()], x, None, LENGTHS)
    assert_equal(recorded(x, LENGTHS, *values), expected)
    assert "recurrent_backward" in str(recorded.graph)


def test_torch_func_grad_is_bit_identical(model, x):
    parameters = {name: one.detach() for name, one in model.named_parameters()}

    def function(parameters, x):
        return loss(torch.func.functional_call(model, parameters, (x,)))

    dparameters, dx = torch.func.grad(function, (0, 1))(parameters, x)
    x.requires_grad_()
    assert_equal([dx, *dparameters.values()], gradients(model, [x, *model.parameters()], x))


@pytest.mark.parametrize("kind", ["LSTM", "LSTMCell"])
def test_torch_func_vjp_of_a_single_result(kind):
    """One result alone has a gradient; and initial states too."""
    own, x = module(kind), inputs(kind)
    results = flat(own(x))
    hx = [one.detach() for one in results[-2:]]
    for index, result in enumerate(results):
        found = torch.func.vjp(lambda *hx: flat(own(x, hx))[index], *hx)[1](torch.ones_like(result))  # noqa: B023
        leaves = [one.requires_grad_() for one in hx]
        assert_equal(found, torch.autograd.grad(flat(own(x, tuple(hx)))[index].sum(), leaves))


def test_what_cannot_be_recorded_is_refused(model, x):
    with raises(rnnkit.BackendError, "forward: input | Tensor | PackedSequence"):
        make_fx(lambda one: model.rnn(pack_sequence([one, one]))[0].data)(x[:, 0])
    with raises(rnnkit.BackendError, "forward: all_states | False | True"):
        torch.export.export(model.rnn, (x,), {"all_states": True})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_operators_pass_opcheck(kind, dtype, x):
    """Schema, fake results, registration of the gradient, and the way through AOT at any size."""
    own, x = getattr(rnnkit.torch, kind)(F, H, dtype=dtype), x.to(dtype)
    names = [f"{kind}_l0" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    parameters = [own.get_parameter(name) for name in names]
    network = kind, F, H, 1, False, True, 0, 0.0, True, False
    given = x.requires_grad_(), None, None, parameters, None, None, None, None, *network
    torch.library.opcheck(torch.ops.rnnkit.recurrent, given)
    plain = x.detach(), None, None, [one.detach() for one in parameters], LENGTHS, None, None, None, *network
    torch.library.opcheck(torch.ops.rnnkit.recurrent_forward, plain, test_utils=("test_schema", "test_faketensor"))
