"""`resets` and `mask` of PyTorch's modules, where states start anew or stay, against a loop over the steps."""

import numpy as np
import pytest
import torch
from combinations import pairs
from messages import says
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close
from torch_tensors import assert_equal, flat

import rnnkit
import rnnkit.torch

T, N, F, H = 8, 4, 3, 5
LENGTHS = [8, 3, 8, 1]


of_each_name = pytest.mark.parametrize("name", ["resets", "mask"])


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


def by_steps(own, x, hx, name, marks):
    """The same by PyTorch's module, step by step, as programs write it; and the states after each step."""
    options = {"proj_size": own.proj_size} if own.proj_size else {}
    plain = getattr(nn, type(own).__name__)(F, H, own.num_layers, dtype=torch.float64, **options)
    outputs, every = [], []
    parameters = dict(own.named_parameters())
    for t in range(len(x)):
        mark, before = marks[t].view(1, -1, 1), hx
        if name == "resets":
            hx = tuple((~mark).double() * one for one in hx) if isinstance(hx, tuple) else (~mark).double() * hx
        y, hx = torch.func.functional_call(plain, parameters, (x[t : t + 1], hx))
        if name == "mask":
            y = torch.where(mark, y, flat(before)[0][-1:])
            states = [torch.where(mark, *pair) for pair in zip(flat(hx), flat(before), strict=True)]
            hx = tuple(states) if isinstance(hx, tuple) else states[0]
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
@of_each_name
def test_marks_match_a_loop_over_steps(name, kind, options, batch_first):
    own = module(kind, batch_first=batch_first, **options)
    x, hx, marks = inputs(own)
    expected = by_steps(own, x, hx, name, marks)
    leaves = [x, *flat(hx), *own.parameters()]
    given = (x.transpose(0, 1), marks.T) if batch_first else (x, marks)
    output, states, every = own(given[0], hx, **{name: given[1]}, all_states=True)
    output = output.transpose(0, 1) if batch_first else output
    assert_close((output, states, flat(every)), expected)
    assert not any(one.requires_grad for one in flat(every))
    assert_close(gradients(output, states, leaves), gradients(*expected[:2], leaves))
    with torch.no_grad():
        inferred = own(given[0], hx, **{name: given[1].float()})
        assert len(inferred) == 2
        assert torch.equal(inferred[0], own(given[0], hx, **{name: given[1]}, all_states=True)[0])


@of_each_name
def test_marks_of_packed_sequences_are_those_of_lengths(name):
    own = module(num_layers=2, bidirectional=True)
    x, hx, marks = inputs(own)
    expected, states, every = own(x, hx, lengths=LENGTHS, **{name: marks}, all_states=True)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)
    output, of_packed, of_steps = own(packed, hx, **{name: marks}, all_states=True)
    assert_equal((pad_packed_sequence(output)[0], of_packed, of_steps), (expected, states, every))
    assert every[0].shape == every[1].shape == (T, 4, N, H)
    assert torch.equal(every[0][:, 2:].transpose(1, 2).reshape(T, N, 2 * H), expected)
    assert not torch.equal(own(x, hx, lengths=LENGTHS)[0], expected)


@of_each_name
def test_marks_of_one_sequence(name):
    own = module("GRU")
    x, hx, marks = inputs(own)
    expected = own(x[:, :1], hx[:, :1], **{name: marks[:, :1]}, all_states=True)
    for found, other in zip(own(x[:, 0], hx[:, 0], **{name: marks[:, 0]}, all_states=True), expected, strict=True):
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
    assert_equal(gradients(output, states, [x, *own.parameters()]), expected)


@of_each_name
def test_marks_in_a_compiled_graph(name):
    torch.compiler.reset()
    own = module("GRU", batch_first=True)
    x, hx, marks = inputs(own)
    x = x.detach().transpose(0, 1).contiguous().requires_grad_()
    given = x, hx, None, *((marks.T.contiguous(),) if name == "resets" else (None, False, marks.T.contiguous()))
    expected = own(*given)
    with torch._dynamo.config.patch(allow_rnn=True):
        found = torch.compile(own, backend="aot_eager", fullgraph=True)(*given)
    assert_equal(found, expected)
    leaves = [x, hx, *own.parameters()]
    assert_equal(gradients(*found, leaves), gradients(*expected, leaves))
    with pytest.raises(rnnkit.BackendError, match=says("forward: all_states", False, True)):
        torch.export.export(own, (x.detach(), hx.detach()), {"all_states": True})


STEPS_FIRST, BATCH_FIRST = (T, N, F), (N, T, F)
WRONG = [
    (STEPS_FIRST, torch.zeros(N, T), ["(seq_len=8, batch_size=4)", (4, 8)]),
    (STEPS_FIRST, torch.full((T, N), float("nan")), [0, 1, "nan"]),
    (STEPS_FIRST, np.full((T, N), 3), [0, 1, 3]),
    *((BATCH_FIRST, torch.zeros(shape), ["(batch_size=4, seq_len=8)", shape]) for shape in ((T, N), (N,))),
    (BATCH_FIRST, "abc", ["(batch_size=4, seq_len=8)", ()]),
    ((T, F), torch.zeros(T, 1), ["(seq_len=8,)", (8, 1)]),
]


@of_each_name
@pytest.mark.parametrize(("shape", "marks", "facts"), WRONG)
def test_wrong_marks_are_named(name, shape, marks, facts):
    """Shapes are named in the user's axes."""
    own = module("GRU", batch_first=shape != STEPS_FIRST)
    with pytest.raises(ValueError, match=says(f"forward: {name}", *facts)):
        own(torch.zeros(shape, dtype=torch.float64), **{name: marks})


@of_each_name
def test_marks_of_any_dtype_are_the_same(name):
    own = module("GRU")
    x, hx, marks = inputs(own)
    expected = own(x, hx, **{name: marks})[0]
    for same in (marks.bfloat16(), marks.half(), marks.float().requires_grad_(), marks.long(), marks.tolist()):
        assert torch.equal(own(x, hx, **{name: same})[0], expected)
