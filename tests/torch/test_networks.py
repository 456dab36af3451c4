"""PyTorch on the same weights by name: the engine, and the naive twin, in all that PyTorch has."""

import numpy as np
import pytest
import torch
from problems import CELLS, Problem
from tolerances import assert_gradients_close, assert_outputs_close

import rnnkit

COMMON_CELLS = ["tanh", "relu", "lstm", "lstm-projected", "gru"]  # neither clip nor reset-before
MODULES = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn_tanh": torch.nn.RNN, "rnn_relu": torch.nn.RNN}


def make_module(problem):
    dtype = getattr(torch, problem.dtype)
    options = dict(bidirectional=problem.bidirectional, bias=problem.bias == "both", dtype=dtype)
    if problem.mode.startswith("rnn"):
        options["nonlinearity"] = problem.mode.removeprefix("rnn_")
    if problem.proj_size:
        options["proj_size"] = problem.proj_size
    module = MODULES[problem.mode](problem.input_size, problem.hidden_size, problem.num_layers, **options)
    named = dict(module.named_parameters())
    assert named.keys() == problem.views.keys()
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(torch.from_numpy(problem.views[name].copy()))
    return module


def tensors(*arrays, requires_grad=False):
    return [None if a is None else torch.from_numpy(a.copy()).requires_grad_(requires_grad) for a in arrays]


def run_torch(problem):
    """Outputs and gradients of the problem by PyTorch, as rnnkit's result types."""
    module = make_module(problem)
    x, hx, cx = tensors(problem.x, problem.hx, problem.cx, requires_grad=True)
    packed = x
    if problem.lengths is not None:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, list(problem.lengths), enforce_sorted=False)
    y, state = module(packed, hx if cx is None else (hx, cx))
    if problem.lengths is not None:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=problem.seq_len)
    hy, cy = (state, None) if cx is None else state
    ends = [end for end in (y, hy, cy) if end is not None]
    torch.autograd.backward(ends, [d for d in tensors(*problem.cotangents) if d is not None])
    named = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
    outputs = rnnkit.Infer(*(None if a is None else a.detach().numpy() for a in (y, hy, cy)))
    states = (None if a is None else a.grad.numpy() for a in (x, hx, cx))
    return outputs, rnnkit.Backward(*states, rnnkit.pack_weights(problem.desc, named))


def assert_like_torch(problem):
    wanted, wanted_gradients = run_torch(problem)
    result = problem.forward()
    assert_outputs_close(result, wanted, problem.dtype)
    assert_outputs_close(problem.infer(), wanted, problem.dtype)
    assert_gradients_close(problem.backward(result.workspace), wanted_gradients, problem.dtype)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("lengths", [None, (6, 1, 4, 6, 2)], ids=["padded", "packed"])
@pytest.mark.parametrize("bias", ["both", "none"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cell", COMMON_CELLS)
def test_engine_matches_pytorch(cell, dtype, bidirectional, bias, lengths):
    sizes = dict(num_layers=2, input_size=7, hidden_size=19, seq_len=6, batch_size=5)
    options = dict(dtype=dtype, bidirectional=bidirectional, bias=bias, lengths=lengths)
    assert_like_torch(Problem(**CELLS[cell], **sizes, **options))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("lengths", [None, (6, 1, 4)], ids=["padded", "packed"])
@pytest.mark.parametrize("cell", COMMON_CELLS)
def test_reference_matches_pytorch(cell, lengths):
    problem = Problem(**CELLS[cell], num_layers=2, bidirectional=True, seq_len=6, lengths=lengths)
    assert_outputs_close(problem.reference(), run_torch(problem)[0], "float64")


@pytest.mark.parametrize("mode", MODULES)
def test_weight_views_are_pytorchs_parameters(mode):
    """One memory for both: the named views have the names, shapes and gate order of PyTorch's parameters."""
    problem = Problem(mode=mode, num_layers=2, bidirectional=True)
    module = make_module(problem)
    named = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
    assert np.array_equal(rnnkit.pack_weights(problem.desc, named), problem.w)
