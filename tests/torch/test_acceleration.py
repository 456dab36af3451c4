"""A model's own modules made to run on the engine, and back."""

import copy

import pytest
import torch
from messages import raises, says
from torch import nn

import rnnkit.torch
from rnnkit.torch import accelerate, restore


class Own(nn.LSTM):
    """A user's subclass that does not hand its calls on."""

    def forward(self, x):
        return x


class Tagger(nn.Module):
    """A model as people write them."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.dropout = nn.Dropout(0.1)
        self.encoder = nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.decoders = nn.ModuleList([nn.GRU(12, 4), nn.RNN(12, 4)])
        self.own, self.cell, self.half = Own(4, 4), nn.GRUCell(4, 4), nn.GRU(4, 4).half()
        self.readout = nn.Linear(4, 3)

    def forward(self, tokens):
        states, _ = self.encoder(self.dropout(self.embedding(tokens)))
        return self.readout(sum(decoder(states)[0] for decoder in self.decoders))


TOKENS = torch.arange(24).reshape(4, 6) % 20


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Tagger()


def test_accelerate_reports_changed_and_left_modules(model):
    found = accelerate(model)
    assert found.changed == ("encoder", "decoders.0", "decoders.1", "cell")
    assert found.left == {
        "own": f"{Own.__module__}.Own.forward does not call super().forward",
        "half": "its parameters are torch.float16, not float32, float64 or bfloat16",
    }
    assert type(model.encoder) is rnnkit.torch.LSTM and isinstance(model.encoder, nn.LSTM)
    assert accelerate(model) == ((), found.left)
    assert restore(model) == found.changed
    assert type(model.encoder) is nn.LSTM
    assert restore(model) == ()


def test_accelerate_takes_a_bare_and_a_repeated_module():
    module = nn.GRU(3, 4)
    assert accelerate(module) == (("",), {})
    twice = nn.ModuleList([nn.GRU(3, 4)] * 2)
    assert accelerate(twice) == (("0",), {})


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_quantizing_an_accelerated_module_warns_and_keeps_it():
    model = nn.Sequential(nn.LSTM(3, 4), nn.Linear(4, 4))
    accelerate(model)
    with pytest.warns(UserWarning, match=says("LSTM", "quantized", "rnnkit.torch.restore")):
        quantised = torch.ao.quantization.quantize_dynamic(model, {nn.LSTM, nn.Linear}, dtype=torch.qint8)
    assert type(quantised[0]) is rnnkit.torch.LSTM and type(quantised[1]) is not nn.Linear
    assert quantised[0](torch.ones(5, 2, 3))[0].shape == (5, 2, 4)
    restore(model)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.LSTM}, dtype=torch.qint8)
    assert "quantized" in type(quantised[0]).__module__ and list(accelerate(quantised).left) == ["0"]


def test_scripting_is_refused_until_restore():
    model = nn.Sequential(nn.GRU(3, 4))
    accelerate(model)
    with pytest.warns(DeprecationWarning), raises(rnnkit.BackendError, "script: module | rnnkit.torch.restore"):
        torch.jit.script(model)
    restore(model)
    with pytest.warns(DeprecationWarning):
        assert torch.jit.script(model)(torch.ones(5, 2, 3))[0].shape == (5, 2, 4)


def test_accelerate_and_restore_refuse_other_types():
    for function in (accelerate, restore):
        with raises(TypeError, f"{function.__name__}: model | torch.nn.Module | dict"):
            function({})


def trained(model, optimizer):
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model.eval()(TOKENS).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_accelerate_and_restore_change_only_the_class(model):
    """Hooks, parameters, their values and the state of an optimizer stay."""
    parameters, state = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    other, calls = copy.deepcopy(model), []
    model.encoder.register_forward_hook(lambda *arguments: calls.append("hook"))
    model.decoders[0].eval()
    accelerate(model)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert model.encoder.training and not model.decoders[0].training
    restore(model)
    optimizers = [torch.optim.Adam(one.parameters(), 0.01) for one in (model, other)]
    found, expected = [], []
    for change in (lambda model: None, accelerate, restore):
        change(model)
        found += trained(model, optimizers[0])
        expected += trained(other, optimizers[1])
        assert all(one is parameters[name] for name, one in model.named_parameters())
    assert found == pytest.approx(expected, rel=1e-4)
    assert calls == ["hook"] * 9


def test_shared_memory_is_not_moved():
    module = nn.GRU(3, 4).share_memory()
    address = module.weight_hh_l0.data_ptr()
    assert accelerate(module).changed == ("",)
    assert module.weight_hh_l0.is_shared() and module.weight_hh_l0.data_ptr() == address
    assert module(torch.ones(5, 2, 3))[0].shape == (5, 2, 4)


def test_module_accelerated_in_inference_mode_can_be_trained():
    module = nn.GRU(3, 4)
    with torch.inference_mode():
        accelerate(module)
    module(torch.ones(5, 2, 3))[0].sum().backward()
    assert module.weight_hh_l0.grad is not None


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_patched_scripted_and_mixed_dtype_modules_are_left():
    model = nn.ModuleDict({"patched": nn.GRU(3, 4), "scripted": torch.jit.script(nn.LSTM(3, 4)), "mixed": nn.RNN(3, 4)})
    model["patched"].forward = model["patched"].forward
    model["mixed"].weight_hh_l0.data = model["mixed"].weight_hh_l0.data.double()
    mixed = "its parameters are torch.float32, torch.float64, not float32, float64 or bfloat16"
    patched, scripted = "its forward is overridden on the instance", "it is a LSTM compiled by TorchScript"
    assert accelerate(model) == ((), {"patched": patched, "scripted": scripted, "mixed": mixed})
