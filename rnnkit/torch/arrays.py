"""Convert tensors to arrays that share their memory, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from rnnkit.common.extras import to_install_extra
from rnnkit.errors import BackendError, message
from rnnkit.torch.threads import threads


def to_array(tensor: torch.Tensor | None) -> Any:
    """Return a NumPy or CuPy array that shares the tensor's memory; None stays None."""
    if tensor is None:
        return None
    if tensor.is_cpu:
        return tensor.detach().resolve_neg().numpy()
    if tensor.device.type == "cuda":
        return _cupy().from_dlpack(tensor.detach())
    raise BackendError(message("forward", "input", "be on a CPU or a CUDA device", tensor.device))


def to_tensor(array: Any) -> Any:
    """Return a tensor that shares the array's memory; None stays None."""
    if array is None:
        return None
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def is_autocast(device: torch.device) -> bool:
    """Whether autocast is on for a device; PyTorch's function raises for one without."""
    known = device.type in ("cpu", "cuda") or torch.amp.is_autocast_available(device.type)  # older dynamo has no latter
    return known and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which operations on a device compute in the dtype of their arguments."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device) else nullcontext()


def compute_context(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Return a context with PyTorch's threads (CPU) or its current stream (CUDA)."""
    if tensor.is_cpu:
        return threads()
    return _on_stream(torch.cuda.current_stream(tensor.device), tensor.device.index)


@contextmanager
def _on_stream(stream: Any, device: int) -> Iterator[None]:
    """Make a stream of PyTorch, and its device, CuPy's current ones."""
    cuda = _cupy().cuda
    with cuda.Device(device), cuda.Stream.from_external(Stream(stream)):
        yield


class Stream:
    """A stream of PyTorch with CUDA's stream protocol, which the streams of older versions lack."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream  # kept alive

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.cuda_stream


def library_of(array: Any) -> Any:
    """Return the array's library: NumPy or CuPy."""
    return np if isinstance(array, np.ndarray) else _cupy()


def _cupy() -> Any:
    try:
        import cupy
    except ImportError:
        cure = f"{to_install_extra('cuda13')}, or move model and input to the CPU"
        raise BackendError(message("forward", "CuPy", "be installed for CUDA tensors", "none", cure)) from None
    return cupy
