"""Each parameter has a storage of its own, so what saves, shares, averages or changes parameters finds them."""

import copy
import io
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import parameters_to_vector, vector_to_parameters  # noqa: E402
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: E402

import rnnkit.torch  # noqa: E402
from rnnkit.torch import accelerate, function, restore  # noqa: E402
from rnnkit.torch.function import flat_weights  # noqa: E402

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


def loaded(model):
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


def of_one_storage(model):
    """As earlier versions pickled a module: with parameters that view one buffer."""
    for module in (model.encoder, model.decoder):
        vector_to_parameters(parameters_to_vector(module.parameters()).detach(), module.parameters())
    return model


WAYS = {
    "accelerated": accelerated, "trained": lambda model: trained(accelerated(model)), "restored": restored,
    "deepcopy": lambda model: copy.deepcopy(accelerated(model)), "torch.save": lambda model: loaded(accelerated(model)),
    "pickle": lambda model: pickle.loads(pickle.dumps(accelerated(model))),
    "of one storage": lambda model: accelerated(of_one_storage(model)),
    "loaded of one storage": lambda model: loaded(of_one_storage(accelerated(model))),
    "another dtype": lambda model: accelerated(model).double().float(),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_parameters_and_gradients_have_storages_of_their_own(model, way):
    found = WAYS[way](model)
    assert_own_storages(found.encoder.parameters())
    assert_own_storages(found.decoder.parameters())
    trained(found)
    assert_own_storages(found.parameters())
    assert_own_storages(one.grad for one in accelerated(found).parameters())


@pytest.mark.parametrize("way", WAYS)
def test_files(model, x, way, tmp_path):
    library = pytest.importorskip("safetensors.torch")
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


def test_a_file_of_one_parameter_has_no_other(model):
    stream = io.BytesIO()
    torch.save(accelerated(model).decoder.weight_ih_l0, stream)
    assert stream.getbuffer().nbytes < model.decoder.weight_ih_l0.nbytes + 2000


def halved(one):
    return one.detach() / 2


@torch.no_grad()
def in_place(module):
    for one in module.parameters():
        one.div_(2)


@torch.no_grad()
def copied(module):
    for one in module.parameters():
        one.copy_(halved(one))


def by_data(module):
    for one in module.parameters():
        one.data.div_(2)


def by_another_data(module):
    for one in module.parameters():
        one.data = halved(one)


def by_array(module):
    for one in module.parameters():
        one.detach().numpy()[:] /= 2


def by_storage(module):
    for one in module.parameters():
        one.detach().set_(one.untyped_storage()).div_(2)


def by_strides(module):
    for one in module.parameters():
        one.data = one.data.reshape(one.shape[::-1]).t()  # other numbers at the same address


def by_parameter(module):
    for name, one in list(module.named_parameters()):
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, nn.Parameter(halved(one)))


def by_vector(module):
    vector_to_parameters(halved(parameters_to_vector(module.parameters())), module.parameters())


def by_sharing(module):
    module.share_memory()
    assert all(one.is_shared() for one in module.parameters())
    in_place(module)
    assert all(one.is_shared() for one in module.parameters())


def by_state_dict(module, assign=False):
    module.load_state_dict({name: halved(one) for name, one in module.state_dict().items()}, assign=assign)


def by_assignment(module):
    by_state_dict(module, assign=True)


def by_a_parametrisation(module):
    class Half(nn.Module):
        def forward(self, weight):
            return weight / 2

    for owner in (module.encoder, module.decoder):
        for name in [name for name, _ in owner.named_parameters()]:
            nn.utils.parametrize.register_parametrization(owner, name, Half())
    by_data(module.readout)


CHANGES = (
    in_place, copied, by_data, by_another_data, by_array, by_storage, by_strides, by_parameter, by_vector, by_sharing,
    by_state_dict, by_assignment, by_a_parametrisation
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_the_next_call_sees_a_change(model, x, change):
    found = []
    for one in pair(model):
        one(x)
        change(one)
        output = one(x)
        output.square().sum().backward()
        found.append((output, one.eval()(x), *(parameter.grad for parameter in one.parameters())))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


def by_another_place(module):
    for one in module.parameters():
        one.data = one.data.clone()


@pytest.mark.parametrize("change", [nn.Module.share_memory, by_another_place])
def test_parameters_may_move_between_forward_and_backward(monkeypatch, x, change):
    module = rnnkit.torch.GRU(F, H, bidirectional=True)
    expected = torch.autograd.grad(module(x)[0].sum(), list(module.parameters()))
    output, _ = module(x)
    change(module)
    gathered = []
    monkeypatch.setattr(function, "flat_weights", lambda *given: gathered.append(given) or flat_weights(*given))
    for a, b in zip(torch.autograd.grad(output.sum(), list(module.parameters())), expected, strict=True):
        assert torch.equal(a, b)
    # Sharing frees the memory where they were; assigned `data` does not, as the graph has references to it.
    assert len(gathered) == (change is nn.Module.share_memory)


def shared_and_assigned(module):
    module.share_memory()
    by_another_data(module)


@pytest.mark.parametrize("change", [by_another_data, by_vector, shared_and_assigned])
@pytest.mark.parametrize(("kind", "shape", "keywords"), [
    ("GRUCell", (N, F), {}), ("GRU", (1, N, F), {}), ("GRU", (T, N, F), {}), ("LSTM", (800, 60, F), {}),
    ("GRU", (T, N, F), {"lengths": [T] * N}), ("exported", (T, N, F), {}),
])  # fmt: skip
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
            change(module)
        found.append(torch.autograd.grad(output.square().sum(), [x, *module.parameters()]))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_replicas(model, x):
    """As DataParallel makes them, whose tensors are no parameters."""
    module = rnnkit.torch.GRU(F, H, bidirectional=True)
    replica = module._replicate_for_data_parallel()
    for name, one in module.named_parameters():
        setattr(replica, name, 2 * one)
    output, _ = replica(x)
    output.sum().backward()
    assert all(one.grad.any() for one in module.parameters())
    by_data(module)
    assert torch.equal(replica(x)[0], output)


def test_a_parameter_of_two_modules(model, x):
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
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("average", [None, get_ema_multi_avg_fn(0.5)], ids=["mean", "ema"])
def test_averaged_models(model, x, average):
    found = []
    for one in pair(model):
        averaged = AveragedModel(one, multi_avg_fn=average)
        for _ in range(3):
            averaged.update_parameters(trained(one))
        assert_own_storages(averaged.parameters())
        found.append(averaged(x))
    torch.testing.assert_close(*found, **CLOSE)


def test_threads_may_call_one_module_at_once(model, x):
    found = accelerated(model)
    expected = found(x)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(one, expected) for one in pool.map(found, [x] * 16))
