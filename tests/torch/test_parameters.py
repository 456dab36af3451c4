"""Parameters that are neighbours in one buffer, and stay so whatever is done to a module."""

import copy
import pickle
import time
from functools import partial

import pytest
import torch
from messages import says
from torch import nn, optim
from torch.func import functional_call
from torch_tensors import reloaded

import rnnkit
import rnnkit.torch
from rnnkit.torch.function import flat_weights

T, N, F, H = 6, 4, 3, 5
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
KINDS = {"RNN": {}, "LSTM": {"proj_size": 2}, "GRU": {"bias": False}}


def made_in(library, kind, **options):
    return getattr(library, kind)(F, H, 2, bidirectional=True, **KINDS[kind], **options)


@pytest.fixture(params=KINDS)
def modules(request):
    """PyTorch's module and ours, with the same weights."""
    torch.manual_seed(0)
    plain, own = (made_in(library, request.param) for library in (nn, rnnkit.torch))
    own.load_state_dict(plain.state_dict())
    return plain, own


def assert_neighbours(module):
    """The parameters follow each other in cuDNN's order: the engine reads them where they are."""
    blocks = rnnkit.weight_layout(module._rnnkit_desc(0.0))
    parameters = [module.get_parameter(block.name) for block in blocks]
    first = parameters[0]
    for block, one in zip(blocks, parameters, strict=True):
        assert one.shape == block.shape and one.is_contiguous()
        assert one.data_ptr() == first.data_ptr() + block.start * first.element_size()
    array, copied = flat_weights(module._rnnkit_desc(0.0), parameters)
    assert array.ctypes.data == first.data_ptr() and not copied


def assert_same(found, plain, dtype=torch.float32):
    torch.manual_seed(9)
    x = torch.randn(T, N, F, dtype=dtype)
    torch.testing.assert_close(found(x)[0], plain(x)[0], rtol=1e-5, atol=1e-6)


MADE = {"as they come": lambda module: module, "deepcopy": copy.deepcopy, "torch.save": reloaded}
MADE |= {"pickle": lambda one: pickle.loads(pickle.dumps(one)), "train": nn.Module.train, "cpu": nn.Module.cpu}


@pytest.mark.parametrize("made", MADE)
def test_copies_and_conversions_keep_one_buffer(modules, made):
    plain, own = modules
    found = MADE[made](own)
    assert_neighbours(found)
    assert_same(found, plain)
    for module in (found, plain):
        nn.init.zeros_(module.weight_hh_l0)
    assert_same(found, plain)


def test_parameters_of_another_dtype_keep_one_buffer(modules):
    plain, own = modules
    names = dict(own.named_parameters())
    own.double()
    assert_neighbours(own)
    assert_same(own, copy.deepcopy(plain).double(), torch.float64)
    own.float()
    assert_neighbours(own)
    assert_same(own, plain)
    assert all(one is names[name] for name, one in own.named_parameters())


@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict_keeps_one_buffer(modules, assign):
    plain, own = modules
    other = made_in(nn, type(plain).__name__)
    own.load_state_dict(copy.deepcopy(other.state_dict()), assign=assign)
    assert_neighbours(own)
    assert_same(own, other)


def test_meta_parameters_can_be_filled_later(modules):
    plain, _ = modules
    own = made_in(rnnkit.torch, type(plain).__name__, device="meta")
    own.to_empty(device="cpu")
    assert_neighbours(own)
    own.load_state_dict(plain.state_dict())
    assert_same(own, plain)


def decaying(parameters, **options):
    """AdamW whose groups decay differently."""
    parameters = list(parameters)
    groups = [{"params": parameters[:3], "weight_decay": 0.1}, {"params": parameters[3:], "weight_decay": 0.0}]
    return optim.AdamW(groups, **options)


ADAM = {"adam": {}, "adam-loop": {"foreach": False}, "adam-foreach": {"foreach": True}, "adam-fused": {"fused": True}}
OPTIMIZERS = {name: partial(optim.Adam, lr=0.01, **options) for name, options in ADAM.items()}
OPTIMIZERS |= {"adamw": partial(optim.AdamW, lr=0.01), "groups": partial(decaying, lr=0.01)}
OPTIMIZERS |= {"rprop": partial(optim.Rprop, lr=0.01), "sgd": partial(optim.SGD, lr=0.1, momentum=0.9)}
OPTIMIZERS |= {"adagrad": partial(optim.Adagrad, lr=0.1), "lbfgs": partial(optim.LBFGS, lr=0.1, max_iter=2)}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_step_as_with_pytorchs_modules(modules, name):
    losses = []
    for module in modules:
        torch.manual_seed(4)
        x, stepped = torch.randn(T, N, F), OPTIMIZERS[name](module.parameters())

        def closure(module=module, x=x, stepped=stepped):
            stepped.zero_grad()
            loss = module(x)[0].square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            return loss

        losses.append([stepped.step(closure).item() for _ in range(5)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[1][-1] < losses[1][0]
    assert_neighbours(modules[1])


def test_parameters_of_functional_call_are_copied_not_moved(modules):
    """As for `torch.func`, whose tensors are not ours to move."""
    plain, own = modules
    torch.manual_seed(3)
    given = {name: torch.randn_like(one, requires_grad=True) for name, one in own.named_parameters()}
    addresses = {name: one.data_ptr() for name, one in given.items()}
    x = torch.randn(T, N, F)
    found, expected = (functional_call(one, given, (x,))[0] for one in (own, plain))
    torch.testing.assert_close(found, expected)
    found, expected = (torch.autograd.grad(y.sum(), [*given.values()]) for y in (found, expected))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert {name: one.data_ptr() for name, one in given.items()} == addresses
    assert_neighbours(own)


def test_tied_parameters_of_a_module_stay_tied(modules):
    plain, own = modules
    for module in modules:
        module.weight_hh_l1 = module.weight_hh_l1_reverse = module.weight_hh_l0
    assert_same(own, plain)
    for module in modules:
        module(torch.ones(T, N, F))[0].sum().backward()
    torch.testing.assert_close(own.weight_hh_l0.grad, plain.weight_hh_l0.grad, rtol=1e-4, atol=1e-4)
    copied = copy.deepcopy(own)
    assert copied.weight_hh_l1 is copied.weight_hh_l0
    assert_same(copied, plain)


def test_distributed_data_parallel_matches_pytorch(modules, tmp_path):
    plain, own = modules
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    wrapped = nn.parallel.DistributedDataParallel(own)
    wrapped(torch.ones(T, N, F))[0].sum().backward()
    # Gloo's destructor waits for its threads without letting the GIL go, which they need to drop what they hold.
    time.sleep(0.2)
    torch.distributed.destroy_process_group()
    assert_neighbours(own)
    plain(torch.ones(T, N, F))[0].sum().backward()
    found, expected = ([one.grad for one in module.parameters()] for module in (own, plain))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_flatten_parameters_keeps_shared_memory_shared(modules):
    _, own = modules
    own.weight_hh_l1.data = own.weight_hh_l0.data
    own.flatten_parameters()
    with torch.no_grad():
        own.weight_hh_l1.fill_(7)
    assert (own.weight_hh_l0 == 7).all()


def test_parameters_of_wrong_shape_or_dtype_are_named(modules):
    _, own = modules
    own.weight_hh_l0.data = own.weight_hh_l0.data.double()
    x, dtypes, shape = torch.ones(T, N, F), ("torch.float32 on cpu", "torch.float64 on cpu"), own.weight_hh_l0.shape
    with pytest.raises(TypeError, match=says("forward: weight_hh_l0", *dtypes)):
        own(x)
    double = dict(copy.deepcopy(own).double().named_parameters())
    own.float()
    with pytest.raises(TypeError, match=says("forward: weight_ih_l0", *dtypes)):
        functional_call(own, double, (x,))
    own.weight_hh_l0.data = own.weight_hh_l0.data.view(-1)
    with pytest.raises(TypeError, match=says("forward: weight_hh_l0", tuple(shape), (shape.numel(),))):
        own(x)
    own.weight_hh_l0 = nn.Parameter(torch.zeros(1, 1))
    own.flatten_parameters()
    assert own.weight_hh_l0.shape == (1, 1)
    with pytest.raises(TypeError, match=says("forward: weight_hh_l0", tuple(shape), (1, 1))):
        own(x)


class Rounding(nn.Module):
    """A parametrisation that autocast acts on."""

    def forward(self, weight):
        return weight @ torch.eye(weight.shape[1])


@pytest.mark.parametrize("name", ["weight_ih_l0", "weight_hh_l1"])
def test_autocast_may_act_on_a_parametrization(modules, name):
    found = []
    for module in modules:
        nn.utils.parametrize.register_parametrization(module, name, Rounding())
        with torch.autocast("cpu", torch.bfloat16):
            found.append(module(torch.ones(T, N, F))[0].float())
        found[-1].sum().backward()
        assert all(one.grad.any() for one in module.parameters())
    torch.testing.assert_close(*found, rtol=0.05, atol=0.02)


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
