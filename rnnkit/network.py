"""LSTM, GRU, RNN and Network: a descriptor and its weights in one object, which can be saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from types import MappingProxyType
from typing import Any, TypedDict, Unpack

from rnnkit import archive, engine
from rnnkit.arrays import Array
from rnnkit.descriptor import RNNDescriptor
from rnnkit.errors import message, wrong_type
from rnnkit.kernels.cells.modes import MODES, mode_of
from rnnkit.plan import Plan, prepare
from rnnkit.saved import members, read
from rnnkit.weights import check_weights, init_weights, num_weights, weight_views
from rnnkit.workspace import Workspace


class Options(TypedDict, total=False):
    """The options of :class:`rnnkit.RNNDescriptor`; it refuses those that do not go with the mode."""

    bias: str
    input_mode: str
    proj_size: int | None
    dropout: float
    cell_clip: tuple[float, float] | None
    reset_after: bool
    dtype: str
    allow_tf32: bool


class _Network:
    """A descriptor and its flat weight buffer, with the engine's calls as methods."""

    _name: str  # of the class in the table of modes

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bidirectional: bool = False, *,
        seed: int | None = None, **options: Unpack[Options],
    ) -> None:
        self._make(seed, mode_of(self._name), input_size, hidden_size, num_layers, bidirectional, **options)

    def _make(self, seed: int | None, *network: Any, **options: Unpack[Options]) -> None:
        self._desc = RNNDescriptor(*network, **options)
        self._weights = init_weights(self._desc, seed)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._desc!r}, {num_weights(self._desc)} weights>"

    @property
    def desc(self) -> RNNDescriptor:
        """What the network is."""
        return self._desc

    @property
    def weights(self) -> Array:
        """The flat buffer (num_weights,) itself: update it in place, or assign another one, which is not copied."""
        return self._weights

    @weights.setter
    def weights(self, w: Array) -> None:
        check_weights(type(self).__name__, "weights", w, self._desc)
        self._weights = w

    @property
    def views(self) -> Mapping[str, Array]:
        """The named blocks, as views of the weights: ``net.views[name][:] = array`` writes the weights."""
        return MappingProxyType(weight_views(self._desc, self._weights))

    def forward(
        self, x: Array, hx: Array | None = None, cx: Any = None, *, lengths: Any = None, seed: int | None = None,
        workspace: Workspace | None = None, checkpoint_steps: int | None = None,
    ) -> engine.Forward:
        """Run the network and keep what backward needs, as :func:`rnnkit.forward` does.

        Parameters
        ----------
        x : ndarray (T, N, I)
            Input, time-major. Kept by reference: do not change it before backward.
        hx : ndarray (L*D, N, P), optional
            Initial hidden state; None is zeros.
        cx : ndarray (L*D, N, H), optional
            Initial cell state, LSTM only; None is zeros. Of a cell with several states a tuple.
        lengths : array_like (N,) of int, optional
            Length of each sequence, 0..T; None is T for all.
        seed : int, optional
            Seed of dropout; None draws one.
        workspace : Workspace, optional
            One of an earlier call, whose memory is used again: what views it, that call's y included, is then void.
        checkpoint_steps : int, optional
            Keep the states of one step in so many alone, and let backward compute the rest again.

        Returns
        -------
        Forward
            y, a read-only view of the workspace or with `checkpoint_steps` a new array, hy, cy and the workspace.
        """
        return engine.forward(
            self._desc, self._weights, x, hx, cx, lengths=lengths, seed=seed, workspace=workspace,
            checkpoint_steps=checkpoint_steps,
        )

    def backward(
        self, workspace: Workspace, dy: Array | None = None, dhy: Array | None = None, dcy: Any = None, *,
        dw: Array | None = None,
    ) -> engine.Backward:
        """Return every gradient of a forward call, as :func:`rnnkit.backward` does.

        Parameters
        ----------
        workspace : Workspace
            What that forward call left; the weights must not have changed since.
        dy : ndarray (T, N, D*P), optional
            Gradient of y; None is zeros.
        dhy : ndarray (L*D, N, P), optional
            Gradient of hy; None is zeros.
        dcy : ndarray (L*D, N, H), optional
            Gradient of cy, LSTM only; None is zeros.
        dw : ndarray (num_weights,), optional
            Buffer into which the weight gradient is added; None is a new one.

        Returns
        -------
        Backward
            dx, dhx, dcx and dw.

        Raises
        ------
        WorkspaceError
            The workspace's memory has been used by a later forward, or it is of another descriptor.
        TypeError, ValueError
            An argument has the wrong type, dtype, shape or value.
        """
        return engine.backward(self._desc, self._weights, workspace, dy, dhy, dcy, dw=dw)

    def infer(
        self, x: Array, hx: Array | None = None, cx: Any = None, *, lengths: Any = None
    ) -> engine.Infer:
        """Run the network without dropout and keep nothing, as :func:`rnnkit.infer` does.

        Parameters
        ----------
        x : ndarray (T, N, I)
            Input, time-major.
        hx : ndarray (L*D, N, P), optional
            Initial hidden state; None is zeros.
        cx : ndarray (L*D, N, H), optional
            Initial cell state, LSTM only; None is zeros. Of a cell with several states a tuple.
        lengths : array_like (N,) of int, optional
            Length of each sequence, 0..T; None is T for all.

        Returns
        -------
        Infer
            y, hy and cy.
        """
        return engine.infer(self._desc, self._weights, x, hx, cx, lengths=lengths)

    def prepare(self) -> Plan:
        """Return a plan with a packed copy of the weights, as :func:`rnnkit.prepare` does.

        Returns
        -------
        Plan
            For many calls of ``infer`` or ``step``; later changes of the weights do not reach it.
        """
        return prepare(self._desc, self._weights)

    def save(self, path: str | PathLike[str]) -> None:
        """Write descriptor and weights to a file that :func:`rnnkit.load` reads.

        The file is written beside its place under another name and then renamed: nobody ever sees half of one, and
        a failure leaves what was there before.

        Parameters
        ----------
        path : str or path-like
            Name of the file, taken as it is: no suffix is added.  An existing file is replaced and its mode kept; of a
            symbolic link the file that it points to.

        Raises
        ------
        OSError
            The file cannot be written.
        ValueError
            `path` names something that is no regular file: a folder, a device, a FIFO.

        Notes
        -----
        The format is NumPy's .npz, uncompressed, with three members: ``format`` (an integer), ``descriptor`` (JSON
        text) and ``weights``.  What a killed process leaves, a file ``.rnnkit-*.tmp`` in that folder, the next save
        into the folder removes; any number of processes may save at once, and the last one's file stays.
        """
        archive.write(path, members(self._desc, self._weights))


class LSTM(_Network):
    """Long short-term memory network: a descriptor and its weights.

    Parameters
    ----------
    input_size : int
        I, the number of features of x.
    hidden_size : int
        H, the number of units of each layer and direction.
    num_layers : int
        L.
    bidirectional : bool
        Whether each layer also runs over the sequence in reverse.
    seed : int, optional
        Seed of the initial weights, uniform in [-1/sqrt(H), 1/sqrt(H)]; None draws other ones each time.
    **options
        `bias`, `input_mode`, `proj_size`, `dropout`, `cell_clip` and `dtype`, as for :class:`rnnkit.RNNDescriptor`.

    Raises
    ------
    TypeError, ValueError
        As for :class:`rnnkit.RNNDescriptor`.

    Examples
    --------
    >>> net = LSTM(3, 5, num_layers=2, bidirectional=True, seed=0)
    >>> net
    <LSTM: RNNDescriptor('lstm', 3, 5, num_layers=2, bidirectional=True), 1080 weights>
    >>> net.views["weight_hh_l0"].shape
    (20, 5)
    """

    _name = "LSTM"


class GRU(_Network):
    """Gated recurrent unit network: a descriptor and its weights.

    Parameters
    ----------
    input_size : int
        I, the number of features of x.
    hidden_size : int
        H, the number of units of each layer and direction.
    num_layers : int
        L.
    bidirectional : bool
        Whether each layer also runs over the sequence in reverse.
    seed : int, optional
        Seed of the initial weights, uniform in [-1/sqrt(H), 1/sqrt(H)]; None draws other ones each time.
    **options
        `bias`, `input_mode`, `dropout`, `reset_after` and `dtype`, as for :class:`rnnkit.RNNDescriptor`.

    Raises
    ------
    TypeError, ValueError
        As for :class:`rnnkit.RNNDescriptor`.

    Examples
    --------
    >>> GRU(3, 2, reset_after=False, seed=0)
    <GRU: RNNDescriptor('gru', 3, 2, reset_after=False), 42 weights>
    """

    _name = "GRU"


class RNN(_Network):
    """Vanilla recurrent network: a descriptor and its weights.

    Parameters
    ----------
    input_size : int
        I, the number of features of x.
    hidden_size : int
        H, the number of units of each layer and direction.
    num_layers : int
        L.
    bidirectional : bool
        Whether each layer also runs over the sequence in reverse.
    nonlinearity : {"tanh", "relu"}
        The activation.
    seed : int, optional
        Seed of the initial weights, uniform in [-1/sqrt(H), 1/sqrt(H)]; None draws other ones each time.
    **options
        `bias`, `input_mode`, `dropout` and `dtype`, as for :class:`rnnkit.RNNDescriptor`.

    Raises
    ------
    TypeError, ValueError
        As for :class:`rnnkit.RNNDescriptor`.

    Examples
    --------
    >>> RNN(3, 2, nonlinearity="relu", seed=0)
    <RNN: RNNDescriptor('rnn_relu', 3, 2), 14 weights>
    """

    _name = "RNN"

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bidirectional: bool = False, *,
        nonlinearity: str = "tanh", seed: int | None = None, **options: Unpack[Options],
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(message("RNN", "nonlinearity", 'be "tanh" or "relu"', repr(nonlinearity)))
        mode = mode_of(self._name, nonlinearity=nonlinearity)
        self._make(seed, mode, input_size, hidden_size, num_layers, bidirectional, **options)


KINDS = {kind._name: kind for kind in (LSTM, GRU, RNN)}


class Network(_Network):
    """Network of any cell: a descriptor and its weights.

    Parameters
    ----------
    mode : str or cell
        As for :class:`rnnkit.RNNDescriptor`: a cell of :mod:`rnnkit.cells` or your own, or a mode's name.
    input_size : int
        I, the number of features of x.
    hidden_size : int
        H, the number of units of each layer and direction.
    num_layers : int
        L.
    bidirectional : bool
        Whether each layer also runs over the sequence in reverse.
    seed : int, optional
        Seed of the initial weights, uniform in [-1/sqrt(H), 1/sqrt(H)] but for a cell's vectors, which it declares;
        None draws other ones each time.
    **options
        `bias`, `input_mode`, `proj_size`, `dropout` and `dtype`, as for :class:`rnnkit.RNNDescriptor`.

    Raises
    ------
    TypeError, ValueError
        As for :class:`rnnkit.RNNDescriptor`.

    Examples
    --------
    >>> Network("gru", 3, 2, seed=0)
    <Network: RNNDescriptor('gru', 3, 2), 42 weights>
    """

    _name = "Network"

    def __init__(
        self, mode: Any, input_size: int, hidden_size: int, num_layers: int = 1, bidirectional: bool = False, *,
        seed: int | None = None, **options: Unpack[Options],
    ) -> None:
        self._make(seed, mode, input_size, hidden_size, num_layers, bidirectional, **options)


def load(path: str | PathLike[str], cell: type | None = None) -> LSTM | GRU | RNN | Network:
    """Read a network that ``save`` wrote.

    Parameters
    ----------
    path : str or path-like
        Name of the file.
    cell : class, optional
        The cell of the network, if that is one of your own: the file has its name, parameters and a digest of its
        source, not its equations.

    Returns
    -------
    LSTM, GRU, RNN or Network
        By the mode of the descriptor in the file.

    Raises
    ------
    OSError
        The file cannot be opened (FileNotFoundError: it is not there).
    ValueError
        The file is damaged or cut off, or does not hold what ``save`` writes, or is no regular file; or its network has
        another cell than the one given, or that cell with another source.

    Notes
    -----
    The file may come from anybody.  Nothing in it is ever unpickled, a member is read only after its dtype and shape
    were found to be those of the descriptor, and memory is taken for what is in the file, not for what it claims.
    """
    if cell is not None and not (isinstance(cell, type) and hasattr(cell, "declaration")):
        raise wrong_type("load", "cell", "None or the class of a cell", cell)
    with archive.opened("load", path) as file:
        return network_of(*read(file, cell))


def network_of(desc: RNNDescriptor, w: Array) -> LSTM | GRU | RNN | Network:
    """Return the network of a descriptor and its weights, which are not copied."""
    kind = KINDS[MODES[desc.mode].network[0]] if isinstance(desc.mode, str) else Network
    net = object.__new__(kind)  # without the constructor, which would draw weights
    net._desc, net._weights = desc, w
    return net
