"""Checks of the arguments of forward, backward and infer."""

from __future__ import annotations

from typing import Any

from rnnkit.call import checks, debugging
from rnnkit.call.workspace import Workspace, check_workspace
from rnnkit.common.arrays import device_of
from rnnkit.descriptor.descriptor import RNNDescriptor, check_descriptor
from rnnkit.descriptor.states import arrays_of
from rnnkit.errors import message, wrong_type


def check_call(function: str, desc: RNNDescriptor, x: Any, hx: Any, cx: Any, like: Any = None) -> tuple[int, int]:
    """Check x, hx and cx of forward and infer; return seq_len and batch_size.

    x must be on the device of `like`, if that is given. hx and cx must be on the device of x.
    """
    checks.inputs(function, x, checks.SEQUENCE_DIMS, desc, like)
    seq_len, batch_size, _ = x.shape
    checks.hidden(function, "hx", hx, batch_size, desc, x)
    checks.cell_state(function, "cx", cx, batch_size, desc, x)
    return seq_len, batch_size


def check_reuse(workspace: Any, **inputs: Any) -> None:
    """Check that forward can reuse the memory of a workspace."""
    if not isinstance(workspace, Workspace):
        raise wrong_type("forward", "workspace", "None or a Workspace", workspace)
    x = inputs["x"]
    if device_of(workspace.x) != device_of(x):
        expected = f"be on {device_of(x)} as x is"
        raise ValueError(message("forward", "workspace", expected, f"one on {device_of(workspace.x)}"))
    for name, given in inputs.items():
        for array in arrays_of(given):
            if workspace.memory.arena.holds(array):
                text = f"forward: {name} is a view of the workspace that is being reused"
                raise ValueError(f"{text}; pass a copy, or another workspace")


def check_backward(desc: RNNDescriptor, w: Any, workspace: Any, dy: Any, dhy: Any, dcy: Any) -> Any:
    """Check the arguments of backward but dw; return the x of its forward."""
    check_descriptor("backward", desc)
    if not isinstance(workspace, Workspace):
        raise wrong_type("backward", "workspace", "the Workspace of a forward", workspace)
    check_workspace("backward", workspace, desc)
    seq_len, batch_size, x = workspace.options.seq_len, workspace.steps.batch_size, workspace.x
    checks.weights("backward", w, desc, x)
    checks.dy("backward", dy, seq_len, batch_size, desc, x)
    checks.hidden("backward", "dhy", dhy, batch_size, desc, x)
    checks.cell_state("backward", "dcy", dcy, batch_size, desc, x)
    if dy is None and dhy is None and dcy is None:
        raise ValueError("backward: at least one of dy, dhy and dcy is required")
    debugging.compare("backward", workspace, w)
    return x
