"""`accelerate(model, precision=...)`: quantized weights in evaluation mode."""

import copy
import pickle

import numpy as np
import pytest
import torch
from messages import raises
from tolerances import assert_same_bits
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import rnn as sequences
from torch_tensors import flat

import rnnkit
import rnnkit.torch
from rnnkit.cells import MinGRU
from rnnkit.errors import BackendError
from rnnkit.interop import from_torch
from rnnkit.torch import accelerate, quantized, restore

T, N, F, H = 6, 3, 5, 7
MODULES = {
    "rnn": lambda: nn.RNN(F, H, nonlinearity="relu"),
    "gru": lambda: nn.GRU(F, H, num_layers=2, bidirectional=True, dropout=0.5),
    "lstm": lambda: nn.LSTM(F, H, num_layers=2),
    "projection": lambda: nn.LSTM(F, H, proj_size=2, batch_first=True),
    "own": lambda: rnnkit.torch.Recurrent(MinGRU, F, H),
    "learned": lambda: rnnkit.torch.GRU(F, H, learned_initial_state=True),
}


def made(kind="lstm", precision="int8"):
    torch.manual_seed(0)
    module = MODULES[kind]().eval()
    if kind == "learned":
        nn.init.normal_(module.h0_l0)
    assert accelerate(module, precision=precision) == (("",), {})
    return module


def sequence():
    return torch.randn(T, N, F, generator=torch.Generator().manual_seed(1))


def plan_of(module, precision="int8"):
    return from_torch(module).prepare(precision=precision)


def bits(found, expected):
    assert_same_bits("result", np.ascontiguousarray(found.detach()), np.ascontiguousarray(expected))


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
@pytest.mark.parametrize("kind", MODULES)
def test_module_has_the_bits_of_a_plan(kind, precision):
    module = made(kind, precision)
    x, plan = sequence(), plan_of(module, precision)
    given = x.transpose(0, 1) if module.batch_first else x
    expected = plan.infer(x.numpy())
    for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with context():
            y, states = module(given)
        bits(y.transpose(0, 1) if module.batch_first else y, expected.y)
        for state, other in zip(flat(states), expected[1:], strict=False):
            bits(state, other)
    again = plan.infer(x.numpy(), *expected[1 : 1 + len(flat(states))])
    with torch.no_grad():
        bits(flat(module(given, states)[1])[0], again.hy)


def test_options_and_packed_sequences_have_the_bits_of_a_plan():
    module, x = made("gru"), sequence()
    plan, marks = plan_of(module), np.random.default_rng(0).random((T, N)) < 0.3
    with torch.no_grad():
        for options in ({"lengths": [6, 0, 2]}, {"resets": marks}, {"mask": ~marks}):
            bits(module(x, **options)[0], plan.infer(x.numpy(), **options).y)
        packed = sequences.pack_padded_sequence(x, [5, 2, 6], enforce_sorted=False)
        y, _ = sequences.pad_packed_sequence(module(packed)[0], total_length=T)
        bits(y, plan.infer(x.numpy(), lengths=[5, 2, 6]).y)
        bits(module(x[:, 0])[0], plan.infer(x[:, :1].numpy()).y[:, 0])
        assert module(x[:0])[0].shape == (0, N, 2 * H) and module(x[:, :0])[0].shape == (T, 0, 2 * H)


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell])
def test_cell_has_the_bits_of_a_plan(kind):
    module, x = kind(F, H).eval(), sequence()
    expected = plan_of(module)
    accelerate(module, precision="int8")
    states = None
    with torch.no_grad():
        for step, y in zip(x, expected.infer(x.numpy()).y, strict=True):
            states = module(step, states)
            bits(states[0] if kind is nn.LSTMCell else states, y)


def test_training_mode_and_restored_modules_are_in_full_precision():
    module, x = made(), sequence()
    plain = copy.deepcopy(module)
    assert accelerate(plain) == (("",), {}) and accelerate(plain) == ((), {})
    expected = plain(x)[0]
    assert not torch.equal(module(x)[0], expected)
    module.train()
    assert torch.equal(module(x)[0], expected)
    module(x)[0].sum().backward()
    module.eval()
    assert not torch.equal(module(x)[0], expected)
    restore(module)
    assert type(module) is nn.LSTM and torch.allclose(module(x)[0], expected, atol=1e-6)
    assert not [name for name in vars(module) if "rnnkit" in name]


@pytest.mark.parametrize("is_flat", [True, False])
def test_weights_are_packed_when_they_change_and_only_then(is_flat, monkeypatch):
    packings = []
    monkeypatch.setattr(quantized, "prepare", lambda *a, **b: packings.append(1) or rnnkit.prepare(*a, **b))
    module, x = made(), sequence()
    if not is_flat:
        module.weight_hh_l1.data = module.weight_hh_l1.data.clone()
    packed = sequences.pack_padded_sequence(x, [5, 2, 6], enforce_sorted=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)

    def changed():
        before = len(packings)
        with torch.no_grad():
            for _ in range(2):
                bits(module(x)[0], plan_of(module).infer(x.numpy()).y)
                module(packed)
            module.eval()
            module(x)
        return len(packings) - before

    assert changed() == 1 and changed() == 0
    module.train()(x)[0].sum().backward()
    optimizer.step()
    module.eval()
    assert changed() == 1
    module.load_state_dict({name: value * 2 for name, value in module.state_dict().items()})
    assert changed() == 1
    with torch.no_grad():
        module.bias_hh_l0[3] += 1
    assert changed() == 1
    module.weight_ih_l0 = nn.Parameter(module.weight_ih_l0.detach() / 2)
    assert changed() == 1
    module.weight_ih_l1.data.zero_()
    module.train().eval()
    assert changed() == 1
    accelerate(module, precision="bfloat16")
    assert not torch.equal(module(x)[0], torch.from_numpy(plan_of(module).infer(x.numpy()).y)) and len(packings) == 7


def test_parametrized_module_follows_its_parametrization():
    module = nn.utils.parametrizations.weight_norm(nn.GRU(F, H), "weight_hh_l0").eval()
    accelerate(module, precision="int8")
    x = sequence()
    for _ in range(2):
        with torch.no_grad():
            first = module(x)[0]
            assert torch.equal(module(x)[0], first)
            arrays = {name: getattr(module, name) for name in module._flat_weights_names}
            bits(first, from_torch(arrays).prepare(precision="int8").infer(x.numpy()).y)
            module.parametrizations.weight_hh_l0.original0.mul_(2)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_keep_the_precision(copied):
    module, x = made(), sequence()
    found = copied(module)
    assert torch.equal(found(x)[0], module(x)[0])
    with torch.no_grad():
        found.weight_hh_l0.zero_()
    assert torch.equal(found(x)[0], module(x)[0]) == (copied is copy.copy)


def test_gradient_is_refused_with_the_cure():
    module, x = made(), sequence().requires_grad_()
    y = module(x)[0]
    assert y.requires_grad
    with raises(BackendError, "backward: module with quantized weights | train() | rnnkit.torch.accelerate"):
        y.sum().backward()
    with raises(BackendError, "forward: all_states | quantized weights"):
        module(x, all_states=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compile_breaks_the_graph_and_export_is_refused():
    torch.compiler.reset()
    module, x = made("rnn"), sequence()
    with torch.no_grad():
        expected = module(x)[0]
        for allow in (False, True):
            with torch._dynamo.config.patch(allow_rnn=allow):
                assert torch.equal(torch.compile(module, backend="aot_eager")(x)[0], expected)
        with raises(BackendError, "forward: module | int8 | rnnkit.torch.accelerate"):
            make_fx(lambda x: module(x)[0])(x)


def test_transforms_run_in_full_precision_with_a_warning():
    module, x = made("rnn"), sequence()
    with pytest.warns(rnnkit.torch.FallbackWarning), torch.no_grad():
        y = torch.vmap(lambda one: module(one)[0])(torch.stack([x, x]))
    accelerate(module)
    assert torch.allclose(y[0], module(x)[0], atol=1e-5)


def test_modules_that_cannot_be_quantized_are_left_with_the_reason():
    with torch.inference_mode():
        inference = nn.GRU(F, H)
    model = nn.ModuleDict({"long": nn.GRU(F, H).double(), "inference": inference, "fits": nn.GRU(F, H)})
    changed, left = accelerate(model, precision="int8")
    assert changed == ("fits",) and type(model["long"]) is nn.GRU
    assert "torch.float64" in left["long"] and "torch.float32" in left["long"] and "inference mode" in left["inference"]
    model["fits"].double()
    with raises(ValueError, "prepare: precision | None | float64"):
        model["fits"].eval()(sequence().double())


@pytest.mark.parametrize("precision", ["int4", 8, True])
def test_unknown_precision_is_refused(precision):
    model = nn.GRU(F, H)
    with raises(ValueError, f"accelerate: precision | bfloat16 | int8 | {precision!r}"):
        accelerate(model, precision=precision)
    assert type(model) is nn.GRU
