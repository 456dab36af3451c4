"""PyTorch's modules on the GPU engine, beside PyTorch's own on the same GPU; and what is said without one."""

import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from messages import says
from optional import needs
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import rnnkit
import rnnkit.torch
from rnnkit.cells import SLSTM
from rnnkit.torch import function
from rnnkit.torch.arrays import Stream, to_array

T, N, F, H = 6, 4, 3, 5


def test_cuda_tensor_without_cupy_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    tensor = SimpleNamespace(device=SimpleNamespace(type="cuda"), is_cpu=False)
    facts = "CUDA", "none", "pip install 'rnnkit[cuda13]'"
    with pytest.raises(rnnkit.BackendError, match=says("forward: CuPy", *facts)):
        to_array(tensor)


def test_stream_of_pytorch_converts_to_cupys():
    """Without a warning, and without a GPU."""
    cupy = needs("cupy")
    assert cupy.cuda.Stream.from_external(Stream(SimpleNamespace(cuda_stream=4096))).ptr == 4096


def test_all_states_are_read_from_a_gpu_workspace(standin, monkeypatch):
    import standin_cupy

    net = rnnkit.GRU(F, H, seed=0)
    x = np.random.default_rng(0).standard_normal((T, N, F), np.float32)
    result = net.to(standin_cupy).forward(standin_cupy.asarray(x))
    kept, call = torch.empty(0), SimpleNamespace(desc=net.desc)
    kept.lease = SimpleNamespace(workspace=result.workspace)
    monkeypatch.setattr(function, "to_tensor", lambda array: torch.from_numpy(array.get()))
    (states,) = function.all_states(call, kept)
    np.testing.assert_allclose(states[:, 0], net.infer(x).y, rtol=0, atol=1e-6)


def test_workspace_on_a_gpu_is_not_reused(standin):
    """Another call may be on another stream."""
    import standin_cupy

    net, x = rnnkit.GRU(F, H, seed=0), np.ones((T, N, F), np.float32)
    for is_kept, arrays in ((True, np), (False, standin_cupy)):
        workspace = net.to(arrays).forward(arrays.asarray(x)).workspace
        assert (workspace.lease is not None) == is_kept


@pytest.mark.gpu
@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_results_and_gradients_match_pytorch_on_a_gpu(kind, packed):
    if not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    found = []
    for library in (nn, rnnkit.torch):
        torch.manual_seed(0)
        module = getattr(library, kind)(F, H, 2, bidirectional=True, dtype=torch.float64, device="cuda")
        x = torch.randn(T, N, F, dtype=torch.float64, device="cuda", requires_grad=True)
        given = pack_padded_sequence(x, [3, 6, 1, 4], enforce_sorted=False) if packed else x
        with torch.cuda.stream(torch.cuda.Stream()):
            output, _ = module(given)
            output = output.data if packed else output
            gradients = torch.autograd.grad(output.sin().sum(), [x, *module.parameters()])
            torch.cuda.current_stream().synchronize()
        found.append((output, *gradients))
    torch.testing.assert_close(*reversed(found))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::rnnkit.torch.FallbackWarning")
@pytest.mark.parametrize("kind", ["cell", "mask", "second"])
def test_what_cudnn_lacks_runs_on_a_gpu(kind):
    """A cell, a mask, and second derivatives: as on the CPU."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    torch.manual_seed(0)
    make = partial(rnnkit.torch.Recurrent, SLSTM) if kind == "cell" else rnnkit.torch.LSTM
    module, x = make(F, H, 2, bidirectional=True, dtype=torch.float64), torch.randn(T, N, F, dtype=torch.float64)
    options, found = {"mask": torch.rand(T, N) < 0.7} if kind == "mask" else {}, []
    for device in "cpu", "cuda":
        leaf = x.to(device).requires_grad_()
        output, _ = module.to(device)(leaf, **options)
        (slope,) = torch.autograd.grad(output.sin().sum(), leaf, create_graph=kind == "second")
        results = [output, slope]
        if kind == "second":
            results += torch.autograd.grad(slope.square().sum(), [leaf, *module.parameters()])
        found.append([one.detach().cpu() for one in results])
    torch.testing.assert_close(*found)
