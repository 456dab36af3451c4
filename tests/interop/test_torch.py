"""from_torch and to_torch: modules, state dicts, models around them, and what is refused."""

from functools import partial

import numpy as np
import pytest
import torch
from foreign import assert_outputs, assert_same_bits, assert_same_network, net_of, problem_of
from messages import says
from refused import refusals

import rnnkit
from rnnkit.interop import from_torch, to_torch

KINDS = {  # a module, its options, and the fields of its problem
    "tanh": (torch.nn.RNN, {}, dict(mode="rnn_tanh")),
    "relu": (torch.nn.RNN, dict(nonlinearity="relu"), dict(mode="rnn_relu")),
    "gru": (torch.nn.GRU, {}, dict(mode="gru")),
    "lstm": (torch.nn.LSTM, {}, dict(mode="lstm")),
    "lstm-projected": (torch.nn.LSTM, dict(proj_size=3), dict(mode="lstm", proj_size=3)),
}


def make_module(kind, **options):
    cls, own, _ = KINDS[kind]
    torch.manual_seed(0)
    return cls(7, 5, **{"num_layers": 2, **own, **options})


class Model(torch.nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.encoder = torch.nn.ModuleDict({"rnn": rnn})
        self.head = torch.nn.Linear(5, 2)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_module_becomes_its_network(kind, dtype, bidirectional, bias, num_layers):
    shared = dict(num_layers=num_layers, bidirectional=bidirectional)
    module = make_module(kind, **shared, bias=bias, dtype=getattr(torch, dtype))
    problem = problem_of(**KINDS[kind][2], **shared, bias="both" if bias else "none", dtype=dtype)
    net = from_torch(module)
    assert net.desc == problem.desc
    states = [torch.from_numpy(state) for state in (problem.hx, problem.cx) if state is not None]
    with torch.no_grad():
        y, last = module(torch.from_numpy(problem.x), states[0] if len(states) == 1 else tuple(states))
    assert_outputs(net, problem, y, last if len(states) == 2 else [last])
    arrays = to_torch(net)
    assert arrays.keys() == module.state_dict().keys()
    for name, tensor in module.state_dict().items():
        assert_same_bits(name, arrays[name], tensor)
    options = {} if len(states) == 2 or kind == "gru" else dict(nonlinearity=kind)
    assert_same_network(from_torch(module.state_dict(), **options), net)
    assert_same_network(from_torch(arrays, **options), net)


@pytest.mark.parametrize("prefix", ["encoder.rnn", "encoder.rnn."])
def test_prefix_selects_a_module_of_a_model(prefix):
    module = make_module("lstm")
    net = from_torch(module)
    assert_same_network(from_torch(Model(module), prefix), net)
    assert_same_network(from_torch(Model(module).state_dict(), prefix), net)
    assert to_torch(net, prefix).keys() == {f"encoder.rnn.{name}" for name in module.state_dict()}


def test_dropout_is_read_from_a_module_or_given_for_a_dict():
    module = make_module("gru", dropout=0.25)
    assert from_torch(module).desc.dropout == 0.25
    assert from_torch(module.state_dict()).desc.dropout == 0
    assert from_torch(module.state_dict(), dropout=0.5).desc.dropout == 0.5


def test_weights_are_copies():
    module = make_module("gru")
    net, before = from_torch(module), module.weight_hh_l0.detach().clone()
    net.weights[:] = 3
    assert torch.equal(module.weight_hh_l0, before)
    to_torch(net)["weight_hh_l0"][:] = 4
    assert (net.weights == 3).all()


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("kind", KINDS)
def test_network_is_written_into_a_module(kind):
    problem = problem_of(**KINDS[kind][2], dtype="float32")
    net, module = net_of(problem), make_module(kind)
    parameters = list(module.parameters())
    to_torch(net, module=module)
    assert_same_network(from_torch(module), net)
    assert all(a is b for a, b in zip(module.parameters(), parameters, strict=True))
    model = Model(make_module(kind))
    to_torch(net, "encoder.rnn", module=model)
    assert_same_network(from_torch(model, "encoder.rnn"), net)


@pytest.mark.parametrize("bias", ["input", "recurrent"])
def test_missing_bias_is_written_as_zeros(bias):
    problem = problem_of(mode="gru", bias=bias, dtype="float32")
    module = make_module("gru")
    arrays = to_torch(net_of(problem), module=module)
    assert not arrays["bias_hh_l0" if bias == "input" else "bias_ih_l0"].any()
    with torch.no_grad():
        y, hy = module(torch.from_numpy(problem.x), torch.from_numpy(problem.hx))
    assert_outputs(net_of(problem), problem, y, [hy])


CELLS = {
    "tanh": (torch.nn.RNNCell, {}),
    "relu": (torch.nn.RNNCell, dict(nonlinearity="relu")),
    "gru": (torch.nn.GRUCell, {}),
    "lstm": (torch.nn.LSTMCell, {}),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_cell_becomes_a_network_of_one_layer(kind, bias):
    """And the other way round, also inside a model and as a state dict."""
    make, options = CELLS[kind]
    cell, x = make(7, 5, bias=bias, **options), torch.randn(3, 2, 7)
    net, state = from_torch(cell), None
    with torch.no_grad():
        for one in x:
            state = cell(one, state)
    found = net.infer(x.numpy())
    expected = state if kind == "lstm" else (state,)
    for own, other in zip(found[1:], expected, strict=False):
        np.testing.assert_allclose(own[0], other.numpy(), rtol=0, atol=1e-6)
    more = dict(nonlinearity="relu") if kind == "relu" else {}
    assert_same_network(from_torch(cell.state_dict(), **more), net)
    assert_same_network(from_torch(Model(cell), "encoder.rnn"), net)
    other = make(7, 5, bias=bias, **options)
    to_torch(net, module=other)
    assert all(torch.equal(other.state_dict()[name], tensor) for name, tensor in cell.state_dict().items())


@pytest.mark.filterwarnings("ignore")  # of tracing
@pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, torch.zeros(4, 2, 7))])
def test_scripted_model_is_read(make):
    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = make_module("gru")

        def forward(self, x):
            return self.rnn(x)[0]

    model = Plain().eval()
    assert_same_network(from_torch(make(model), "rnn"), from_torch(model.rnn))


NORMS = {
    "weight_norm": torch.nn.utils.weight_norm,
    "spectral_norm": torch.nn.utils.spectral_norm,
    "parametrized weight_norm": torch.nn.utils.parametrizations.weight_norm,
    "parametrized spectral_norm": torch.nn.utils.parametrizations.spectral_norm,
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:RNN module weights are not part of single")
@pytest.mark.parametrize("name", NORMS)
def test_present_weights_of_a_norm_are_read(name):
    module = NORMS[name](make_module("lstm").eval(), "weight_hh_l0")
    x = torch.randn(4, 2, 7)
    with torch.no_grad():
        y = module(x)[0]
    for source, prefix in ((module, ""), (Model(module), "encoder.rnn")):
        np.testing.assert_allclose(from_torch(source, prefix).infer(x.numpy()).y, y.numpy(), rtol=0, atol=1e-6)
    cure = says("from_torch: source", "weight_hh_l0", "weight_norm", "pass the module itself")
    with pytest.raises(ValueError, match=cure):
        from_torch(module.state_dict())


def gru_entries(**changes):
    """The entries of a GRU(3, 2) of two layers."""
    arrays = to_torch(rnnkit.GRU(3, 2, num_layers=2, seed=0))
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


def zeros(*shape, dtype="f4"):
    return np.zeros(shape, dtype)


DESC, WIDE, MODEL = "RNNDescriptor('gru', 3, 2, num_layers=", zeros(6, 3), Model(make_module("gru"))
GONE = [f"{name}_l{n}_reverse" for n in (0, 1) for name in ("weight_ih", "weight_hh", "bias_ih")] + ["bias_hh_l1"]
REVERSE = " | ".join([f"16 | {DESC}2, bidirectional=True) | 8 | missing | bias_hh_l0_reverse", *GONE])
REST, KNOWN = "weight_hh_l2 | bias_ih_l2 | bias_hh_l2", "nn.RNN | nn.GRU | nn.LSTM"
FROM_TORCH = [
    (gru_entries(weight_hh_l1=None), f"source | 8 | {DESC}2) | 7 | missing: weight_hh_l1"),
    (gru_entries(weight_ih_l0=None), "source | layer 0 | 1 | missing: weight_ih_l0"),
    (gru_entries(bias_hh_l1=None, bias_hh_l1_reverse=zeros(6)), f"source | {REVERSE}"),
    (gru_entries(extra=WIDE), f"source | {KNOWN} | extra"),
    (gru_entries(weight_ih_l2=WIDE), f"source | 12 | {DESC}3) | 9 | missing | {REST}"),
    (gru_entries(weight_hh_l0=WIDE), "weight_hh_l0 | 3 | 9 | 12 | 1 | 4 | hidden_size=3 | 6"),
    (gru_entries(weight_hh_l0=zeros(6)), "weight_hh_l0 | (rows, columns) | (6,)"),
    (gru_entries(weight_hh_l1=WIDE), "weight_hh_l1 | (3*hidden_size=6, hidden_size=2) | (6, 3)"),
    (gru_entries(weight_ih_l1=WIDE), "weight_ih_l1 | (3*hidden_size=6, 1*hidden_size=2) | (6, 3)"),
    (gru_entries(bias_ih_l1=zeros(5)), "bias_ih_l1 | (3*hidden_size=6,) | (5,)"),
    (gru_entries(bias_ih_l1=zeros(6, dtype="f8")), "TypeError bias_ih_l1 | float32 | weight_ih_l0 | float64"),
    (gru_entries(bias_ih_l1=zeros(6, dtype="i4")), "TypeError bias_ih_l1 | float32 | float64 | int32"),
    (gru_entries(bias_ih_l1=torch.zeros(6).bfloat16()), "TypeError bias_ih_l1 | float32 | float64 | bfloat16"),
    (gru_entries(bias_ih_l1=torch.zeros(6).half()), "TypeError bias_ih_l1 | float32 | float64 | float16"),
    (MODEL.state_dict(), "source | weight_hh_l0 | 10 | prefix='encoder.rnn'"),
    (torch.nn.Linear(2, 3), f"source | weight_hh_l0 | 2 | {KNOWN}"),
    ({}, f"source | weight_hh_l0 | 0 | {KNOWN}"),
    (3, "TypeError source | PyTorch | Module | dict | int"),
    (torch.optim.SGD([torch.zeros(1)]), "TypeError source | PyTorch | Module | dict | torch.optim.sgd.SGD"),
]
OPTIONS = [
    (MODEL, dict(prefix="rnn"), "source | rnn.weight_hh_l0 | 10 | prefix='encoder.rnn'"),
    (make_module("gru"), dict(dropout=0.5), "dropout | module | 0.5"),
    (make_module("relu"), dict(nonlinearity="relu"), "nonlinearity | module | relu"),
    (gru_entries(), dict(nonlinearity="tanh"), 'nonlinearity | mode="gru" | tanh'),
    (make_module("tanh").state_dict(), dict(nonlinearity="sigmoid"), "nonlinearity | tanh | relu | sigmoid"),
]


@refusals(
    from_torch=[
        *((partial(from_torch, source), text) for source, text in FROM_TORCH),
        *((partial(from_torch, source, **more), text) for source, more, text in OPTIONS),
    ]
)
def test_from_torch_refuses_unfit_sources(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()


GRU, NO_BIAS = rnnkit.GRU(3, 2), rnnkit.GRU(3, 2, bias="none")
BIASES = "bias_ih_l0 | bias_hh_l0"
TO_TORCH = [
    (rnnkit.LSTM(3, 2, cell_clip=(-1, 1)), None, "net.desc.cell_clip | None | (-1.0, 1.0) | PyTorch"),
    (rnnkit.GRU(3, 2, reset_after=False), None, "net.desc.reset_after | True | False | PyTorch"),
    (rnnkit.GRU(2, 2, input_mode="skip"), None, "net.desc.input_mode | linear | skip | PyTorch"),
    (rnnkit.GRU(3, 2, dtype="float16"), None, "net.desc.dtype | float32 | float64 | float16 | PyTorch"),
    ("net", None, "TypeError net | rnnkit.RNN | GRU | LSTM | str"),
    (GRU, "module", "TypeError module | PyTorch | Module | str"),
    (GRU, torch.nn.GRU(3, 2, bias=False), f"module | 4 | RNNDescriptor('gru', 3, 2) | 2 | missing | {BIASES}"),
    (NO_BIAS, torch.nn.GRU(3, 2), f"module | 2 | RNNDescriptor('gru', 3, 2, bias='none') | 4 | unknown | {BIASES}"),
    (GRU, torch.nn.LSTM(3, 2), "weight_ih_l0 | (3*hidden_size=6, input_size=3) | (8, 3)"),
    (GRU, torch.nn.GRU(3, 2).double(), "TypeError weight_ih_l0 | float32 | float64 | .float()"),
    (rnnkit.RNN(3, 2, nonlinearity="relu"), torch.nn.RNN(3, 2), "module | mode=\"rnn_relu\" | nonlinearity='tanh'"),
]


@refusals(to_torch=[(partial(to_torch, net, module=module), text) for net, module, text in TO_TORCH])
def test_to_torch_refuses_unfit_modules_and_writes_nothing(call, kind, expected):
    module = call.keywords["module"]
    before = {n: p.detach().clone() for n, p in getattr(module, "named_parameters", dict().items)()}
    with pytest.raises(kind, match=expected):
        call()
    for name, tensor in before.items():
        assert_same_bits(name, module.state_dict()[name], tensor)
