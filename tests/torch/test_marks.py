"""`resets` and `mask` of PyTorch's modules, where states start anew or stay: in all forms of input; what is wrong."""

import numpy as np
import pytest
import torch
from messages import says
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch_tensors import assert_equal

import rnnkit.torch

T, N, F, H = 8, 4, 3, 5
LENGTHS = [8, 3, 8, 1]


of_each_name = pytest.mark.parametrize("name", ["resets", "mask"])


def module(kind="LSTM", **options):
    torch.manual_seed(0)
    return getattr(rnnkit.torch, kind)(F, H, dtype=torch.float64, **options)


def inputs():
    """x and marks."""
    torch.manual_seed(1)
    return torch.randn(T, N, F, dtype=torch.float64, requires_grad=True), torch.rand(T, N) < 0.3


@of_each_name
def test_marks_of_packed_sequences_are_those_of_lengths(name):
    own = module(num_layers=2, bidirectional=True)
    x, marks = inputs()
    expected, states, every = own(x, lengths=LENGTHS, **{name: marks}, all_states=True)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)
    output, of_packed, of_steps = own(packed, **{name: marks}, all_states=True)
    assert_equal((pad_packed_sequence(output)[0], of_packed, of_steps), (expected, states, every))
    assert every[0].shape == every[1].shape == (T, 4, N, H)
    assert torch.equal(every[0][:, 2:].transpose(1, 2).reshape(T, N, 2 * H), expected)
    assert not torch.equal(own(x, lengths=LENGTHS)[0], expected)


@of_each_name
@pytest.mark.parametrize("batch_first", [False, True])
def test_marks_of_one_sequence(name, batch_first):
    own = module("GRU", batch_first=batch_first)
    x, marks = inputs()
    batch, of_batch = (one[:, :1].transpose(0, 1) if batch_first else one[:, :1] for one in (x, marks))
    output, states, every = own(batch, **{name: of_batch}, all_states=True)
    expected = output.squeeze(0 if batch_first else 1), states.squeeze(1), every.squeeze(2)
    assert_equal(own(x[:, 0], **{name: marks[:, 0]}, all_states=True), expected)


@pytest.mark.parametrize("small", [False, True])
def test_all_states_can_be_changed(small):
    """They are copies, and what backward reads is not changed."""
    own = module(num_layers=1 if small else 3)
    x, _ = inputs()
    leaves = [x, *own.parameters()]
    output, _, every = own(x, all_states=True)
    expected = torch.autograd.grad(own(x)[0].square().sum(), leaves)
    for one in every:
        one.zero_()
    assert_equal(torch.autograd.grad(output.square().sum(), leaves), expected)


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
    x, marks = inputs()
    expected = own(x, **{name: marks})[0]
    for same in (marks.bfloat16(), marks.half(), marks.float().requires_grad_(), marks.long(), marks.tolist()):
        assert torch.equal(own(x, **{name: same})[0], expected)
