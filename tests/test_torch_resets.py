"""Episodes in PyTorch's modules: states start anew where `resets` says, against a loop over the steps."""

import os

import numpy as np
import pytest
from combinations import pairs
from messages import says

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

import rnnkit  # noqa: E402
import rnnkit.torch  # noqa: E402

T, N, F, H = 8, 4, 3, 5
LENGTHS = [8, 3, 8, 1]


def module(kind="LSTM", **options):
    torch.manual_seed(0)
    return getattr(rnnkit.torch, kind)(F, H, dtype=torch.float64, **options)


def inputs(own):
    """x, initial states and marks."""
    torch.manual_seed(1)
    rows = own.num_layers * (2 if own.bidirectional else 1)
    states = [torch.randn(rows, N, size, dtype=torch.float64, requires_grad=True) for size in (own.proj_size or H, H)]
    x = torch.randn(T, N, F, dtype=torch.float64, requires_grad=True)
    return x, tuple(states) if own.mode == "LSTM" else states[0], torch.rand(T, N) < 0.3


def flat(states):
    return states if isinstance(states, tuple) else (states,)


def by_steps(own, x, hx, resets):
    """The same by PyTorch's module, step by step, as programs write it; and the states after each step."""
    options = {"proj_size": own.proj_size} if own.proj_size else {}
    plain = getattr(nn, type(own).__name__)(F, H, own.num_layers, dtype=torch.float64, **options)
    outputs, every = [], []
    parameters = dict(own.named_parameters())
    for t in range(len(x)):
        keep = (1 - resets[t].double()).view(1, -1, 1)
        hx = tuple(keep * one for one in hx) if isinstance(hx, tuple) else keep * hx
        y, hx = torch.func.functional_call(plain, parameters, (x[t : t + 1], hx))
        outputs.append(y)
        every.append([one.detach() for one in flat(hx)])
    return torch.cat(outputs), hx, [torch.stack(one) for one in zip(*every, strict=True)]


def gradients(output, states, leaves):
    loss = (output * torch.arange(output.numel()).reshape(output.shape).cos()).sum()
    return torch.autograd.grad(loss + sum((one * (2 + i)).sum() for i, one in enumerate(flat(states))), leaves)


@pytest.mark.parametrize(
    ("kind", "options", "batch_first"),
    pairs(["RNN", "GRU", "LSTM"], [{}, {"num_layers": 2}], [False, True]) + [("LSTM", {"proj_size": 2}, False)],
)
def test_the_loop_over_steps(kind, options, batch_first):
    own = module(kind, batch_first=batch_first, **options)
    x, hx, resets = inputs(own)
    expected = by_steps(own, x, hx, resets)
    leaves = [x, *flat(hx), *own.parameters()]
    given = (x.transpose(0, 1), resets.T) if batch_first else (x, resets)
    output, states, every = own(given[0], hx, resets=given[1], all_states=True)
    output = output.transpose(0, 1) if batch_first else output
    torch.testing.assert_close(output, expected[0])
    for one, other in zip(flat(states), flat(expected[1]), strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(flat(every), expected[2], strict=True):
        assert not one.requires_grad
        torch.testing.assert_close(one, other)
    for one, other in zip(gradients(output, states, leaves), gradients(*expected[:2], leaves), strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        inferred = own(given[0], hx, resets=given[1].float())
        assert len(inferred) == 2 and torch.equal(inferred[0], own(given[0], hx, resets=given[1], all_states=True)[0])


def test_packed_and_with_lengths():
    own = module(num_layers=2, bidirectional=True)
    x, hx, resets = inputs(own)
    expected, states, every = own(x, hx, lengths=LENGTHS, resets=resets, all_states=True)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)
    output, of_packed, of_steps = own(packed, hx, resets=resets, all_states=True)
    assert torch.equal(pad_packed_sequence(output)[0], expected)
    for one, other in zip((*of_packed, *of_steps), (*states, *every), strict=True):
        assert torch.equal(one, other)
    assert every[0].shape == every[1].shape == (T, 4, N, H)
    assert torch.equal(every[0][:, 2:].transpose(1, 2).reshape(T, N, 2 * H), expected)
    assert not torch.equal(own(x, hx, lengths=LENGTHS)[0], expected)


def test_one_sequence():
    own = module("GRU")
    x, hx, resets = inputs(own)
    expected = own(x[:, :1], hx[:, :1], resets=resets[:, :1], all_states=True)
    for found, other in zip(own(x[:, 0], hx[:, 0], resets=resets[:, 0], all_states=True), expected, strict=True):
        assert torch.equal(found, other.squeeze(-2) if other.dim() == 4 else other[:, 0])


@pytest.mark.parametrize("small", [False, True])
def test_all_states_can_be_changed(small):
    """They are copies, and what backward reads is not changed."""
    own = module(num_layers=1 if small else 3)
    x, hx, resets = inputs(own)
    output, states, every = own(x, hx, all_states=True)
    expected = gradients(*own(x, hx), [x, *own.parameters()])
    for one in every:
        one.zero_()
    for one, other in zip(gradients(output, states, [x, *own.parameters()]), expected, strict=True):
        assert torch.equal(one, other)


def test_in_graphs():
    import torch._dynamo

    torch._dynamo.reset()
    own = module("GRU", batch_first=True)
    x, hx, resets = inputs(own)
    x = x.detach().transpose(0, 1).contiguous().requires_grad_()
    given = x, hx, None, resets.T.contiguous()
    expected = own(*given)
    with torch._dynamo.config.patch(allow_rnn=True):
        found = torch.compile(own, backend="aot_eager", fullgraph=True)(*given)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    leaves = [x, hx, *own.parameters()]
    for one, other in zip(gradients(*found, leaves), gradients(*expected, leaves), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(rnnkit.BackendError, match=says("forward: all_states", False, True)):
        torch.export.export(own, tuple(one if one is None else one.detach() for one in given), {"all_states": True})


@pytest.mark.parametrize(
    ("resets", "kind", "facts"),
    [
        (torch.zeros(N, T), ValueError, ["(seq_len=8, batch_size=4)", (4, 8)]),
        (torch.full((T, N), float("nan")), ValueError, [0, 1, "nan"]),
        (np.full((T, N), 3), ValueError, [0, 1, 3]),
    ],
)
def test_wrong_marks(resets, kind, facts):
    own = module("GRU")
    x, hx, _ = inputs(own)
    with pytest.raises(kind, match=says("forward: resets", *facts)):
        own(x, hx, resets=resets)


def test_wrong_marks_are_told_in_the_users_axes():
    own = module("GRU", batch_first=True)
    x = torch.randn(N, T, F, dtype=torch.float64)
    for resets, got in ((torch.zeros(T, N), (8, 4)), (torch.zeros(N), (4,)), ("abc", ())):
        with pytest.raises(ValueError, match=says("forward: resets", "(batch_size=4, seq_len=8)", got)):
            own(x, resets=resets)
    with pytest.raises(ValueError, match=says("forward: resets", "(seq_len=8,)", (8, 1))):
        own(x[0], resets=torch.zeros(T, 1))


def test_marks_of_any_tensor():
    own = module("GRU")
    x, hx, resets = inputs(own)
    expected = own(x, hx, resets=resets)[0]
    for same in (resets.bfloat16(), resets.half(), resets.float().requires_grad_(), resets.long(), resets.tolist()):
        assert torch.equal(own(x, hx, resets=same)[0], expected)


def test_accelerated_modules_take_them():
    model = nn.ModuleDict({"rnn": nn.GRU(F, H)})
    rnnkit.torch.accelerate(model)
    x, marks = torch.randn(T, N, F), torch.zeros(T, N)
    marks[3] = 1
    torch.testing.assert_close(model["rnn"](x, resets=marks)[0][3:], model["rnn"](x[3:])[0])
