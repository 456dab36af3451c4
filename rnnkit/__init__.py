"""A standalone recurrent-network engine for NumPy users: stacks of vanilla, LSTM and GRU layers, forward and backward.

One call runs all layers and directions over a batch (T, N, I) of sequences of any lengths, another gives every
gradient.  All weights live in one flat buffer in cuDNN's own order.

Letters in shapes: T seq_len, N batch_size, I input_size, H hidden_size, P proj_size (H without projection),
L num_layers, D num_directions.
"""

from typing import Any

from rnnkit.cell_check import check_cell
from rnnkit.debugging import set_debug
from rnnkit.descriptor import RNNDescriptor
from rnnkit.engine import Backward, Forward, Infer, backward, forward, infer
from rnnkit.errors import BackendError, WorkspaceError
from rnnkit.network import GRU, LSTM, RNN, Network, load
from rnnkit.plan import Plan, prepare
from rnnkit.stream import Stream
from rnnkit.weights import WeightBlock, init_weights, num_weights, pack_weights, weight_layout, weight_views
from rnnkit.workspace import Workspace, workspace_nbytes

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BackendError",
    "Backward",
    "Forward",
    "Infer",
    "Network",
    "Plan",
    "RNNDescriptor",
    "Stream",
    "WeightBlock",
    "Workspace",
    "WorkspaceError",
    "__version__",
    "backward",
    "check_cell",
    "forward",
    "infer",
    "init_weights",
    "load",
    "num_weights",
    "pack_weights",
    "prepare",
    "set_debug",
    "weight_layout",
    "weight_views",
    "workspace_nbytes",
]


def __getattr__(name: str) -> Any:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # on first use: it takes longer to import than all of this package

    return version("rnnkit")
