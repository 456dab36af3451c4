"""A recurrent-network engine for NumPy: stacks of vanilla, LSTM and GRU layers, forward and backward.

One call runs all layers and directions over a batch (T, N, I) of sequences of any lengths, another gives every
gradient.  All weights live in one flat buffer in cuDNN's own order.

Letters in shapes: T seq_len, N batch_size, I input_size, H hidden_size, P proj_size (H without projection),
L num_layers, D num_directions.

Networks with their weights:

    LSTM, GRU, RNN        forward, backward, infer, prepare, save, copy, astype, to
    Network               of any mode, or of a cell of your own
    load                  a network from a file

The same on arrays:

    RNNDescriptor         what a network is: mode, sizes, options
    forward, infer        all steps of a batch; forward keeps what backward needs
    backward              every gradient
    Forward, Infer, Backward, Workspace        what they return

Weights that are packed once:

    prepare, Plan         infer and step
    Stream                the states of many streams: `plan.stream`

The flat buffer:

    init_weights, pack_weights, num_weights    make one
    weight_views, weight_layout, WeightBlock   its blocks by name
    workspace_nbytes      the memory that a forward keeps

When something is wrong:

    set_debug             notices weights and inputs that have changed between forward and backward
    check_cell            compares the gradients of a cell of your own with differences
    BackendError, WorkspaceError

Imported by name: rnnkit.training (optimizers, losses, padding), rnnkit.cells, rnnkit.compression, rnnkit.torch,
rnnkit.sklearn, rnnkit.interop, rnnkit.distributed.  On the command line: python -m rnnkit.
"""

from typing import TYPE_CHECKING

from rnnkit.call.debugging import set_debug as set_debug
from rnnkit.call.workspace import Workspace as Workspace
from rnnkit.call.workspace import workspace_nbytes as workspace_nbytes

# As themselves and not in `__all__`: `help` writes out in full, tuples' methods too, what is named there.
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
from rnnkit.network.engine import Backward as Backward
from rnnkit.network.engine import Forward as Forward
from rnnkit.network.engine import Infer as Infer
from rnnkit.network.engine import backward as backward
from rnnkit.network.engine import forward as forward
from rnnkit.network.engine import infer as infer
from rnnkit.network.networks import GRU as GRU
from rnnkit.network.networks import LSTM as LSTM
from rnnkit.network.networks import RNN as RNN
from rnnkit.network.networks import Network as Network
from rnnkit.network.networks import load as load
from rnnkit.network.plan import Plan as Plan
from rnnkit.network.plan import prepare as prepare
from rnnkit.network.stream import Stream as Stream

if TYPE_CHECKING:
    __version__: str
else:  # to a type checker it would say that any name is here

    def __getattr__(name):
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version  # on first use: it takes longer to import than all of this package

        return version("rnnkit")
