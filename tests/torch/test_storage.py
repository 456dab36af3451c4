"""Each parameter has a storage of its own, so what saves, shares, averages or changes parameters finds them."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from optional import needs
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch_tensors import assert_equal, reloaded

import rnnkit.torch
from rnnkit.torch import accelerate, function, restore
from rnnkit.torch.function import flat_weights

T, N, F, H = 6, 4, 3, 5
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(F, H, 2, bidirectional=True)
        self.decoder = nn.GRU(2 * H, H, bidirectional=True, bias=False)
        self.readout = nn.Linear(2 * H, 2)

    def forward(self, x):
        return self.readout(self.decoder(self.encoder(x)[0])[0])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(T, N, F)


def pair(model):
    """PyTorch's model, and the same one on the engine."""
    return model, accelerated(copy.deepcopy(model))


def assert_own_storages(tensors):
    tensors = list(tensors)
    assert all(one.untyped_storage().nbytes() == one.nbytes for one in tensors)
    assert len({one.untyped_storage().data_ptr() for one in tensors}) == len(tensors)


def accelerated(model):
    accelerate(model)
    return model


def trained(model):
    model(torch.ones(T, N, F)).square().mean().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    return model


def restored(model):
    restore(trained(accelerated(model)))
    return model


def of_one_storage(model):
    """As earlier versions pickled a module: with parameters that view one buffer."""
    for module in (model.encoder, model.decoder):
        vector_to_parameters(parameters_to_vector(module.parameters()).detach(), module.parameters())
    return model


WAYS = {
    "accelerated": accelerated,
    "trained": lambda model: trained(accelerated(model)),
    "restored": restored,
    "deepcopy": lambda model: copy.deepcopy(accelerated(model)),
    "torch.save": lambda model: reloaded(accelerated(model)),
    "pickle": lambda model: pickle.loads(pickle.dumps(accelerated(model))),
    "of one storage": lambda model: accelerated(of_one_storage(model)),
    "loaded of one storage": lambda model: reloaded(of_one_storage(accelerated(model))),
    "another dtype": lambda model: accelerated(model).double().float(),
}


@pytest.mark.parametrize("way", WAYS)
def test_parameters_and_gradients_have_their_own_storages(model, way):
    found = WAYS[way](model)
    assert_own_storages(found.encoder.parameters())
    assert_own_storages(found.decoder.parameters())
    trained(found)
    assert_own_storages(found.parameters())
    assert_own_storages(one.grad for one in accelerated(found).parameters())


@pytest.mark.parametrize("way", WAYS)
def test_files_of_models_load_in_pytorch_and_accelerated(model, x, way, tmp_path):
    library = needs("safetensors.torch")
    found = WAYS[way](model)
    library.save_model(found, tmp_path / "model")
    library.save_file(found.state_dict(), tmp_path / "tensors")
    torch.save(found.state_dict(), tmp_path / "state")
    states = library.load_file(tmp_path / "model"), library.load_file(tmp_path / "tensors")
    for state in (*states, torch.load(tmp_path / "state")):
        other = Model()
        other.load_state_dict(state)
        torch.testing.assert_close(other(x), found(x), **CLOSE)
    assert library.load_model(accelerated(other), tmp_path / "model") == (set(), [])
    torch.testing.assert_close(other(x), found(x), **CLOSE)


def halved(one):
    return one.detach() / 2


def of_each(change):
    """A change of a module that makes this one of each parameter."""

    @torch.no_grad()
    def change_all(module):
        for one in module.parameters():
            change(one)

    return change_all


def set_data(one, value):
    one.data = value


def by_parameter(module):
    for name, one in list(module.named_parameters()):
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, nn.Parameter(halved(one)))


def by_vector(module):
    vector_to_parameters(halved(parameters_to_vector(module.parameters())), module.parameters())


def by_sharing(module):
    module.share_memory()
    CHANGES["in place"](module)
    assert all(one.is_shared() for one in module.parameters())


def by_state_dict(module, assign=False):
    module.load_state_dict({name: halved(one) for name, one in module.state_dict().items()}, assign=assign)


def by_a_parametrization(module):
    class Half(nn.Module):
        def forward(self, weight):
            return weight / 2

    for owner in (module.encoder, module.decoder):
        for name in [name for name, _ in owner.named_parameters()]:
            nn.utils.parametrize.register_parametrization(owner, name, Half())
    CHANGES["data in place"](module.readout)


CHANGES = {
    "in place": of_each(lambda one: one.div_(2)),
    "copied": of_each(lambda one: one.copy_(halved(one))),
    "data in place": of_each(lambda one: one.data.div_(2)),
    "other data": of_each(lambda one: set_data(one, halved(one))),
    "array": of_each(lambda one: np.divide(one.detach().numpy(), 2, out=one.detach().numpy())),
    "storage": of_each(lambda one: one.detach().set_(one.untyped_storage()).div_(2)),
    "strides": of_each(lambda one: set_data(one, one.data.reshape(one.shape[::-1]).t())),  # at the same address
    "parameter": by_parameter,
    "vector": by_vector,
    "sharing": by_sharing,
    "state_dict": by_state_dict,
    "assigned state_dict": partial(by_state_dict, assign=True),
    "parametrization": by_a_parametrization,
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_parameters_take_effect_in_the_next_call(model, x, change):
    found = []
    for one in pair(model):
        one(x)
        CHANGES[change](one)
        output = one(x)
        output.square().sum().backward()
        found.append((output, one.eval()(x), *(parameter.grad for parameter in one.parameters())))
    torch.testing.assert_close(*found, **CLOSE)


MOVES = {"shared": nn.Module.share_memory, "copied": of_each(lambda one: set_data(one, one.data.clone()))}


@pytest.mark.parametrize("change", MOVES)
def test_parameters_may_move_between_forward_and_backward(monkeypatch, x, change):
    module = rnnkit.torch.GRU(F, H, bidirectional=True)
    expected = torch.autograd.grad(module(x)[0].sum(), list(module.parameters()))
    output, _ = module(x)
    MOVES[change](module)
    gathered = []
    monkeypatch.setattr(function, "flat_weights", lambda *given: gathered.append(given) or flat_weights(*given))
    assert_equal(torch.autograd.grad(output.sum(), list(module.parameters())), expected)
    # Sharing frees the memory where they were; assigned `data` does not, as the graph has references to it.
    assert len(gathered) == (change == "shared")


def shared_and_assigned(module):
    module.share_memory()
    CHANGES["other data"](module)


ASSIGNED = {"other data": CHANGES["other data"], "vector": by_vector, "shared and assigned": shared_and_assigned}
SHAPES = [("GRUCell", (N, F)), ("GRU", (1, N, F)), ("GRU", (T, N, F)), ("LSTM", (800, 60, F)), ("exported", (T, N, F))]


@pytest.mark.parametrize("change", ASSIGNED)
@pytest.mark.parametrize(
    ("kind", "shape", "keywords"), [*((*one, {}) for one in SHAPES), ("GRU", (T, N, F), {"lengths": [T] * N})]
)
def test_backward_reads_the_weights_of_its_forward(kind, shape, keywords, change):
    """As PyTorch's GRU does, when the parameters have other data by then. No version counter tells."""
    torch.manual_seed(0)
    module = getattr(rnnkit.torch, "GRU" if kind == "exported" else kind)(F, H)
    if kind == "exported":
        module = torch.export.export(module, (torch.ones(shape),)).module()
    x, found = torch.randn(shape, requires_grad=True), []
    for changes in (False, True):
        output = module(x, **keywords)
        output = output[0] if isinstance(output, tuple) else output
        if changes:
            ASSIGNED[change](module)
        found.append(torch.autograd.grad(output.square().sum(), [x, *module.parameters()]))
    assert_equal(*found)


def test_replicas_of_data_parallel_have_gradients(model, x):
    """As DataParallel makes them, whose tensors are no parameters."""
    module = rnnkit.torch.GRU(F, H, bidirectional=True)
    replica = module._replicate_for_data_parallel()
    for name, one in module.named_parameters():
        setattr(replica, name, 2 * one)
    output, _ = replica(x)
    output.sum().backward()
    assert all(one.grad.any() for one in module.parameters())
    CHANGES["data in place"](module)
    assert torch.equal(replica(x)[0], output)


def test_parameter_shared_by_two_modules_trains_as_pytorchs(model, x):
    model.other = nn.GRU(2 * H, H, bidirectional=True, bias=False)
    model.other.weight_hh_l0 = model.decoder.weight_hh_l0
    found = []
    for one in pair(model):
        assert one.other.weight_hh_l0 is one.decoder.weight_hh_l0
        optimizer = torch.optim.SGD(one.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            states, _ = one.encoder(x)
            output = one.other(states)[0] - one.decoder(states)[0]
            output.square().sum().backward()
            optimizer.step()
        found.append((output, *one.encoder.parameters(), *one.decoder.parameters(), *one.other.parameters()))
        assert copy.deepcopy(one).other.weight_hh_l0 is not one.other.weight_hh_l0
    torch.testing.assert_close(*found, **CLOSE)
