"""Modules of cells: copies and files, converters, graphs, and what is wrong with an argument."""

import copy
import pickle
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from messages import says
from recurrent_modules import CELLS, NAMES, F, H, N, T, UpdateGate, gradients, inputs, module
from repository import SUPPORT
from tolerances import assert_same_bits
from torch import nn
from torch_tensors import assert_equal, flat, reloaded

import rnnkit
import rnnkit.torch
from rnnkit.cells import IndRNN, LeakyRelu, MinGRU, MultiHeadSLSTM, Scalar, Tanh, cell, forward, gradient, tanh
from rnnkit.interop import from_torch, to_torch
from rnnkit.torch import Recurrent


@pytest.mark.parametrize("kind", NAMES)
def test_copies_and_files_keep_the_module(kind):
    own = module(kind, num_layers=2, batch_first=True)
    x, hx = inputs(own)
    expected = own(x, hx)[0]
    other = Recurrent(CELLS[kind][0], F, H, 2, batch_first=True, dtype=torch.float64)
    other.load_state_dict(own.state_dict())
    copies = [copy.copy(own), copy.deepcopy(own), pickle.loads(pickle.dumps(own)), reloaded(own), other]
    copies += [Recurrent.from_network(own.network(), batch_first=True), own.to(torch.float64)]
    for one in copies:
        assert repr(one) == repr(own) and torch.equal(one(x, hx)[0], expected)
        assert one._rnnkit_cache.flat is not None  # the parameters are in one buffer
    own.network().weights[:] = 0
    with torch.no_grad():
        copies[1].weight_ih_l0.mul_(2)
    assert torch.equal(own(x, hx)[0], expected)
    if kind == "three states":
        single = copy.deepcopy(own).float()
        torch.testing.assert_close(single(x.float())[0], own(x)[0].float(), rtol=1e-4, atol=1e-5)
        single.reset_parameters()
    with pytest.raises(RuntimeError, match="Missing key"):
        own.load_state_dict({})


PICKLED = """
import pickle, sys, torch
sys.path.insert(0, sys.argv[2])
own, x, y = pickle.load(open(sys.argv[1], "rb"))
assert torch.equal(own(x)[0], y) and torch.equal(torch.compile(own, backend="aot_eager", fullgraph=True)(x)[0], y)
"""


def test_pickle_runs_in_another_process(tmp_path):
    own = module("R of a state")
    x = inputs(own)[0].detach()
    path = tmp_path / "own.pickle"
    path.write_bytes(pickle.dumps((own, x, own(x)[0].detach())))
    subprocess.run([sys.executable, "-c", PICKLED, path, SUPPORT], check=True, timeout=240)


@pytest.mark.parametrize("bias", ["input", "recurrent"])
def test_network_with_one_bias_becomes_a_module(bias):
    net = rnnkit.Network(UpdateGate, F, H, bias=bias, dtype="float64", seed=0)
    own = Recurrent.from_network(net)
    other = own.bias_hh_l0 if bias == "input" else own.bias_ih_l0
    x = inputs(own)[0]
    assert own.bias is True and not other.any()
    torch.testing.assert_close(own(x)[0], torch.from_numpy(net.infer(x.detach().numpy()).y))


def test_from_torch_and_to_torch_convert_modules_of_cells():
    model = nn.ModuleDict({"head": nn.Linear(2, 2), "rnn": module("vectors")})
    net = from_torch(model, "rnn")
    assert net == model["rnn"].network() and from_torch(model["rnn"]) == net
    net.views["u_l0"][:] = 0.25
    arrays = to_torch(net, "rnn", module=model)
    assert (model["rnn"].u_l0 == 0.25).all() and set(arrays) == {"rnn.weight_ih_l0", "rnn.bias_ih_l0", "rnn.u_l0"}
    with pytest.raises(ValueError, match=says("to_torch: module", "IndRNN(activation=Tanh())", "UpdateGate")):
        to_torch(net, module=module())
    other = Recurrent(IndRNN(Tanh), F, 6, dtype=torch.float64)
    other.u_l0 = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    with pytest.raises(ValueError, match=says("to_torch: u_l0", "(hidden_size=6,)", (5,))):
        to_torch(rnnkit.Network(IndRNN(Tanh), F, 6, dtype="float64"), module=other)
    with pytest.raises(ValueError, match=says("to_torch: net.desc.mode", "IndRNN")):
        to_torch(net)
    with pytest.raises(ValueError, match=says("from_torch: dropout", "module", 0.5)):
        from_torch(model, "rnn", dropout=0.5)
    gru = rnnkit.GRU(F, H, dtype="float64", seed=0)
    own = Recurrent("gru", F, H, dtype=torch.float64)
    to_torch(gru, module=own)
    assert from_torch(own) == gru


def test_accelerate_and_restore_leave_modules_of_cells():
    model = nn.ModuleDict({"own": module(), "gru": nn.GRU(F, H)})
    assert rnnkit.torch.accelerate(model) == (("gru",), {})
    with rnnkit.torch.accelerated():
        assert type(module()) is Recurrent
    assert rnnkit.torch.restore(model) == ("gru",) and type(model["own"]) is Recurrent


@pytest.mark.parametrize("kind", NAMES)
def test_compiled_graph_of_a_cell_is_bit_identical(kind):
    torch.compiler.reset()
    own = module(kind, num_layers=2, bidirectional=True, batch_first=True)
    x, hx = inputs(own)
    compiled, leaves = torch.compile(own, backend="aot_eager", fullgraph=True), [x, *flat(hx), *own.parameters()]
    found, expected = compiled(x, hx), own(x, hx)
    assert_equal(found, expected)
    assert_equal(gradients(*found, leaves), gradients(*expected, leaves))
    with torch.no_grad():
        assert torch.equal(compiled(x, hx)[0], expected[0])


WITHOUT_SOURCE = """
@cell(gates="a")
class Unseen(NamedTuple):
    @forward("a h")
    def step(self, a):
        return a, {factor} * a

    @gradient("da")
    def back(self, dh):
        return {factor} * dh
"""


def unseen(factor):
    names = {"cell": cell, "forward": forward, "gradient": gradient, "NamedTuple": NamedTuple, "__name__": "unseen"}
    exec(WITHOUT_SOURCE.format(factor=factor), names)
    return names["Unseen"]


PAIRS = {
    "parameters": (UpdateGate(0.5), UpdateGate(2.0)),
    "activations": (IndRNN(LeakyRelu(0.5)), IndRNN(LeakyRelu(0.25))),
    "classes without a source": (unseen(2.0)(), unseen(3.0)()),
}


@pytest.mark.parametrize("differ_by", PAIRS)
def test_compiled_cells_of_one_name_are_told_apart(differ_by):
    torch.compiler.reset()
    x = torch.randn(T, N, F, dtype=torch.float64)
    for own in [Recurrent(one, F, H, dtype=torch.float64) for one in PAIRS[differ_by]]:
        expected = torch.from_numpy(own.network().infer(x.numpy()).y)
        assert torch.equal(torch.compile(own, backend="aot_eager", fullgraph=True)(x)[0], expected)
        assert torch.equal(own(x)[0], expected) and own.network().desc.mode == own.cell


EXPORTED = """
import sys, torch, rnnkit.torch
sys.path.insert(0, sys.argv[2])
model, (x, y) = torch.export.load(sys.argv[1] + "/model.pt2").module(), torch.load(sys.argv[1] + "/expected.pt")
if sys.argv[3] == "own":
    try:
        model(x)
    except ValueError as error:
        assert str(error).startswith("forward: cell "), error
        assert "process" in str(error) and "rnnkit.torch.Recurrent of UpdateGate" in str(error), error
    else:
        raise SystemExit("the cell was not asked for")
    from recurrent_modules import UpdateGate
    rnnkit.torch.Recurrent(UpdateGate, 1, 1)
assert torch.equal(model(x)[0], y)
"""


@pytest.mark.parametrize(("kind", "whose"), [("three states", "shipped"), ("no state", "own")])
def test_exported_program_runs_in_another_process(kind, whose, tmp_path):
    own = module(kind)
    x = inputs(own)[0].detach()
    torch.export.save(torch.export.export(own, (x,)), tmp_path / "model.pt2")
    torch.save([x, own(x)[0].detach()], tmp_path / "expected.pt")
    subprocess.run([sys.executable, "-c", EXPORTED, tmp_path, SUPPORT, whose], check=True, timeout=240)


def test_vector_under_a_parametrization_gets_a_gradient():
    own = module("vectors")
    nn.utils.parametrize.register_parametrization(own, "u_l0", nn.Tanh())
    x, _ = inputs(own)
    y, _ = own(x)
    plain = module("vectors")
    with torch.no_grad():
        plain.u_l0.copy_(own.u_l0)
    torch.testing.assert_close(y, plain(x)[0])
    y.sum().backward()
    assert own.parametrizations.u_l0.original.grad.any()


@cell(gates="a")
class Needs(NamedTuple):
    rate: float

    @forward("h")
    def step(self, a, h_prev):
        return self.rate * a + h_prev


NETWORK, FLOATS = ["rnnkit.Network", "rnnkit.torch.recurrent.Recurrent"], ["float32", "float64", "torch.float16"]
SKIPPING, RESET_BEFORE = rnnkit.Network(MinGRU, H, H, input_mode="skip"), rnnkit.GRU(F, H, reset_after=False)
WRONG = [
    (TypeError, "Recurrent: cell", ["cell", "int"], lambda: Recurrent(3, F, H)),
    (TypeError, "Recurrent: cell", ["Needs"], lambda: Recurrent(Needs, F, H)),
    (ValueError, "Recurrent: cell", ["'grue'"], lambda: Recurrent("grue", F, H)),
    (TypeError, "Recurrent: bias", ["bool", "str"], lambda: Recurrent(MinGRU, F, H, bias="input")),
    (TypeError, "Recurrent: batch_first", ["bool", "int"], lambda: Recurrent(MinGRU, F, H, batch_first=1)),
    (ValueError, "RNNDescriptor: hidden_size", [1, 0], lambda: Recurrent(MinGRU, F, 0)),
    (ValueError, "RNNDescriptor: dropout", [[0, 1], 2.0], lambda: Recurrent(MinGRU, F, H, 2, dropout=2)),
    (ValueError, "RNNDescriptor: proj_size", [None, "UpdateGate", 2], lambda: Recurrent(UpdateGate, F, H, proj_size=2)),
    (TypeError, "from_network: net", NETWORK, lambda: Recurrent.from_network(module())),
    (ValueError, "from_network: net.desc.input_mode", ["linear", "skip"], lambda: Recurrent.from_network(SKIPPING)),
    (ValueError, "from_network: net.desc.reset_after", [True, False], lambda: Recurrent.from_network(RESET_BEFORE)),
    (TypeError, "network: dtype of the parameters", FLOATS, lambda: module(dtype=torch.float16).network()),
    (rnnkit.BackendError, "script: module", ["PyTorch", "Recurrent"], lambda: module().__prepare_scriptable__()),
]


@pytest.mark.parametrize(("kind", "where", "facts", "make"), WRONG)
def test_wrong_arguments_of_a_module_are_named(kind, where, facts, make):
    with pytest.raises(kind, match=says(where, *facts)):
        make()


@cell(gates="a", scalars=[Scalar("rate", 0.25, 0.5)])
class Paced(NamedTuple):
    @forward("h")
    def step(self, a, rate, h_prev):
        return h_prev + rate * (tanh(a) - h_prev)


SHAPES = [(MultiHeadSLSTM, {"weight_hh_l0": (32, 2)}), (Paced, {"weight_hh_l0": (8, 8), "rate_l0": (1,)})]


@pytest.mark.parametrize(("kind", "shapes"), SHAPES, ids=["heads", "a scalar"])
def test_heads_and_scalars_match_the_network(kind, shapes):
    own = Recurrent(kind, F, 8, dtype=torch.float64)
    assert {name: tuple(own.get_parameter(name).shape) for name in shapes} == shapes
    assert kind is MultiHeadSLSTM or 0.25 <= own.rate_l0 <= 0.5
    x, net = torch.randn(T, N, F, dtype=torch.float64, requires_grad=True), own.network()
    result = net.forward(x.detach().numpy())
    dw = rnnkit.weight_views(net.desc, net.backward(result.workspace, np.ones_like(result.y)).dw)
    for _ in range(2):
        y = own(x)[0]
        own.zero_grad()
        y.sum().backward()
        assert_same_bits("y", y.detach().numpy(), result.y)
        for name, one in own.named_parameters():
            assert_same_bits(name, one.grad.numpy(), dw[name])
    assert torch.equal(torch.compile(own, backend="aot_eager", fullgraph=True)(x)[0], y)


@pytest.mark.parametrize("calls", [0, 1], ids=["first", "later"])
def test_wrong_arguments_of_a_call_are_named(calls):
    own, several = module(dtype=torch.float32), module("three states", dtype=torch.float32)
    x, h = torch.zeros(T, N, F), torch.zeros(1, N, H)
    for _ in range(calls):
        own(x), several(x)
    floats, half = ("torch.float32", "torch.float64"), module(dtype=torch.float16)
    sizes = r"Expected hidden\[3\] size \(1, 4, 5\), got \[1, 4, 4\]"
    for kind, expected, call in (
        (ValueError, "dtype", lambda: own(x.double())),
        (RuntimeError, "input_size", lambda: own(torch.zeros(T, N, F + 1))),
        (RuntimeError, sizes, lambda: several(x, (h, h, h, h[..., 1:]))),
        (TypeError, says("forward: hx", None, "tensor", "tuple of 2"), lambda: own(x, (h, h))),
        (TypeError, says("forward: hx", None, "4 tensors", "h, c, n and m", "tuple of 2"), lambda: several(x, (h, h))),
        (TypeError, says("forward: hx[2]", *floats), lambda: several(x, (h, h, h.double(), h))),
        (TypeError, says("forward: dtype", *floats, "torch.bfloat16", "torch.float16"), lambda: half(x.half())),
    ):
        with pytest.raises(kind, match=expected):
            call()
