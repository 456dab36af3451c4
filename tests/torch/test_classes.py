"""Subclasses and parametrized modules that run on the engine, and modules that are born on it."""

import contextlib
import copy
import os
import pickle
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch_tensors import flat

import rnnkit.torch
from rnnkit.torch import accelerate, accelerated, restore
from rnnkit.torch.classes import is_accelerated

T, N, F, H = 5, 3, 4, 6
_functional = torch._VF


class Doubled(nn.LSTM):
    """As pytorch-forecasting's: it looks at the arguments and hands them on."""

    def forward(self, x, hx=None, lengths=None):
        output, states = super().forward(x, hx)
        return 2 * output, states


class DoubledCell(nn.GRUCell):
    def forward(self, x, hx=None):
        return 2 * super().forward(x, hx)


class Renamed(Doubled):
    pass


class Further(Renamed):
    def __init__(self, *sizes, factor=3):
        super().__init__(*sizes)
        self.factor = factor

    def forward(self, x):
        output, states = super().forward(x)
        return self.factor * output, states


class Other(nn.GRU):
    def forward(self, x, hx=None):
        return x, hx


class Base(nn.GRU):
    def forward(self, x, hx=None):
        return nn.GRU.forward(self, x, hx)


class Inside(nn.LSTM):
    """It goes past the module's forward."""

    def forward(self, x):
        if x.requires_grad:
            return super().forward(x)
        return _functional, self._flat_weights


class FromBase(nn.RNNBase):
    pass


def seeded(kind=nn.GRU):
    torch.manual_seed(0)
    return kind(F, H)


def called(module):
    """The results of a call."""
    x = torch.randn(T, N, F, generator=torch.Generator().manual_seed(0))
    return flat(module(x[0] if isinstance(module, nn.RNNCellBase) else x))


def repickled(module):
    return pickle.loads(pickle.dumps(module))


def outputs(module):
    found = called(module)
    found[0].square().sum().backward()
    gradients = [one.grad.clone() for one in module.parameters()]
    module.zero_grad()
    return [*found, *gradients]


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [Doubled, Renamed, Further])
def test_subclass_that_calls_super_forward_is_accelerated(kind):
    module = seeded(kind)
    expected = outputs(module)
    assert accelerate(module) == (("",), {})
    assert is_accelerated(type(module)) and isinstance(module, kind)
    assert (type(module).__name__, type(module).__module__) == (kind.__name__, kind.__module__)
    assert_close(outputs(module), expected)
    assert accelerate(module) == ((), {}) and restore(module) == ("",)
    assert type(module) is kind
    assert_close(outputs(module), expected)


REASONS = {kind: ".forward does not call super().forward" for kind in (Other, Base)}
REASONS |= {Inside: ".forward uses _flat_weights", FromBase: " is not a class of torch.nn"}


@pytest.mark.parametrize("kind", REASONS)
def test_unsupported_subclass_is_left_with_its_reason(kind):
    module = kind("GRU", F, H) if kind is FromBase else kind(F, H)
    assert accelerate(module) == ((), {"": f"{kind.__module__}.{kind.__name__}{REASONS[kind]}"})
    assert type(module) is kind


class OnTheEngine(rnnkit.torch.LSTM):
    """A user's subclass of ours."""


def test_subclass_of_an_rnnkit_module_is_not_restored():
    """There is no class that it had before."""
    for change in (lambda module: None, lambda module: parametrizations.weight_norm(module, "weight_hh_l0")):
        module = OnTheEngine(F, H)
        change(module)
        kind = type(module)
        assert accelerate(module) == ((), {}) and restore(module) == ()
        assert type(module) is kind


def trained(module, steps=3):
    optimizer, losses = torch.optim.SGD(module.parameters(), 0.1), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = called(module)[0].square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("parametrization", [parametrizations.weight_norm, parametrizations.orthogonal])
@pytest.mark.parametrize("kind", [nn.GRU, Doubled, DoubledCell])
def test_parametrized_module_is_accelerated_and_restored(kind, parametrization):
    name = "weight_hh" if kind is DoubledCell else "weight_hh_l0"
    plain, module = (parametrization(seeded(kind), name) for _ in range(2))
    expected = trained(plain, 6)
    was = type(module)
    assert accelerate(module) == (("",), {})
    found = trained(module)
    assert is_accelerated(type(module)) and type(module).__name__ == was.__name__
    assert parametrize.is_parametrized(module)
    restore(module)
    assert type(module).__name__ == was.__name__ and not is_accelerated(type(module))
    assert_close(found + trained(module), expected)
    accelerate(module)
    parametrize.remove_parametrizations(module, name)
    assert type(module).__name__ == kind.__name__ and is_accelerated(type(module)) and isinstance(module, kind)
    restore(module)
    assert type(module) is kind


def test_module_parametrized_after_accelerate_is_restored():
    accelerated_one, module = seeded(), seeded()
    for one in (accelerated_one, module):
        accelerate(one)
        parametrizations.weight_norm(one, "weight_hh_l0")
    expected = trained(accelerated_one)
    assert restore(module) == ("",) and not is_accelerated(type(module))
    assert_close(trained(module), expected)


def test_shallow_copy_of_a_parametrized_subclass_is_refused():
    """Refused as PyTorch refuses it."""
    module = parametrizations.weight_norm(Doubled(F, H), "weight_hh_l0")
    for change in (lambda _: None, accelerate):
        change(module)
        with pytest.raises(RuntimeError, match="only supported through state_dict"):
            copy.copy(module)


def test_pruned_module_trains_as_pytorchs():
    plain, module = (prune.random_unstructured(seeded(), "weight_hh_l0", 0.5) for _ in range(2))
    assert accelerate(module) == (("",), {})
    assert_close(trained(module), trained(plain))


class Model(nn.Module):
    """What a library makes inside of its fit."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.other = nn.LSTM(F, H), Further(F, H), Other(F, H)
        self.short = nn.GRU(F, H, dtype=torch.float16)


def test_modules_made_in_accelerated_run_on_the_engine():
    with accelerated():
        model = Model()
        own = rnnkit.torch.GRU(F, H)
    for one in (model.encoder, model.decoder, model.other, own):
        one(torch.ones(T, N, F))
    assert type(model.encoder) is rnnkit.torch.LSTM
    assert is_accelerated(type(model.decoder)) and model.decoder.factor == 3
    assert type(model.other) is Other and type(model.short) is nn.GRU and type(own) is rnnkit.torch.GRU
    assert type(Model().encoder) is nn.LSTM
    assert accelerate(model).changed == ()
    restore(model)
    assert type(model.encoder) is nn.LSTM and type(model.decoder) is Further


def initialised():
    """As dozens of programs do it: by exact types."""
    model = nn.ModuleList([nn.GRU(F, H, num_layers=2, bidirectional=True), nn.LSTMCell(F, H)])
    torch.manual_seed(1)
    for module in model.modules():
        if type(module) == nn.GRU or type(module) is nn.LSTMCell:  # noqa: E721
            for parameter in module.parameters():
                nn.init.uniform_(parameter)
    return model


def test_initialisation_by_exact_type_finds_modules_made_in_accelerated():
    """Their values are PyTorch's."""
    with accelerated():
        model = initialised()
    for module, plain in zip(model, initialised(), strict=True):
        assert_close(outputs(module), outputs(plain))
        assert list(module.state_dict()) == list(plain.state_dict())
    assert [*map(type, model)] == [rnnkit.torch.GRU, rnnkit.torch.LSTMCell]


def test_module_changed_before_its_first_call_runs_as_it_is_then():
    with accelerated():
        short, normed, owned, plain = nn.GRU(F, H), nn.GRU(F, H), nn.GRU(F, H), nn.GRU(F, H)
    short.half()
    nn.utils.parametrizations.weight_norm(normed, "weight_hh_l0")
    x = torch.ones(T, N, F)
    assert short(x.half())[0].dtype is torch.float16 and type(short) is nn.GRU
    assert normed(x)[0].shape == (T, N, H) and is_accelerated(type(normed))
    assert accelerate(owned).changed == ("",) and type(pickle.loads(pickle.dumps(owned))) is rnnkit.torch.GRU
    assert restore(plain) == ("",) and plain(x)[0].shape == (T, N, H) and type(plain) is nn.GRU
    assert restore(plain) == ()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_module_made_in_accelerated_is_compiled_and_exported():
    torch.compiler.reset()
    x = torch.ones(T, N, F)
    with accelerated():
        called, waiting, plain = nn.GRU(F, H), nn.GRU(F, H), nn.GRU(F, H)
    expected = called(x)[0]
    with torch._dynamo.config.patch(allow_rnn=True):
        assert torch.equal(torch.compile(called, backend="aot_eager", fullgraph=True)(x)[0], expected)
    assert torch.equal(torch.export.export(called, (x,)).module()(x)[0], expected)
    compiled = torch.compile(waiting, backend="aot_eager")
    assert [type(compiled(x)[0]) for _ in range(2)] == [torch.Tensor] * 2 and type(waiting) is rnnkit.torch.GRU
    restore(plain)
    assert torch.jit.script(nn.Sequential(plain))(x)[0].shape == (T, N, H)


def test_accelerated_nests_and_is_per_thread():
    found = []
    with accelerated():
        with accelerated():
            pass
        found.append(nn.GRU(F, H))
        thread = threading.Thread(target=lambda: found.append(nn.GRU(F, H)))
        thread.start()
        thread.join()
    with pytest.raises(ZeroDivisionError), accelerated():
        1 / 0  # noqa: B018
    found.append(nn.GRU(F, H))
    for module in found:
        called(module)
    assert [*map(type, found)] == [rnnkit.torch.GRU, nn.GRU, nn.GRU]


def test_pickle_of_a_module_made_in_accelerated_is_pytorchs(tmp_path):
    """It loads where there is no rnnkit."""
    with accelerated():
        modules = nn.LSTM(F, H), Further(F, H, factor=7), nn.GRUCell(F, H)
    for one in modules:
        early = repickled(one)  # before its first call
        called(one)
        found = repickled(one)
        assert type(found) in (nn.LSTM, Further, nn.GRUCell)
        assert vars(found).keys() == vars(type(found)(F, H)).keys()
        for other in (early, found):
            assert_close(outputs(other), outputs(one))
            assert not is_accelerated(type(other))
    torch.save(modules[0], tmp_path / "module.pt")
    text = (
        "import sys; sys.modules['rnnkit'] = None; import io, torch; "
        f"module = torch.load({os.fspath(tmp_path / 'module.pt')!r}, weights_only=False); "
        f"buffer = torch.ones({T}, {N}, {F}); print(type(module).__module__, module(buffer)[0].sum().item())"
    )
    result = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    name, total = result.stdout.split()
    assert name == "torch.nn.modules.rnn"
    assert float(total) == pytest.approx(modules[0](torch.ones(T, N, F))[0].sum().item(), rel=1e-5)


WAYS = [(way, copied) for way in ("accelerated", "born", "waiting") for copied in (copy.copy, copy.deepcopy)]


@pytest.mark.parametrize(("way", "copied"), [*WAYS, ("accelerated", repickled)])
def test_copies_run_on_the_engine(way, copied):
    with contextlib.nullcontext() if way == "accelerated" else accelerated():
        modules = nn.LSTM(F, H), Further(F, H, factor=7)
    for module in modules:
        if way == "accelerated":
            accelerate(module)
        elif way == "born":
            called(module)
        found = copied(module)
        assert type(found) is type(module)
        assert_close(outputs(found), outputs(module))
        assert type(found) is type(module) and is_accelerated(type(found))
        restore(found)
        assert not is_accelerated(type(found))
