"""One network on NumPy arrays: forward, a loop over layers that calls the kernels.

Arguments are checked by `engine`; `backward` is in `_cpu_backward`, inference in `_cpu_infer`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnkit._cpu_backward import backward
from rnnkit._cpu_infer import Inference
from rnnkit._cpu_layer import clear_padding, drop, input_matrix, kept_run, layers_of, outer, pack, run_layer
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
    source = input_matrix(workspace.x, steps)
    for layer, directions in enumerate(layers_of(desc)):
        if layer > 0:
            source = _layer_input(desc, workspace, layer)
        run = kept_run(desc, workspace.arrays, layer)
        run_layer(directions, packed, source, run, steps, states, layer * desc.num_directions)
        for array in (run.hidden, *run.cells) if desc.has_cell else (run.hidden,):
            clear_padding(array, steps, 1)
    y = run.hidden[1 : steps.seq_len + 1]
    y.flags.writeable = False  # backward reads it
    return y, states.hy, states.cy


def _layer_input(desc: RNNDescriptor, workspace: Workspace, layer: int) -> Matrix:
    """The outputs of the layer below, some of them dropped."""
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
