"""One network on NumPy arrays: forward, a loop over groups of layers that calls a kernel for each.

Arguments are checked by `engine`; `backward` is in `_cpu_backward`, inference in `_cpu_infer`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnkit._cpu_backward import backward
from rnnkit._cpu_infer import Inference
from rnnkit._cpu_layer import groups_of, pack
from rnnkit._cpu_run import clear_padding, drop, input_matrix, kept_run, outer, run_group
from rnnkit._cpu_sharing import sharing_of
from rnnkit.descriptor import RNNDescriptor
from rnnkit.kernels.matrix import Matrix
from rnnkit.workspace import Memory, Workspace, workspace_layout

__all__ = ["Inference", "Memory", "backward", "forward", "prepare"]

prepare = Inference  # which packs, and so copies, the weights


def forward(desc: RNNDescriptor, w: np.ndarray, hx: Any, cx: Any, workspace: Workspace) -> tuple[Any, Any, Any]:
    """Run the network on workspace.x and fill the workspace; returns y, a view of it, hy and cy."""
    steps = workspace.steps
    workspace.allocate(workspace_layout(desc, steps.seq_len, steps.batch_size))
    packed, states = pack(desc, w, workspace.memory), outer(desc, hx, cx, steps.batch_size)
    for group in groups_of(desc, desc.dropout > 0):
        runs = []
        for layer in group:
            if layer.direction == 0:
                source = _source(desc, workspace, layer.layer)
            runs.append(kept_run(desc, workspace.arrays, layer, source, steps))
        run_group(runs, packed, steps, sharing_of(group, steps, w.itemsize), states)
    for name, array in workspace.arrays.items() if steps.padded else ():
        if name.startswith(("hidden", "cell")):
            clear_padding(array, steps, 1)
    y = runs[-1].hidden[1 : steps.seq_len + 1]
    y.flags.writeable = False  # backward reads it
    return y, states.hy, states.cy


def _source(desc: RNNDescriptor, workspace: Workspace, layer: int) -> Matrix:
    """What a layer reads: the input, or the outputs of the layer below, some of them dropped."""
    if layer == 0:
        return input_matrix(workspace.x, workspace.steps)
    below = workspace.arrays[f"hidden_l{layer - 1}"]
    if desc.dropout == 0:
        return Matrix(below.reshape(-1), workspace.steps.states, 0, below.shape[2])
    kept, dropped = workspace.arrays[f"kept_l{layer}"], workspace.arrays[f"input_l{layer}"]
    # One Philox stream a layer: NumPy's counter-based generator, so that the seed alone decides about every bit.
    stream = np.random.Generator(np.random.Philox(key=workspace.seed, counter=[0, 0, 0, layer]))
    draws = workspace.memory.take("draws", kept.shape, np.dtype(np.float32))
    stream.random(dtype=np.float32, out=draws)
    np.greater_equal(draws, desc.dropout, out=kept)
    rows, width = workspace.steps.rows, below.shape[2]
    source = Matrix(below.reshape(-1), workspace.steps.states, 0, width)
    return drop(source, Matrix(dropped.reshape(-1), rows, 0, width), Matrix(kept.reshape(-1), rows, 0, width), desc)
