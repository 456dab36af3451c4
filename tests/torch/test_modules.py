"""PyTorch's modules on the engine: every constructor option and form of input, against PyTorch's own."""

import copy
import itertools
from functools import partial

import numpy as np
import pytest
import torch
from messages import raises
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence
from torch_tensors import assert_equal, flat

import rnnkit
import rnnkit.torch
from rnnkit.cells import AUGRU
from rnnkit.torch import Recurrent

T, N, F, H = 6, 4, 3, 5
LENGTHS = [6, 2, 4, 1]
CLOSE = {"rtol": 1e-10, "atol": 1e-12}  # in float64

KINDS = {"RNN": {}, "relu": {"nonlinearity": "relu"}, "LSTM": {}, "GRU": {}, "projected": {"proj_size": 2}}
KINDS["Recurrent"] = KINDS["projected"]
OPTIONS = [
    dict(zip(("num_layers", "bias", "batch_first", "bidirectional"), values, strict=True))
    for values in itertools.product((1, 2), (True, False), (True, False), (True, False))
]
FORMS = ("batch", "one", "packed", "packed in any order")


def pair(kind, **options):
    """PyTorch's module and ours, with the same weights."""
    name = {"relu": "RNN", "projected": "LSTM", "Recurrent": "LSTM"}.get(kind, kind)
    options |= KINDS[kind] | {"dtype": torch.float64}
    make = partial(Recurrent, "lstm") if kind == "Recurrent" else getattr(rnnkit.torch, name)
    torch.manual_seed(1)
    plain, own = getattr(nn, name)(F, H, **options), make(F, H, **options)
    own.load_state_dict(plain.state_dict())
    return plain, own


def given(module, form, with_states):
    """An input of that form, and initial states or None; all with a gradient."""
    torch.manual_seed(2)
    shape = {"one": (T, F)}.get(form, (N, T, F) if module.batch_first else (T, N, F))
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    count = module.num_layers * (1 + module.bidirectional)
    batch = () if form == "one" else (N,)
    sizes = [module.proj_size or H] + [H] * (module.mode == "LSTM")
    states = [torch.randn(count, *batch, size, dtype=torch.float64, requires_grad=True) for size in sizes]
    return x, states if with_states else []


def results(module, x, states, form, **options):
    """The output, padded, and the final states."""
    if form == "packed":
        x = pack_padded_sequence(x, sorted(LENGTHS, reverse=True), module.batch_first)
    elif form == "packed in any order":
        x = pack_padded_sequence(x, LENGTHS, module.batch_first, enforce_sorted=False)
    hx = (tuple(states) if module.mode == "LSTM" else states[0]) if states else None
    output, hidden = module(x, hx, **options)
    if isinstance(output, PackedSequence):
        output, _ = pad_packed_sequence(output, module.batch_first)
    return flat((output, hidden))


def gradients(module, x, states, form):
    found = results(module, x, states, form)
    torch.manual_seed(3)
    loss = sum((one * torch.randn(one.shape, dtype=one.dtype)).sum() for one in found)
    parameters = [one for _, one in sorted(module.named_parameters())]  # Recurrent registers them in another order
    return *found, *torch.autograd.grad(loss, [x, *states, *parameters])


@pytest.mark.parametrize("with_states", [True, False], ids=["states", "none"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients_match_pytorch(kind, form, with_states):
    for options in OPTIONS if form == "batch" else OPTIONS[::5]:
        expected, found = (gradients(one, *given(one, form, with_states), form) for one in pair(kind, **options))
        torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_parameters_of_a_seed_are_pytorchs(kind):
    torch.manual_seed(5)
    plain = getattr(nn, kind)(F, H, 2, bidirectional=True)
    torch.manual_seed(5)
    own = getattr(rnnkit.torch, kind)(F, H, 2, bidirectional=True)
    assert list(own.state_dict()) == list(plain.state_dict()) and repr(own) == repr(plain)
    assert_equal(own.state_dict().values(), plain.state_dict().values())
    plain.load_state_dict(own.state_dict())


def test_dropout_acts_in_training_and_follows_the_seed():
    own = rnnkit.torch.GRU(F, H, 2, dropout=0.5)
    x = torch.randn(T, N, F)
    torch.manual_seed(7)
    first = own(x)[0]
    with torch.no_grad():
        assert not torch.equal(own(x)[0], first)
        torch.manual_seed(7)
        assert torch.equal(own(x)[0], first)
    expected = own.eval()(x)[0]
    plain = nn.GRU(F, H, 2)
    plain.load_state_dict(own.state_dict())
    torch.testing.assert_close(expected, plain(x)[0])
    for dropout, is_same in (0.0, True), (1.0, False), (0.5, False):
        own.train().dropout = dropout
        assert torch.equal(own(x)[0], expected) == is_same


def test_copy_that_evaluates_leaves_the_original_in_training():
    own = rnnkit.torch.GRU(F, H, 2, dropout=1.0)
    x = torch.randn(T, N, F)
    before = own(x)[0]
    copied = copy.copy(own).eval()
    assert own(x)[0].equal(before)  # dropout leaves nothing, so nothing is random
    assert not copied(x)[0].equal(before)


def test_dropout_of_one_layer_drops_nothing_and_draws_no_seed():
    with pytest.warns(UserWarning, match="dropout option"):
        own = rnnkit.torch.GRU(F, H, dropout=0.5)
    x, before = torch.randn(T, N, F), torch.get_rng_state()
    assert torch.equal(own(x)[0], own.eval()(x)[0])
    assert torch.equal(torch.get_rng_state(), before)


DAMAGED = [
    ([2, 3, 1], None, "batch_sizes | none larger | [2, 3, 1]"),
    ([2, 2, -1, 3], None, "batch_sizes | above 0"),
    ([], None, "batch_sizes | []"),
    ([2, 1], None, "batch_sizes | 6 rows | 3"),
    ([1 << 40, 1], None, f"batch_sizes | 6 rows | {(1 << 40) + 1}"),
    ([2, 2, 1, 1], [0, 5], "sorted_indices | 0..1 | [0, 5]"),
    ([2, 2, 1, 1], [0, 0], "sorted_indices | once"),
    ([2, 2, 1, 1], [0], "sorted_indices | [0]"),
]


@pytest.mark.parametrize(("sizes", "order", "expected"), DAMAGED)
def test_damaged_packed_sequences_are_named(sizes, order, expected):
    orders = () if order is None else (torch.tensor(order), torch.tensor([0, 1]))
    packed = PackedSequence(torch.zeros(6, F), torch.tensor(sizes, dtype=torch.int64), *orders)
    with raises(ValueError, f"forward: input.{expected}"):
        rnnkit.torch.LSTM(F, H)(packed)


def test_wrong_arguments_are_named():
    x, state = torch.zeros(T, N, F), torch.zeros(1, N, H)
    lstm, gru, half = rnnkit.torch.LSTM(F, H), rnnkit.torch.GRU(F, H), rnnkit.torch.LSTM(F, H).half()
    dtypes, packed = "torch.float32 | torch.float64 | torch.bfloat16 | torch.float16", pack_sequence([x[:, 0]])
    cures = ".float() | .bfloat16() | torch.autocast | rnnkit.torch.restore"
    for kind, expected, call in (
        (TypeError, "forward: hx | None | tuple | h and c | Tensor of 1", lambda: lstm(x, state)),
        (TypeError, "forward: hx | None | tensor | tuple of 2", lambda: gru(x, (state, state))),
        (ValueError, f"forward: lengths[0] | 0..seq_len={T} | {T + 1}", lambda: lstm(x, lengths=[T + 1] * N)),
        (ValueError, "forward: lengths | None | PackedSequence", lambda: lstm(packed, lengths=[2])),
        (TypeError, f"forward: dtype | {dtypes} | {cures}", lambda: half(x.half())),
        (rnnkit.BackendError, "forward: input | CPU | CUDA | meta", lambda: rnnkit.torch.LSTM(F, H).to("meta")(x)),
    ):
        with raises(kind, expected):
            call()
    for kind, expected, call in (  # PyTorch's own
        (ValueError, "dtype", lambda: gru(x.double())),
        (RuntimeError, "input must have 3 dimensions", lambda: gru(x[None])),
        (RuntimeError, "input_size", lambda: gru(torch.zeros(T, N, F + 1))),
        (RuntimeError, "Expected hidden", lambda: lstm(x, (state, state[:, :2]))),
        (ValueError, "proj_size", lambda: rnnkit.torch.GRU(F, H, proj_size=2)),
    ):
        with pytest.raises(kind, match=expected):
            call()


@pytest.mark.parametrize("form", ["strided", "expanded", "negated"])
def test_strided_inputs_and_states_match_pytorch(form):
    """And those that are negated when they are read."""
    plain, own = pair("LSTM", num_layers=2)
    torch.manual_seed(2)
    x = torch.randn(F, N, T, dtype=torch.float64).permute(2, 1, 0)
    x = (torch.complex(x, x).conj().imag if form == "negated" else x).requires_grad_()
    assert x.is_neg() == (form == "negated")
    state = torch.randn((1, 1, H) if form == "expanded" else (N, 2, H), dtype=torch.float64)
    states = [state.expand(2, N, H) if form == "expanded" else state.transpose(0, 1) for _ in range(2)]
    states = [one.requires_grad_() for one in states]
    expected = gradients(plain, x.detach().resolve_neg().clone().requires_grad_(), states, "batch")
    torch.testing.assert_close(gradients(own, x, states, "batch"), expected, **CLOSE)
    with torch.no_grad():
        torch.testing.assert_close(results(own, x, states, "batch"), list(expected[:3]), **CLOSE)


def test_batch_of_size_0_matches_pytorch():
    plain, own = pair("GRU", num_layers=2)
    for module in (plain, own):
        output, hidden = module(torch.zeros(T, 0, F, dtype=torch.float64))
        assert output.shape == (T, 0, H) and hidden.shape == (2, 0, H)
        (output.sum() + hidden.sum()).backward()
        assert not module.weight_hh_l0.grad.any()


def test_batch_without_steps_passes_its_state_on():
    """Which PyTorch's own module refuses."""
    _, own = pair("GRU", num_layers=2)
    hx = torch.randn(2, N, H, dtype=torch.float64, requires_grad=True)
    output, hidden = own(torch.zeros(0, N, F, dtype=torch.float64), hx)
    assert output.shape == (0, N, H) and torch.equal(hidden, hx)
    (dhx,) = torch.autograd.grad(hidden.sum(), hx)
    assert (dhx == 1).all()


MAKERS = {kind: partial(getattr(rnnkit.torch, kind), F, H) for kind in ("RNN", "LSTM", "GRU", "LSTMCell", "GRUCell")}
MAKERS |= {"Recurrent": partial(Recurrent, "gru", F, H), "cell": partial(Recurrent, AUGRU, F, H)}
MAKERS["from_network"] = lambda: Recurrent.from_network(rnnkit.GRU(F, H, seed=0))
SIDE = {"cell": {"inputs": {"attention": torch.ones(1, N, H)}}}


@pytest.mark.parametrize("value", [None, [[[1.0]]], np.zeros((T, N, F), "float32"), 3, "text"], ids=type)
@pytest.mark.parametrize("kind", MAKERS)
def test_input_that_is_not_a_tensor_is_named(kind, value):
    name = "numpy.ndarray; convert it with torch.from_numpy" if isinstance(value, np.ndarray) else type(value).__name__
    own = MAKERS[kind]()
    for options in SIDE.get(kind, {}), {}:
        with raises(TypeError, f"forward: input | torch.Tensor | {name}"):
            own(value, **options)


@pytest.mark.parametrize("kind", MAKERS)
def test_module_built_in_inference_mode_can_be_trained(kind):
    with torch.inference_mode():
        own = MAKERS[kind]()
        own.flatten_parameters()
    x = torch.randn(*(N, F) if "Cell" in kind else (1, N, F), requires_grad=True)
    sum(one.sum() for one in flat(own(x, **SIDE.get(kind, {})))).backward()
    torch.optim.SGD(own.parameters(), 0.1).step()
    assert x.grad.any() and all(one.grad is not None for one in own.parameters())


def test_module_built_in_inference_mode_converts_to_double():
    with torch.inference_mode():
        plain = nn.GRU(F, H)
    rnnkit.torch.accelerate(plain)
    x = torch.randn(T, N, F)
    with torch.no_grad():
        torch.testing.assert_close(plain(x)[0], plain.double()(x.double())[0].float())


NEW = dict(hidden_size=H + 1, input_size=F + 1, proj_size=2, bidirectional=True, bias=False, mode="RNN_TANH")


@pytest.mark.parametrize(("name", "value"), [("num_layers", 1), ("num_layers", 3), ("dropout", 1.5), *NEW.items()])
def test_attribute_changed_after_a_call_takes_effect(name, value):
    found = []
    for called in (False, True):
        torch.manual_seed(0)
        own, x = rnnkit.torch.LSTM(F, H, 2), torch.randn(T, N, F)
        if called:
            own(x)
        setattr(own, name, value)
        try:
            found.append([one.tolist() for one in (own(x)[0], *own(x)[1])])
        except (TypeError, ValueError, RuntimeError) as error:
            found.append((type(error), str(error)))
    assert found[0] == found[1]
    if value == 3:
        assert "weight_ih_l2 must be a parameter of LSTM(3, 5, num_layers=3)" in found[0][1]
