"""Networks of any cell as PyTorch modules: parameters, noise, files, converters, graphs, and what is wrong."""

import copy
import pickle
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
from messages import raises, says
from recurrent_modules import NAMES, F, H, N, T, UpdateGate, inputs, module
from repository import SUPPORT
from several_states import as_given
from torch import nn
from torch_tensors import assert_equal, flat

import rnnkit
import rnnkit.torch
from rnnkit.cells import IndRNN, LeakyRelu, MinGRU, RegularizedLSTM, Scalar, Tanh, cell, forward, gradient
from rnnkit.interop import from_torch, to_torch
from rnnkit.torch import Recurrent


@pytest.mark.parametrize("kind", NAMES)
def test_one_sequence_is_a_batch_of_one_with_and_without_states(kind):
    own = module(kind, bidirectional=True)
    x, hx = inputs(own)
    batch = [one[:, :1] for one in flat(hx)]
    for given in batch, [torch.zeros_like(one) for one in batch]:
        expected = own(x[:, :1], as_given(given), all_states=True)
        hx = as_given([one[:, 0] for one in given]) if given is batch else None
        assert_equal(own(x[:, 0], hx, all_states=True), [one.squeeze(-2) for one in flat(expected)])


def test_dropout_is_the_networks_and_needs_two_layers():
    assert module("three states", num_layers=2, dropout=0.5).network().desc.dropout == 0.5
    with pytest.warns(UserWarning, match=says("Recurrent: dropout", 0.5, "num_layers=1")):
        module(dropout=0.5)


@pytest.mark.parametrize("kind", NAMES)
def test_parameters_are_the_blocks_of_the_layout(kind):
    own = module(kind, num_layers=2, bidirectional=True)
    layout, found = rnnkit.weight_layout(own.network().desc), own.named_parameters()
    assert [(name, tuple(one.shape)) for name, one in found] == [(one.name, one.shape) for one in layout]
    assert len(own.all_weights) == 4 and sum(map(len, own.all_weights)) == len(layout)


@cell(gates="a", scalars=[Scalar("rate", 0.25, 0.5)])
class Needs(NamedTuple):
    factor: float

    @forward("h")
    def step(self, a, rate, h_prev):
        return self.factor * a + rate * h_prev


def test_parameters_are_drawn_as_the_cell_declares():
    torch.manual_seed(5)
    own = Recurrent(IndRNN, 30, 400)
    torch.manual_seed(5)
    assert_equal([*own.parameters()], [*Recurrent(IndRNN, 30, 400).parameters()])
    bound = 400**-0.5
    for name, low, high in (("weight_ih_l0", -bound, bound), ("bias_ih_l0", -bound, bound), ("u_l0", 0, 1)):
        drawn, width = getattr(own, name), high - low
        assert low <= drawn.min() < low + 0.05 * width and high - 0.05 * width < drawn.max() <= high
    before = own.u_l0.detach().clone()
    own.reset_parameters()
    assert not torch.equal(own.u_l0, before) and own.u_l0.min() >= 0
    assert 0.25 <= Recurrent(Needs(1.0), F, H).rate_l0 <= 0.5


def test_noise_is_drawn_only_in_training():
    """From PyTorch's generator; in evaluation, where calls have gradients too, they are as in `infer`."""
    own = Recurrent(RegularizedLSTM(recurrent_dropout=0.4, zoneout=0.3, zoneout_c=0.2), F, H)
    x = torch.randn(T, N, F, requires_grad=True)
    expected = torch.from_numpy(own.eval().network().infer(x.detach().numpy()).y)
    for _ in range(2):  # the second is a plain call
        y, _ = own(x)
        assert torch.equal(y, expected)
    (evaluated,) = torch.autograd.grad(y.sum(), x)
    own.train()
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        y, _ = own(x)
        found.append((y.detach(), *torch.autograd.grad(y.sum(), x)))
    assert_equal(found[0], found[1])
    assert not torch.equal(found[0][0], found[2][0]) and not torch.equal(found[0][1], evaluated)
    torch.manual_seed(1)
    with torch.no_grad():
        assert torch.equal(own(x)[0], found[0][0]) and torch.equal(own.eval()(x)[0], expected)
    assert torch.equal(own(x)[0], expected) and own.network().desc.draws


def test_recorded_call_draws_noise_only_in_training():
    own = Recurrent(RegularizedLSTM(recurrent_dropout=0.4), F, H)
    x = torch.randn(T, N, F, requires_grad=True)
    for switch in (own.eval, own.train):
        switch()
        torch.manual_seed(1)
        (expected,) = torch.autograd.grad(own(x)[0].sum(), x)
        torch.manual_seed(1)
        assert torch.equal(torch.func.grad(lambda x: own(x)[0].sum())(x.detach()), expected)


def test_assigned_cell_takes_effect():
    """Between calls, too, in copies and in what a module is saved as; its weights fit, or it is refused."""
    own, x = Recurrent(RegularizedLSTM(zoneout=0.5), 3, 4), torch.randn(5, 2, 3)
    other, plain = Recurrent(RegularizedLSTM(), 3, 4), Recurrent("lstm", 3, 4)
    for one in (other, plain):
        one.load_state_dict(own.state_dict())
    expected = other(x)[0]
    assert not torch.equal(own(x)[0], expected)
    own.cell = RegularizedLSTM()
    assert own.cell == own.network().desc.mode == copy.deepcopy(own).cell == RegularizedLSTM()
    assert torch.equal(own(x)[0], expected) and torch.equal(copy.deepcopy(own)(x)[0], expected)
    own.cell = RegularizedLSTM(zoneout=0.5)
    assert not torch.equal(own(x)[0], expected) and "zoneout=0.5" in repr(own)
    own.cell = "lstm"
    assert torch.equal(own(x)[0], plain(x)[0])
    with raises(ValueError, "Recurrent: cell | names and shapes | lstm | gru"):
        own.cell = "gru"
    with pytest.raises((TypeError, ValueError), match="^Recurrent: cell"):
        own.cell = 3
    assert own.cell == "lstm" and torch.equal(own(x)[0], plain(x)[0])


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


@pytest.mark.parametrize("bias", ["input", "recurrent"])
def test_network_with_one_bias_becomes_a_module(bias):
    net = rnnkit.Network(UpdateGate, F, H, bias=bias, dtype="float64", seed=0)
    own = Recurrent.from_network(net, batch_first=True)
    other = own.bias_hh_l0 if bias == "input" else own.bias_ih_l0
    x = inputs(own)[0]
    assert own.bias is own.batch_first is True and not other.any()
    expected = torch.from_numpy(net.infer(x.detach().transpose(0, 1).numpy()).y)
    torch.testing.assert_close(own(x)[0].transpose(0, 1), expected)
    own.network().weights[:] = 0  # a copy
    torch.testing.assert_close(own(x)[0].transpose(0, 1), expected)


def test_from_torch_and_to_torch_convert_modules_of_cells():
    model = nn.ModuleDict({"head": nn.Linear(2, 2), "rnn": module("vectors")})
    net = from_torch(model, "rnn")
    assert net == model["rnn"].network() and from_torch(model["rnn"]) == net
    net.views["u_l0"][:] = 0.25
    arrays = to_torch(net, "rnn", module=model)
    assert (model["rnn"].u_l0 == 0.25).all() and set(arrays) == {"rnn.weight_ih_l0", "rnn.bias_ih_l0", "rnn.u_l0"}
    with raises(ValueError, "to_torch: module | IndRNN(activation=Tanh()) | UpdateGate"):
        to_torch(net, module=module())
    other = Recurrent(IndRNN(Tanh), F, 6, dtype=torch.float64)
    other.u_l0 = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    with raises(ValueError, "to_torch: u_l0 | (hidden_size=6,) | (5,)"):
        to_torch(rnnkit.Network(IndRNN(Tanh), F, 6, dtype="float64"), module=other)
    with raises(ValueError, "to_torch: net.desc.mode | IndRNN"):
        to_torch(net)
    with raises(ValueError, "from_torch: dropout | module | 0.5"):
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


def test_vector_under_a_parametrization_gets_a_gradient():
    own, plain = module("vectors"), module("vectors")
    nn.utils.parametrize.register_parametrization(own, "u_l0", nn.Tanh())
    plain.u_l0.data.tanh_()
    x, _ = inputs(own)
    y, _ = own(x)
    torch.testing.assert_close(y, plain(x)[0])
    y.sum().backward()
    assert own.parametrizations.u_l0.original.grad.any()


NETWORK, FLOATS = "rnnkit.Network | rnnkit.torch.recurrent.Recurrent", "float32 | float64 | torch.float16"
SKIPPING, RESET_BEFORE = rnnkit.Network(MinGRU, H, H, input_mode="skip"), rnnkit.GRU(F, H, reset_after=False)
WRONG = [
    (TypeError, "Recurrent: cell | cell | int", lambda: Recurrent(3, F, H)),
    (TypeError, "Recurrent: cell | Needs", lambda: Recurrent(Needs, F, H)),
    (ValueError, "Recurrent: cell | 'grue'", lambda: Recurrent("grue", F, H)),
    (TypeError, "Recurrent: bias | bool | str", lambda: Recurrent(MinGRU, F, H, bias="input")),
    (TypeError, "Recurrent: batch_first | bool | int", lambda: Recurrent(MinGRU, F, H, batch_first=1)),
    (ValueError, "RNNDescriptor: hidden_size | 1 | 0", lambda: Recurrent(MinGRU, F, 0)),
    (ValueError, "RNNDescriptor: dropout | [0, 1] | 2.0", lambda: Recurrent(MinGRU, F, H, 2, dropout=2)),
    (ValueError, "RNNDescriptor: proj_size | None | UpdateGate | 2", lambda: Recurrent(UpdateGate, F, H, proj_size=2)),
    (TypeError, f"from_network: net | {NETWORK}", lambda: Recurrent.from_network(module())),
    (ValueError, "from_network: net.desc.input_mode | linear | skip", lambda: Recurrent.from_network(SKIPPING)),
    (ValueError, "from_network: net.desc.reset_after | True | False", lambda: Recurrent.from_network(RESET_BEFORE)),
    (TypeError, f"network: dtype of the parameters | {FLOATS}", lambda: module(dtype=torch.float16).network()),
    (rnnkit.BackendError, "script: module | PyTorch | Recurrent", lambda: module().__prepare_scriptable__()),
]


@pytest.mark.parametrize(("kind", "expected", "make"), WRONG)
def test_wrong_arguments_of_a_module_are_named(kind, expected, make):
    with raises(kind, expected):
        make()


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
