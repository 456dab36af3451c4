"""PyTorch's modules on the GPU engine, beside PyTorch's own on the same GPU; and what is said without one."""

import os
import sys
from types import SimpleNamespace

import pytest
from messages import says

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence  # noqa: E402

import rnnkit  # noqa: E402
import rnnkit.torch  # noqa: E402
from rnnkit.torch.function import to_array  # noqa: E402

T, N, F, H = 6, 4, 3, 5


def test_a_cuda_tensor_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    tensor = SimpleNamespace(device=SimpleNamespace(type="cuda"), is_cpu=False)
    facts = "CUDA", "none", "pip install 'rnnkit[cuda13]'"
    with pytest.raises(rnnkit.BackendError, match=says("forward: CuPy", *facts)):
        to_array(tensor)


def test_a_tensor_of_another_device():
    with pytest.raises(rnnkit.BackendError, match=says("forward: input", "CPU", "CUDA", "meta")):
        rnnkit.torch.GRU(F, H)(torch.empty(T, N, F, device="meta"))


@pytest.mark.gpu
@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_results_and_gradients_are_those_of_pytorch(kind, packed):
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
    for own, plain in zip(*reversed(found), strict=True):
        torch.testing.assert_close(own, plain)
