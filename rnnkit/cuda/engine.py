"""One network on CuPy arrays: the functions of `rnnkit.cpu.engine`. cuDNN runs what it has, `cells` the rest.

`network.engine` checks the arguments.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from rnnkit.call.options import CallOptions, is_of_cudnn, options_of
from rnnkit.call.workspace import Workspace
from rnnkit.cuda import cells, modes
from rnnkit.cuda.modes import Memory
from rnnkit.descriptor.descriptor import RNNDescriptor

__all__ = ["Memory", "backward", "forward", "infer", "prepare"]


def engine_of(desc: RNNDescriptor, options: CallOptions) -> ModuleType:
    """Return `modes` for what cuDNN has, `cells` for anything else."""
    return modes if is_of_cudnn(desc, options) else cells


def forward(desc: RNNDescriptor, w: Any, x: Any, hx: Any, cx: Any, workspace: Workspace) -> tuple[Any, Any, Any]:
    """Run the network on x and fill the workspace; returns y, hy and cy."""
    return engine_of(desc, workspace.options).forward(desc, w, x, hx, cx, workspace)


def backward(
    desc: RNNDescriptor, w: Any, workspace: Workspace, dy: Any, dhy: Any, dcy: Any, dw: Any, wants_dx: bool = True
) -> tuple[Any, Any, Any, Any]:
    """Compute dx, dhx, dcx and dw from the workspace of a forward. If dw is given, the gradient is added to it."""
    own = engine_of(desc, workspace.options)
    return own.backward(desc, w, workspace, dy, dhy, dcy, dw, wants_dx)


class PackedNetwork:
    """Runs a network with fixed weights; thread-safe."""

    def __init__(self, desc: RNNDescriptor, w: Any) -> None:
        self._desc, self.weights = desc, w

    def infer(self, x: Any, hx: Any, cx: Any, options: CallOptions) -> tuple[Any, Any, Any]:
        """Run the network over all steps and return y, hy and cy."""
        return infer(self._desc, self.weights, x, hx, cx, options)

    def buffers(self, batch: int, take: Any = None) -> None:
        """Return None: a step writes new arrays, which CuPy's pool provides."""

    def step(self, x: Any, hx: Any, cx: Any = None, buffers: None = None) -> tuple[Any, Any, Any]:
        """Run all layers over one time step; returns y, hy and cy."""
        y, hy, cy = self.infer(x[None], hx, cx, options_of("step", self._desc, 1, len(x)))
        return y[0], hy, cy


def prepare(desc: RNNDescriptor, w: Any) -> PackedNetwork:
    """Return the inference of a network. w must not change afterwards."""
    return PackedNetwork(desc, w)


def infer(desc: RNNDescriptor, w: Any, x: Any, hx: Any, cx: Any, options: CallOptions) -> tuple[Any, Any, Any]:
    """Run the network with these weights once."""
    return engine_of(desc, options).infer(desc, w, x, hx, cx, options)
