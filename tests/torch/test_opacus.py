"""Opacus trains accelerated modules: gradients of single samples are those of its own layers."""

import copy

import pytest
from optional import needs

torch = needs("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Opacus, about its random numbers and PyTorch's hooks
opacus = needs("opacus")
from opacus.grad_sample import GradSampleModule  # noqa: E402
from opacus.layers import DPGRU, DPLSTM, DPRNN  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import rnn as sequences  # noqa: E402

import rnnkit.torch  # noqa: E402
from rnnkit.cells import MinGRU  # noqa: E402

N, T, F, H = 6, 5, 4, 8
LAYERS = {"lstm": (DPLSTM, nn.LSTM), "gru": (DPGRU, nn.GRU), "rnn": (DPRNN, nn.RNN)}
USES = {
    "outputs": lambda y, h: y[:, -1],
    "last states": lambda y, h: h[0][-1] if isinstance(h, tuple) else h[-1],
    "cells": lambda y, h: h[1][-1] if isinstance(h, tuple) else h[-1],
    "all": lambda y, h: y.mean(1)[:, :H] + sum(h)[-1] if isinstance(h, tuple) else y.mean(1)[:, :H] + h[0],
}


class Classifier(nn.Module):
    def __init__(self, rnn, use="outputs"):
        super().__init__()
        self.rnn, self.use = rnn, USES[use]
        torch.manual_seed(1)
        self.out = nn.Linear(H * (2 if use == "outputs" and rnn.bidirectional else 1), 2)

    def forward(self, x, hx=None):
        y, h = self.rnn(x, hx)
        if isinstance(y, sequences.PackedSequence):
            y, _ = sequences.pad_packed_sequence(y, batch_first=True)
        return self.out(self.use(y, h))


def pair(kind, use="outputs", **options):
    """The same model with a layer of Opacus and with an accelerated one."""
    torch.manual_seed(0)
    theirs, plain = (make(F, H, batch_first=True, **options) for make in LAYERS[kind])
    plain.load_state_dict(theirs.state_dict())
    rnnkit.torch.accelerate(plain)
    return Classifier(theirs, use), Classifier(plain, use)


def batch(count=N):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, T, F, generator=generator), torch.randint(0, 2, (count,), generator=generator)


def samples(model, *arguments, target, reduction="mean", **options):
    """Gradients of single samples, as Opacus collects them; those of the layer as one matrix, whatever their names."""
    wrapped = GradSampleModule(model, loss_reduction=reduction, **options)
    wrapped.train()
    nn.functional.cross_entropy(wrapped(*arguments), target, reduction=reduction).backward()
    model = wrapped._module
    # Opacus' layers list theirs in another order, under other names, the state dict has PyTorch's
    named = {name: getattr(one, "grad_sample", None) for name, one in model.rnn.named_parameters()}
    return named, model.out.weight.grad_sample, wrapped


def by_shape(named):
    """Sums over all numbers of each gradient, sorted: equal if the gradients are, whatever their names."""
    return torch.stack(sorted((one.flatten(1).square().sum(1) for one in named.values()), key=lambda one: one.sum()))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_of_samples_are_those_of_opacus_layers(kind, use, reduction):
    theirs, own = pair(kind, use, num_layers=2)
    x, target = batch()
    expected, of_out, _ = samples(theirs, x, target=target, reduction=reduction)
    found, of_own_out, _ = samples(own, x, target=target, reduction=reduction)
    assert len(found) == len(expected) and all(one.shape[0] == N for one in found.values())
    torch.testing.assert_close(by_shape(found), by_shape(expected), rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(of_own_out, of_out, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "make", [nn.LSTM, nn.GRU, lambda *sizes, **options: rnnkit.torch.Recurrent(MinGRU, *sizes, **options)]
)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}])
@pytest.mark.parametrize("given", ["plain", "packed", "states", "input with a gradient"])
def test_rows_are_the_gradients_of_calls_alone(make, options, given):
    torch.manual_seed(0)
    model = Classifier(make(F, H, batch_first=True, **options))
    rnnkit.torch.accelerate(model)
    alone, (x, target) = copy.deepcopy(model), batch()
    x = x.requires_grad_(given == "input with a gradient")
    shape = (2 * options.get("num_layers", 1) if options else 1, N, H)
    hx = torch.randn(shape) if given == "states" else None
    hx = (hx, hx / 2) if given == "states" and len(model.rnn._rnnkit_states) == 2 else hx
    lengths = torch.tensor([5, 2, 4, 5, 1, 3])
    packed = sequences.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    if given == "packed":
        model.use = alone.use = lambda y, h: y[:, 0]
    found, *_ = samples(model, packed if given == "packed" else x, hx, target=target, reduction="sum")
    for row in range(N):
        one = slice(row, row + 1)
        own = tuple(state[:, one] for state in hx) if isinstance(hx, tuple) else None if hx is None else hx[:, one]
        length = int(lengths[row]) if given == "packed" else T
        loss = nn.functional.cross_entropy(alone(x[one, :length], own), target[one])
        gradients = torch.autograd.grad(loss, [*alone.rnn.parameters()])
        for (name, of_rows), gradient in zip(found.items(), gradients, strict=True):
            torch.testing.assert_close(of_rows[row], gradient, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_cells_in_a_loop_add_up_their_steps(kind):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = kind(F, H), nn.Linear(H, 2)

        def forward(self, x):
            h = None
            for t in range(T):
                h = self.rnn(x[:, t], h)
            return self.out(h[0] if kind is nn.LSTMCell else h)

    torch.manual_seed(0)
    model, (x, target) = Loop(), batch()
    rnnkit.torch.accelerate(model)
    alone = copy.deepcopy(model)
    found, *_ = samples(model, x, target=target, reduction="sum")
    for row in range(N):
        loss = nn.functional.cross_entropy(alone(x[row : row + 1]), target[row : row + 1])
        for of_rows, gradient in zip(found.values(), torch.autograd.grad(loss, [*alone.rnn.parameters()]), strict=True):
            torch.testing.assert_close(of_rows[row], gradient, rtol=1e-4, atol=1e-7)


def trained(model):
    """A model after private training without noise, so that two runs can be compared."""
    x, target = batch(40)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, target), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.manual_seed(3)
    private = opacus.PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=data, noise_multiplier=0.0, max_grad_norm=0.1
    )
    model, optimizer, data = private
    torch.manual_seed(4)
    for _ in range(3):
        for inputs, labels in data:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return model._module


def test_private_training_ends_with_the_weights_of_opacus_layers():
    theirs, own = pair("lstm")
    before, x = copy.deepcopy(own.state_dict()), batch()[0]
    theirs, own = trained(theirs), trained(own)
    assert not torch.equal(own.rnn.weight_hh_l0, before["rnn.weight_hh_l0"])
    expected = theirs.rnn.state_dict()
    for name, value in own.rnn.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5, msg=name)
    torch.testing.assert_close(own.eval()(x), theirs.eval()(x), rtol=1e-5, atol=1e-5)


def test_hooks_that_are_removed_leave_nothing():
    _, own = pair("lstm")
    x, target = batch()
    wrapped = samples(own, x, target=target)[2]
    wrapped.remove_hooks()
    for parameter in own.parameters():
        parameter.grad_sample = None
    nn.functional.cross_entropy(own(x), target).backward()
    assert all(one.grad_sample is None for one in own.parameters())
    assert copy.deepcopy(own.rnn)(x)[0].shape == (N, T, H)
    rnnkit.torch.restore(own)
    assert not [name for name in vars(own.rnn) if "rnnkit" in name]


def test_copy_of_a_module_has_no_hooks_of_its_original():
    _, own = pair("gru")
    x, target = batch()
    samples(own, x, target=target)
    before = own.rnn.weight_hh_l0.grad_sample.clone()
    copied = copy.deepcopy(own.rnn)
    copied(x)[0].sum().backward()
    assert torch.equal(own.rnn.weight_hh_l0.grad_sample, before) and copied.weight_hh_l0.grad is not None


def test_frozen_parameters_and_evaluation_have_no_gradients_of_samples():
    _, own = pair("gru")
    own.rnn.weight_ih_l0.requires_grad_(False)
    x, target = batch()
    found, _, wrapped = samples(own, x, target=target)
    assert found["weight_ih_l0"] is None and found["weight_hh_l0"].shape == (N, 3 * H, H)
    wrapped.eval()
    with torch.no_grad():
        assert wrapped(x).shape == (N, 2)


def test_other_hooks_are_pytorchs():
    _, own = pair("gru")
    seen, (x, _) = [], batch()
    own.rnn.register_forward_hook(lambda module, given, result: seen.append("forward"))
    handle = own.rnn.register_full_backward_hook(lambda module, given, result: seen.append("backward"))
    own(x).sum().backward()
    handle.remove()
    own(x).sum().backward()
    assert seen == ["forward", "backward", "forward"]
