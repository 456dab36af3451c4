"""Opacus trains accelerated modules: gradients of single samples are those of its own layers."""

import copy

import pytest
from optional import needs
from several_states import as_given

torch = needs("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Opacus, about its random numbers and PyTorch's hooks
opacus = needs("opacus")
from opacus.grad_sample import GradSampleModule  # noqa: E402
from opacus.layers import DPGRU, DPLSTM, DPRNN  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import rnn as sequences  # noqa: E402
from torch_tensors import flat  # noqa: E402

import rnnkit.torch  # noqa: E402
from rnnkit.cells import MinGRU  # noqa: E402

N, T, F, H = 6, 5, 4, 8
LAYERS = {"lstm": (DPLSTM, nn.LSTM), "gru": (DPGRU, nn.GRU), "rnn": (DPRNN, nn.RNN)}
USES = {
    "outputs": lambda y, *states: y[:, -1],
    "last states": lambda y, h, *c: h[-1],
    "all": lambda y, *states: y.mean(1)[:, :H] + sum(states)[-1],
}


class Classifier(nn.Module):
    def __init__(self, rnn, use=USES["outputs"]):
        super().__init__()
        self.rnn, self.use = rnn, use
        torch.manual_seed(1)
        self.out = nn.Linear(H * (2 if use is USES["outputs"] and rnn.bidirectional else 1), 2)

    def forward(self, x, hx=None):
        y, states = self.rnn(x, hx)
        if isinstance(y, sequences.PackedSequence):
            y, _ = sequences.pad_packed_sequence(y, batch_first=True)
        return self.out(self.use(y, *flat(states)))


def pair(kind, use="outputs", **options):
    """The same model with a layer of Opacus and with an accelerated one."""
    torch.manual_seed(0)
    theirs, plain = (make(F, H, batch_first=True, **options) for make in LAYERS[kind])
    plain.load_state_dict(theirs.state_dict())
    rnnkit.torch.accelerate(plain)
    return Classifier(theirs, USES[use]), Classifier(plain, USES[use])


def batch(count=N):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, T, F, generator=generator), torch.randint(0, 2, (count,), generator=generator)


def samples(model, *arguments, target, reduction="mean"):
    """Gradients of single samples, as Opacus collects them: those of the layer by name; and the wrapped model."""
    wrapped = GradSampleModule(model, loss_reduction=reduction)
    wrapped.train()
    nn.functional.cross_entropy(wrapped(*arguments), target, reduction=reduction).backward()
    return {name: getattr(one, "grad_sample", None) for name, one in model.rnn.named_parameters()}, wrapped


def by_shape(named):
    """Sums over all numbers of each gradient, sorted, as Opacus' layers list theirs in another order, under others."""
    return torch.stack(sorted((one.flatten(1).square().sum(1) for one in named.values()), key=lambda one: one.sum()))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_of_samples_are_those_of_opacus_layers(kind, use, reduction):
    theirs, own = pair(kind, use, num_layers=2)
    x, target = batch()
    expected, _ = samples(theirs, x, target=target, reduction=reduction)
    found, _ = samples(own, x, target=target, reduction=reduction)
    assert len(found) == len(expected) and all(one.shape[0] == N for one in found.values())
    torch.testing.assert_close(by_shape(found), by_shape(expected), rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(own.out.weight.grad_sample, theirs.out.weight.grad_sample, rtol=1e-5, atol=1e-6)


def assert_rows(found, alone, calls, target, **close):
    """Each row of the gradients of samples is the gradient of a call with that sample alone."""
    for row, arguments in enumerate(calls):
        loss = nn.functional.cross_entropy(alone(*arguments), target[row : row + 1])
        gradients = torch.autograd.grad(loss, [*alone.rnn.parameters()])
        for (name, of_rows), gradient in zip(found.items(), gradients, strict=True):
            torch.testing.assert_close(of_rows[row], gradient, **close, msg=name)


@pytest.mark.parametrize(
    "make", [nn.LSTM, nn.GRU, lambda *sizes, **options: rnnkit.torch.Recurrent(MinGRU, *sizes, **options)]
)
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}])
@pytest.mark.parametrize("given", ["plain", "packed", "states", "input with a gradient"])
def test_rows_are_the_gradients_of_calls_alone(make, options, given):
    torch.manual_seed(0)
    model = Classifier(make(F, H, batch_first=True, **options))
    rnnkit.torch.accelerate(model)
    alone, (x, target), lengths = copy.deepcopy(model), batch(), [T] * N
    x.requires_grad_(given == "input with a gradient")
    states = [torch.randn(4 if options else 1, N, H) for _ in model.rnn._rnnkit_states] if given == "states" else []
    arguments = x, as_given(states)
    if given == "packed":
        lengths = [5, 2, 4, 5, 1, 3]
        model.use = alone.use = lambda y, *states: y[:, 0]
        arguments = (sequences.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False),)
    found, _ = samples(model, *arguments, target=target, reduction="sum")
    of_rows = [as_given([h[:, row : row + 1] for h in states]) for row in range(N)]
    calls = [(x[row : row + 1, :length], of_rows[row]) for row, length in enumerate(lengths)]
    assert_rows(found, alone, calls, target, rtol=1e-5, atol=1e-7)


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
    found, _ = samples(model, x, target=target, reduction="sum")
    assert_rows(found, alone, [(x[row : row + 1],) for row in range(N)], target, rtol=1e-4, atol=1e-7)


def trained(model):
    """The layer after private training without noise, so that two runs can be compared."""
    x, target = batch(40)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, target), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.manual_seed(3)
    private, optimizer, data = opacus.PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=data, noise_multiplier=0.0, max_grad_norm=0.1
    )
    for inputs, labels in [*data, *data, *data]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(private(inputs), labels).backward()
        optimizer.step()
    return model.rnn.state_dict()


def test_private_training_ends_with_the_weights_of_opacus_layers():
    theirs, own = pair("lstm")
    before = copy.deepcopy(own.rnn.state_dict())
    expected, found = trained(theirs), trained(own)
    assert found.keys() == expected.keys() and not torch.equal(found["weight_hh_l0"], before["weight_hh_l0"])
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5, msg=name)


def test_hooks_that_are_removed_leave_nothing():
    _, own = pair("lstm")
    x, target = batch()
    _, wrapped = samples(own, x, target=target)
    wrapped.remove_hooks()
    for parameter in own.parameters():
        parameter.grad_sample = None
    nn.functional.cross_entropy(own(x), target).backward()
    assert all(one.grad_sample is None for one in own.parameters())
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
    found, wrapped = samples(own, x, target=target)
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
