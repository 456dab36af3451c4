"""One network on NumPy arrays: forward, a loop over groups of layers that calls a kernel for each.

Arguments are checked by `engine`; the gradients are in `backward`, inference in `infer`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.random  # NumPy would import it on first use: in the middle of a call, where a fork might come

from rnnkit.cpu.backward import backward
from rnnkit.cpu.infer import Inference
from rnnkit.cpu.layer import groups_of, pack
from rnnkit.cpu.planner import Planner
from rnnkit.cpu.run import boundary_states, clear_padding, drop, input_grid, kept_runs, outputs_of, run_group
from rnnkit.descriptor import RNNDescriptor
from rnnkit.workspace import Memory, Workspace, workspace_layout

__all__ = ["Inference", "Memory", "backward", "forward", "prepare"]

prepare = Inference  # which packs, and so copies, the weights


def forward(
    desc: RNNDescriptor, w: np.ndarray, x: np.ndarray, hx: Any, cx: Any, workspace: Workspace
) -> tuple[Any, Any, Any]:
    """Run the network on x and fill the workspace; returns y, a view of it, hy and cy."""
    steps, planner = workspace.steps, Planner(workspace.steps, w.itemsize)
    workspace.allocate(workspace_layout(desc, steps.seq_len, steps.batch_size))
    packed, states = pack(desc, w, workspace.memory), boundary_states(desc, hx, cx, steps.batch_size)
    for group in groups_of(desc, desc.dropout > 0):
        if group[0].layer and desc.dropout > 0:
            _drop_outputs(desc, workspace, group[0].layer)
        runs = kept_runs(desc, x, workspace, group)
        run_group(runs, packed, planner, planner.forward(group, keeps_gates=True), states)
    for name, array in workspace.arrays.items() if steps.padded else ():
        if name.startswith(("hidden", "cell")):
            clear_padding(array, steps, 1)
    y = workspace.arrays[f"hidden_l{desc.num_layers - 1}"][1 : steps.seq_len + 1]
    y.flags.writeable = False  # backward reads it
    return y, states.hy, states.cy


def _drop_outputs(desc: RNNDescriptor, workspace: Workspace, layer: int) -> None:
    """Write what a layer reads where outputs of the layer below are dropped."""
    below, steps = workspace.arrays[f"hidden_l{layer - 1}"], workspace.steps
    kept, dropped = workspace.arrays[f"kept_l{layer}"], workspace.arrays[f"input_l{layer}"]
    # One Philox stream a layer: NumPy's counter-based generator, so that the seed alone decides about every bit.
    stream = np.random.Generator(np.random.Philox(key=workspace.seed, counter=[0, 0, 0, layer]))
    draws = workspace.memory.take("draws", kept.shape, np.dtype(np.float32))
    stream.random(dtype=np.float32, out=draws)
    np.greater_equal(draws, desc.dropout, out=kept)
    drop(outputs_of(below), input_grid(dropped), input_grid(kept), steps, desc)
