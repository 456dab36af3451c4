"""from_torch and to_torch: modules, state dicts, models around them, and what is refused."""

import os

import numpy as np
import pytest
from foreign import assert_outputs, assert_refused, assert_same_bits, assert_same_network, net_of, problem_of

import rnnkit
from rnnkit.interop import from_torch, to_torch

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")

KINDS = {
    "tanh": (torch.nn.RNN, {}),
    "relu": (torch.nn.RNN, dict(nonlinearity="relu")),
    "gru": (torch.nn.GRU, {}),
    "lstm": (torch.nn.LSTM, {}),
    "lstm-projected": (torch.nn.LSTM, dict(proj_size=3)),
}
MODES = {"tanh": "rnn_tanh", "relu": "rnn_relu", "gru": "gru", "lstm": "lstm", "lstm-projected": "lstm"}


def make_module(kind, **options):
    cls, own = KINDS[kind]
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
def test_a_module_becomes_its_network(kind, dtype, bidirectional, bias, num_layers):
    module = make_module(
        kind, num_layers=num_layers, bias=bias, bidirectional=bidirectional, dtype=getattr(torch, dtype)
    )
    problem = problem_of(
        mode=MODES[kind], num_layers=num_layers, bias="both" if bias else "none", bidirectional=bidirectional,
        proj_size=KINDS[kind][1].get("proj_size"), dtype=dtype,
    )
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
def test_a_model_is_looked_into_by_prefix(prefix):
    module = make_module("lstm")
    net = from_torch(module)
    assert_same_network(from_torch(Model(module), prefix), net)
    assert_same_network(from_torch(Model(module).state_dict(), prefix), net)
    assert to_torch(net, prefix).keys() == {f"encoder.rnn.{name}" for name in module.state_dict()}


def test_a_module_tells_its_dropout_and_a_state_dict_is_told():
    module = make_module("gru", dropout=0.25)
    assert from_torch(module).desc.dropout == 0.25
    assert from_torch(module.state_dict()).desc.dropout == 0
    assert from_torch(module.state_dict(), dropout=0.5).desc.dropout == 0.5


def test_the_weights_are_copies():
    module = make_module("gru")
    net, before = from_torch(module), module.weight_hh_l0.detach().clone()
    net.weights[:] = 3
    assert torch.equal(module.weight_hh_l0, before)
    to_torch(net)["weight_hh_l0"][:] = 4
    assert (net.weights == 3).all()


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("kind", KINDS)
def test_a_network_is_written_into_a_module(kind):
    problem = problem_of(mode=MODES[kind], proj_size=KINDS[kind][1].get("proj_size"), dtype="float32")
    net, module = net_of(problem), make_module(kind)
    parameters = list(module.parameters())
    to_torch(net, module=module)
    assert_same_network(from_torch(module), net)
    assert [a is b for a, b in zip(module.parameters(), parameters, strict=True)] == [True] * len(parameters)
    model = Model(make_module(kind))
    to_torch(net, "encoder.rnn", module=model)
    assert_same_network(from_torch(model, "encoder.rnn"), net)


@pytest.mark.parametrize("bias", ["input", "recurrent"])
def test_a_bias_that_is_not_there_is_zeros(bias):
    problem = problem_of(mode="gru", bias=bias, dtype="float32")
    module = make_module("gru")
    arrays = to_torch(net_of(problem), module=module)
    assert not arrays["bias_hh_l0" if bias == "input" else "bias_ih_l0"].any()
    with torch.no_grad():
        y, hy = module(torch.from_numpy(problem.x), torch.from_numpy(problem.hx))
    assert_outputs(net_of(problem), problem, y, [hy])


def gru_entries(**changes):
    """The entries of a GRU(3, 2) of two layers."""
    arrays = to_torch(rnnkit.GRU(3, 2, num_layers=2, seed=0))
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


DESC = "RNNDescriptor('gru', 3, 2, num_layers=2)"
WIDE = np.zeros((6, 3), "f4")
REFUSED = [
    (gru_entries(weight_hh_l1=None), {}, ValueError, "source", [8, DESC, 7, "missing: weight_hh_l1"]),
    (gru_entries(weight_ih_l0=None), {}, ValueError, "source", ["layer 0", 1, "missing: weight_ih_l0"]),
    (gru_entries(bias_hh_l1=None, bias_hh_l1_reverse=np.zeros(6, "f4")), {}, ValueError,
     "source", [16, "RNNDescriptor('gru', 3, 2, num_layers=2, bidirectional=True)", 8, "missing",
     "weight_ih_l0_reverse", "weight_hh_l0_reverse", "weight_ih_l1_reverse", "weight_hh_l1_reverse",
     "bias_ih_l0_reverse", "bias_hh_l0_reverse", "bias_hh_l1", "bias_ih_l1_reverse"]),
    (gru_entries(extra=WIDE), {}, ValueError, "source", ["nn.RNN", "nn.GRU", "nn.LSTM", "extra"]),
    (gru_entries(weight_ih_l2=WIDE), {}, ValueError,
     "source", [12, "RNNDescriptor('gru', 3, 2, num_layers=3)", 9, "missing", "weight_hh_l2", "bias_ih_l2",
     "bias_hh_l2"]),
    (gru_entries(weight_hh_l0=WIDE), {}, ValueError, "weight_hh_l0", [3, 9, 12, 1, 4, "hidden_size=3", 6]),
    (gru_entries(weight_hh_l0=np.zeros(6, "f4")), {}, ValueError, "weight_hh_l0", ["(rows, columns)", (6,)]),
    (gru_entries(weight_hh_l1=WIDE), {}, ValueError, "weight_hh_l1", ["(3*hidden_size=6, hidden_size=2)", (6, 3)]),
    (gru_entries(weight_ih_l1=WIDE), {}, ValueError, "weight_ih_l1", ["(3*hidden_size=6, 1*hidden_size=2)", (6, 3)]),
    (gru_entries(bias_ih_l1=np.zeros(5, "f4")), {}, ValueError, "bias_ih_l1", ["(3*hidden_size=6,)", (5,)]),
    (gru_entries(bias_ih_l1=np.zeros(6)), {}, TypeError, "bias_ih_l1", ["float32", "weight_ih_l0", "float64"]),
    (gru_entries(bias_ih_l1=np.zeros(6, "i4")), {}, TypeError, "bias_ih_l1", ["float32", "float64", "int32"]),
    (gru_entries(bias_ih_l1=torch.zeros(6, dtype=torch.bfloat16)), {}, TypeError,
     "bias_ih_l1", ["float32", "float64", "bfloat16"]),
    (gru_entries(bias_ih_l1=torch.zeros(6, dtype=torch.float16)), {}, TypeError,
     "bias_ih_l1", ["float32", "float64", "float16"]),
    (Model(make_module("gru")).state_dict(), {}, ValueError, "source", ["weight_hh_l0", 10, "prefix='encoder.rnn'"]),
    (Model(make_module("gru")), dict(prefix="rnn"), ValueError,
     "source", ["rnn.weight_hh_l0", 10, "prefix='encoder.rnn'"]),
    (torch.nn.Linear(2, 3), {}, ValueError, "source", ["weight_hh_l0", 2, "nn.RNN", "nn.GRU", "nn.LSTM"]),
    ({}, {}, ValueError, "source", ["weight_hh_l0", 0, "nn.RNN", "nn.GRU", "nn.LSTM"]),
    (3, {}, TypeError, "source", ["PyTorch", "Module", "dict", "int"]),
    (torch.optim.SGD([torch.zeros(1)]), {}, TypeError, "source", ["PyTorch", "Module", "dict", "torch.optim.sgd.SGD"]),
    (make_module("gru"), dict(dropout=0.5), ValueError, "dropout", ["module", 0.5]),
    (make_module("relu"), dict(nonlinearity="relu"), ValueError, "nonlinearity", ["module", "relu"]),
    (gru_entries(), dict(nonlinearity="tanh"), ValueError, "nonlinearity", ['mode="gru"', "tanh"]),
    (make_module("tanh").state_dict(), dict(nonlinearity="sigmoid"), ValueError,
     "nonlinearity", ["tanh", "relu", "sigmoid"]),
]


@pytest.mark.parametrize(("source", "options", "kind", "argument", "facts"), REFUSED, ids=[row[3] for row in REFUSED])
def test_from_torch_refuses(source, options, kind, argument, facts):
    assert_refused(lambda: from_torch(source, **options), kind, f"from_torch: {argument}", *facts)


TO_REFUSED = [
    (rnnkit.LSTM(3, 2, cell_clip=(-1, 1)), None, ValueError, "net.desc.cell_clip", [None, (-1.0, 1.0), "PyTorch"]),
    (rnnkit.GRU(3, 2, reset_after=False), None, ValueError, "net.desc.reset_after", [True, False, "PyTorch"]),
    (rnnkit.GRU(2, 2, input_mode="skip"), None, ValueError, "net.desc.input_mode", ["linear", "skip", "PyTorch"]),
    (rnnkit.GRU(3, 2, dtype="float16"), None, ValueError,
     "net.desc.dtype", ["float32", "float64", "float16", "PyTorch"]),
    ("net", None, TypeError, "net", ["rnnkit.RNN", "GRU", "LSTM", "str"]),
    (rnnkit.GRU(3, 2), "module", TypeError, "module", ["PyTorch", "Module", "str"]),
    (rnnkit.GRU(3, 2), torch.nn.GRU(3, 2, bias=False), ValueError,
     "module", [4, "RNNDescriptor('gru', 3, 2)", 2, "missing", "bias_ih_l0", "bias_hh_l0"]),
    (rnnkit.GRU(3, 2, bias="none"), torch.nn.GRU(3, 2), ValueError,
     "module", [2, "RNNDescriptor('gru', 3, 2, bias='none')", 4, "unknown", "bias_ih_l0", "bias_hh_l0"]),
    (rnnkit.GRU(3, 2), torch.nn.LSTM(3, 2), ValueError, "weight_ih_l0", ["(3*hidden_size=6, input_size=3)", (8, 3)]),
    (rnnkit.GRU(3, 2), torch.nn.GRU(3, 2).double(), TypeError, "weight_ih_l0", ["float32", "float64", ".float()"]),
    (rnnkit.RNN(3, 2, nonlinearity="relu"), torch.nn.RNN(3, 2), ValueError,
     "module", ['mode="rnn_relu"', "nonlinearity='tanh'"]),
]


@pytest.mark.parametrize(("net", "module", "kind", "argument", "facts"), TO_REFUSED, ids=[row[3] for row in TO_REFUSED])
def test_to_torch_refuses_and_writes_nothing(net, module, kind, argument, facts):
    before = {n: p.detach().clone() for n, p in getattr(module, "named_parameters", dict().items)()}
    assert_refused(lambda: to_torch(net, module=module), kind, f"to_torch: {argument}", *facts)
    for name, tensor in before.items():
        assert_same_bits(name, module.state_dict()[name], tensor)
