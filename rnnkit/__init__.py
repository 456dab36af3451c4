"""A recurrent-network engine for NumPy: stacks of vanilla, LSTM and GRU layers, forward and backward.

One call runs all layers and directions over a batch (T, N, I) of sequences of any lengths.  A second call computes
all gradients.  All weights are in one flat buffer, in cuDNN's order.

Letters in shapes: T seq_len, N batch_size, I input_size, H hidden_size, P proj_size (H without projection),
L num_layers, D num_directions.

Networks with their weights:

    LSTM, GRU, RNN        forward, backward, infer, prepare, save, copy, astype, to
    Network               any mode, or your own cell
    load                  read a network from a file

Functions on arrays:

    RNNDescriptor         mode, sizes and options of a network
    forward, infer        run all steps of a batch; forward saves what backward needs
    backward              compute all gradients
    Forward, Infer, Backward, Workspace        the result types of these calls

Weights packed once, for many calls:

    prepare, Plan         infer and step
    Stream                the states of many sequences between calls (`plan.stream`)

The flat buffer:

    init_weights, pack_weights, num_weights    make one
    weight_views, weight_layout, WeightBlock   its blocks by name
    workspace_nbytes      bytes that forward saves for backward

Debugging and errors:

    set_debug             backward then raises if w or x changed since forward
    set_idle_memory       how much memory of finished calls is kept for later ones
    check_cell            checks the gradients of a custom cell against finite differences
    explain, Explanation, Route                how a call of some size runs: route, threads, memory, operations
    BackendError, WorkspaceError

Import these explicitly: rnnkit.training (optimizers, losses, padding), rnnkit.cells, rnnkit.plot, rnnkit.compiled,
rnnkit.compression, rnnkit.torch, rnnkit.jax, rnnkit.keras, rnnkit.sklearn, rnnkit.interop, rnnkit.distributed.  On the
command line: python -m rnnkit.
"""

from typing import TYPE_CHECKING

from rnnkit.common import former_names as _former_names  # noqa: F401
from rnnkit.common import startup as _startup  # noqa: F401  first, see there

# isort: split

from rnnkit.call.debugging import set_debug as set_debug
from rnnkit.call.pool import set_idle_memory as set_idle_memory
from rnnkit.call.workspace import Workspace as Workspace
from rnnkit.call.workspace import workspace_nbytes as workspace_nbytes

# Re-exported with `as` instead of `__all__`: `help` expands each name in `__all__`, with all methods of named tuples.
from rnnkit.cell_check import check_cell as check_cell
from rnnkit.descriptor.descriptor import RNNDescriptor as RNNDescriptor
from rnnkit.descriptor.weights import WeightBlock as WeightBlock
from rnnkit.descriptor.weights import init_weights as init_weights
from rnnkit.descriptor.weights import num_weights as num_weights
from rnnkit.descriptor.weights import pack_weights as pack_weights
from rnnkit.descriptor.weights import weight_layout as weight_layout
from rnnkit.descriptor.weights import weight_views as weight_views
from rnnkit.errors import BackendError as BackendError
from rnnkit.errors import WorkspaceError as WorkspaceError
from rnnkit.network.engine import backward as backward
from rnnkit.network.engine import forward as forward
from rnnkit.network.engine import infer as infer
from rnnkit.network.explanation import Explanation as Explanation
from rnnkit.network.explanation import Route as Route
from rnnkit.network.explanation import explain as explain
from rnnkit.network.networks import GRU as GRU
from rnnkit.network.networks import LSTM as LSTM
from rnnkit.network.networks import RNN as RNN
from rnnkit.network.networks import Network as Network
from rnnkit.network.networks import load as load
from rnnkit.network.plan import Plan as Plan
from rnnkit.network.plan import prepare as prepare
from rnnkit.network.results import Backward as Backward
from rnnkit.network.results import Forward as Forward
from rnnkit.network.results import Infer as Infer
from rnnkit.network.stream import Stream as Stream

if TYPE_CHECKING:
    __version__: str
else:  # hidden from type checkers: a module `__getattr__` makes them accept any name

    def __getattr__(name):
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version  # imported on first use: it takes longer than all of rnnkit

        return version("rnnkit")
