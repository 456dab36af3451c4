"""Parameters are neighbours in one buffer, each with a storage of its own, whatever is done to a module."""

import copy
import pickle
import time
from functools import partial

import numpy as np
import pytest
import torch
from messages import raises
from optional import needs
from torch import nn, optim
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, parametrize, vector_to_parameters
from torch_tensors import assert_equal, reloaded

import rnnkit
import rnnkit.torch
from rnnkit.torch import accelerate, function, restore
from rnnkit.torch.function import flat_weights

T, N, F, H = 6, 4, 3, 5
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


class Model(nn.Module):
    def __init__(self, library=nn):
        super().__init__()
        self.encoder = library.LSTM(F, H, 2, bidirectional=True, proj_size=2)
        self.decoder = library.GRU(4, H, bidirectional=True, bias=False)
        self.readout, self.other = nn.Linear(2 * H, 2), None

    def forward(self, x):
        states, _ = self.encoder(x)
        other = 0 if self.other is None else self.other(states)[0]
        return self.readout(self.decoder(states)[0] - other)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def models(model):
    """PyTorch's model, and the same one on the engine."""
    return model, accelerated(copy.deepcopy(model))


@pytest.fixture
def modules(models):
    """PyTorch's module and ours, with the same weights."""
    return [one.encoder for one in models]


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(T, N, F)


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def assert_own_storages(tensors):
    tensors = list(tensors)
    assert all(one.untyped_storage().nbytes() == one.nbytes for one in tensors)
    assert len({one.untyped_storage().data_ptr() for one in tensors}) == len(tensors)


def assert_neighbours(module):
    """The parameters follow each other in cuDNN's order: the engine reads them where they are."""
    desc = module._rnnkit_desc(0.0)
    blocks = rnnkit.weight_layout(desc)
    parameters = [module.get_parameter(block.name) for block in blocks]
    first = parameters[0]
    for block, one in zip(blocks, parameters, strict=True):
        assert one.shape == block.shape and one.is_contiguous()
        assert one.data_ptr() == first.data_ptr() + block.start * first.element_size()
    array, copied = flat_weights(desc, parameters)
    assert array.ctypes.data == first.data_ptr() and not copied


def accelerated(model):
    accelerate(model)
    return model


def trained(model):
    model(torch.ones(T, N, F)).square().mean().backward()
    optim.SGD(model.parameters(), 0.1).step()
    return model


def restored(model):
    restore(trained(accelerated(model)))
    return model


def of_one_storage(model):
    """As earlier versions pickled a module: with parameters that view one buffer."""
    for module in (model.encoder, model.decoder):
        vector_to_parameters(parameters_to_vector(module.parameters()).detach(), module.parameters())
    return model


def loaded(model, assign=False):
    own = accelerated(Model())
    own.load_state_dict(copy.deepcopy(model.state_dict()), assign=assign)
    return own


def filled_later(model):
    with torch.device("meta"):
        own = Model(rnnkit.torch)
    own.to_empty(device="cpu").load_state_dict(model.state_dict())
    return own


def of_another_dtype_between(model):
    names = dict(accelerated(model).named_parameters())
    assert_neighbours(model.double().encoder)
    assert all(one is names[name] for name, one in model.float().named_parameters())
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
    "another dtype": of_another_dtype_between,
    "state_dict": loaded,
    "assigned state_dict": partial(loaded, assign=True),
    "meta": filled_later,
}


@pytest.mark.parametrize("way", WAYS)
def test_parameters_and_gradients_have_their_own_storages(model, x, way, tmp_path):
    """Parameters are neighbours all the same, and files of a model load in PyTorch and accelerated."""
    library, expected = needs("safetensors.torch"), model(x)
    found = WAYS[way](model)
    for one in (found.encoder, found.decoder):
        assert_own_storages(one.parameters())
        if way != "restored":
            assert_neighbours(one)
    if way not in ("trained", "restored"):
        assert_close(found(x), expected)
    trained(found)
    assert_own_storages(found.parameters())
    library.save_model(found, tmp_path / "model")
    library.save_file(found.state_dict(), tmp_path / "tensors")
    torch.save(found.state_dict(), tmp_path / "state")
    states = library.load_file(tmp_path / "model"), library.load_file(tmp_path / "tensors")
    for state in (*states, torch.load(tmp_path / "state")):
        other = Model()
        other.load_state_dict(state)
        assert_close(other(x), found(x))
    assert library.load_model(accelerated(other), tmp_path / "model") == (set(), [])
    assert_close(other(x), found(x))
    assert_own_storages(one.grad for one in accelerated(found).parameters())


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


CHANGES = {
    "in place": of_each(lambda one: one.div_(2)),
    "data in place": of_each(lambda one: one.data.div_(2)),
    "other data": of_each(lambda one: set_data(one, halved(one))),
    "array": of_each(lambda one: np.divide(one.detach().numpy(), 2, out=one.detach().numpy())),
    "strides": of_each(lambda one: set_data(one, one.data.reshape(one.shape[::-1]).t())),  # at the same address
    "parameter": by_parameter,
    "vector": by_vector,
    "sharing": by_sharing,
    "state_dict": by_state_dict,
    "assigned state_dict": partial(by_state_dict, assign=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_parameters_take_effect_in_the_next_call(models, x, change):
    found = []
    for one in models:
        one(x)
        CHANGES[change](one)
        output = one(x)
        output.square().sum().backward()
        found.append((output, one.eval()(x), *(parameter.grad for parameter in one.parameters())))
    torch.testing.assert_close(*found, **CLOSE)


def test_parameters_may_be_shared_between_forward_and_backward(monkeypatch, x):
    """That frees the memory where they were."""
    module, gathered = rnnkit.torch.GRU(F, H, bidirectional=True), []
    expected = torch.autograd.grad(module(x)[0].sum(), list(module.parameters()))
    output, _ = module(x)
    module.share_memory()
    monkeypatch.setattr(function, "flat_weights", lambda *given: gathered.append(given) or flat_weights(*given))
    assert_equal(torch.autograd.grad(output.sum(), list(module.parameters())), expected)
    assert len(gathered) == 1


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


def test_weights_in_use_survive_load_state_dict(modules):
    """When another thread gives a module other weights meanwhile."""
    _, own = modules
    own.requires_grad_(False)
    blocks = rnnkit.weight_layout(own._rnnkit_desc(0.0))
    array, _ = flat_weights(own._rnnkit_desc(0.0), [own.get_parameter(block.name) for block in blocks])
    expected = array.copy()
    own.load_state_dict({name: torch.zeros_like(one) for name, one in own.state_dict().items()}, assign=True)
    others = [torch.full((array.size,), 7.0) for _ in range(50)]  # in memory that has been freed, were there any
    assert (array == expected).all() and others


def test_replicas_of_data_parallel_have_gradients(x):
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


def test_distributed_data_parallel_matches_pytorch(modules, x, tmp_path):
    plain, own = modules
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    nn.parallel.DistributedDataParallel(own)(x)[0].sum().backward()
    # Gloo's destructor waits for its threads without letting the GIL go, which they need to drop what they hold.
    time.sleep(0.2)
    torch.distributed.destroy_process_group()
    assert_neighbours(own)
    plain(x)[0].sum().backward()
    torch.testing.assert_close(*([one.grad for one in module.parameters()] for module in modules), **CLOSE)


def test_parameter_shared_by_two_modules_trains_as_pytorchs(model):
    model.other = nn.GRU(4, H, bidirectional=True, bias=False)
    model.other.weight_hh_l0 = model.decoder.weight_hh_l0
    found = []
    for one in (model, accelerated(copy.deepcopy(model))):
        assert one.other.weight_hh_l0 is one.decoder.weight_hh_l0
        found.append(list(trained(trained(one)).parameters()))
        assert copy.deepcopy(one).other.weight_hh_l0 is not one.other.weight_hh_l0
    torch.testing.assert_close(*found, **CLOSE)


def test_tied_parameters_of_a_module_stay_tied(modules, x):
    plain, own = modules
    for module in modules:
        module.weight_hh_l1 = module.weight_hh_l1_reverse = module.weight_hh_l0
    assert_close(own(x)[0], plain(x)[0])
    for module in modules:
        module(x)[0].sum().backward()
    torch.testing.assert_close(own.weight_hh_l0.grad, plain.weight_hh_l0.grad, **CLOSE)
    copied = copy.deepcopy(own)
    assert copied.weight_hh_l1 is copied.weight_hh_l0
    assert_close(copied(x)[0], plain(x)[0])


def test_flatten_parameters_keeps_shared_memory_shared(modules):
    _, own = modules
    own.weight_hh_l1.data = own.weight_hh_l0.data
    own.flatten_parameters()
    with torch.no_grad():
        own.weight_hh_l1.fill_(7)
    assert (own.weight_hh_l0 == 7).all()


def test_parameters_of_functional_call_are_copied_not_moved(modules, x):
    """As for `torch.func`, whose tensors are not ours to move."""
    plain, own = modules
    given = {name: torch.randn_like(one, requires_grad=True) for name, one in own.named_parameters()}
    addresses = {name: one.data_ptr() for name, one in given.items()}
    found, expected = (functional_call(one, given, (x,))[0] for one in (own, plain))
    torch.testing.assert_close(found, expected)
    found, expected = (torch.autograd.grad(y.sum(), [*given.values()]) for y in (found, expected))
    torch.testing.assert_close(found, expected, **CLOSE)
    assert {name: one.data_ptr() for name, one in given.items()} == addresses
    assert_neighbours(own)


def test_parameters_of_wrong_shape_or_dtype_are_named(modules, x):
    _, own = modules
    own.requires_grad_(False)
    weight = own.weight_hh_l0.data
    for other in weight.double(), weight.view(torch.int32):
        own.weight_hh_l0.data = other
        with raises(TypeError, f"forward: weight_hh_l0 | torch.float32 on cpu | {other.dtype} on cpu"):
            own(x)
    own.weight_hh_l0.data = weight
    double = dict(copy.deepcopy(own).double().named_parameters())
    with raises(TypeError, "forward: weight_ih_l0 | torch.float32 on cpu | torch.float64 on cpu"):
        functional_call(own, double, (x,))
    own.weight_hh_l0.data = own.weight_hh_l0.data.view(-1)
    with raises(TypeError, "forward: weight_hh_l0 | (20, 2) | (40,)"):
        own(x)
    own.weight_hh_l0 = nn.Parameter(torch.zeros(1, 1))
    own.flatten_parameters()
    assert own.weight_hh_l0.shape == (1, 1)
    with raises(TypeError, "forward: weight_hh_l0 | (20, 2) | (1, 1)"):
        own(x)


class Rounding(nn.Module):
    """A parametrisation that autocast acts on."""

    def forward(self, weight):
        return weight @ torch.eye(weight.shape[1])


@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l1"])
def test_autocast_may_act_on_a_parametrization(modules, x, name):
    found = []
    for module in modules:
        parametrize.register_parametrization(module, name, Rounding())
        with torch.autocast("cpu", torch.bfloat16):
            found.append(module(x)[0].float())
        found[-1].sum().backward()
        assert all(one.grad.any() for one in module.parameters())
    torch.testing.assert_close(*found, rtol=0.05, atol=0.02)
