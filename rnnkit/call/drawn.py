"""The random numbers of a training call, for code that runs the same call again."""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnkit.call.workspace import Workspace
from rnnkit.common.arrays import on_host
from rnnkit.errors import BackendError


def drawn(workspace: Workspace, seq_len: int | None = None) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Return the arguments `masks` and `noises` of :func:`rnnkit.cells.unrolled` with what `forward` drew.

    They are 0 at steps that do not run. `seq_len` is the number of steps, if not that of the workspace.

    Raises
    ------
    BackendError
        `forward` ran on a GPU with dropout.
    """
    desc, steps, mask = workspace.desc, workspace.steps, workspace.options.mask
    count = steps.seq_len if seq_len is None else seq_len  # the arrays may have room for more

    def of_all(given: Any) -> np.ndarray:
        array = on_host(given)
        if mask is not None:  # on a GPU the arrays are those of all steps
            return mask.spread(array) if array is given else np.where(mask.listed[:, :, None], array, 0)
        if not steps.padded:
            return array[:count]
        within = np.arange(count)[:, None, None] < steps.lengths[:, None]
        return np.where(within, array[:count], array.dtype.type(0))

    masks, noises, columns = [], {}, {False: 0, True: 0}
    for layer in range(1, desc.num_layers) if desc.dropout > 0 else ():
        if f"mask_l{layer}" not in workspace.arrays:
            raise BackendError("forward: cuDNN does not show what it drops: run the network on NumPy arrays")
        scale = desc.np_dtype.type(0 if desc.dropout == 1 else 1 / (1 - desc.dropout))
        masks.append(of_all(workspace.arrays[f"mask_l{layer}"]) * scale)
    for noise in desc.cell.declaration.noises if desc.draws_noise else ():
        first, prefix = columns[noise.per_step], "step_" if noise.per_step else ""
        columns[noise.per_step] += desc.hidden_size
        rows = [workspace.arrays[f"{prefix}noises_{index}"] for index in range(desc.num_pseudo_layers)]
        own = [one[..., first : first + desc.hidden_size] for one in rows]
        noises[noise.name] = np.stack([of_all(one) if noise.per_step else on_host(one) for one in own])
    return masks, noises
