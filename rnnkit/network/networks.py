"""LSTM, GRU, RNN and Network: a descriptor and its weights in one object, to call, save and load."""

from __future__ import annotations

from os import PathLike
from typing import Any, Literal, Unpack

import numpy as np

from rnnkit.common import archive
from rnnkit.common.arrays import Array
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.modes import not_a_cell
from rnnkit.descriptor.saved import extra_arrays, read
from rnnkit.errors import message, wrong_type
from rnnkit.network.base import BaseNetwork
from rnnkit.network.classes import class_of, mode_of
from rnnkit.types import Cell, Floats, GRUOptions, LSTMOptions, Mode, Options, RNNOptions


class LSTM(BaseNetwork[Floats]):
    """Long short-term memory network: a descriptor and its weights.

    Parameters
    ----------
    input_size : int
        I, the number of features of x.
    hidden_size : int
        H, the number of units of each layer and direction.
    num_layers : int
        L, the number of stacked layers.
    bidirectional : bool
        Whether each layer also runs over the sequence in reverse.
    seed : int, optional
        Seed of the initial weights, uniform in [-1/sqrt(H), 1/sqrt(H)]. None: a random seed.
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
    >>> import numpy as np
    >>> y, hy, cy, workspace = net.forward(np.ones((7, 4, 3), np.float32))
    >>> y.shape, hy.shape, cy.shape
    ((7, 4, 10), (4, 4, 5), (4, 4, 5))
    >>> dx, dhx, dcx, dw = net.backward(workspace, dy=np.ones_like(y))
    >>> dx.shape, dw.shape == net.weights.shape
    ((7, 4, 3), True)
    """

    _name = "LSTM"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
        *,
        seed: int | None = None,
        **options: Unpack[LSTMOptions],
    ) -> None:
        self._make(seed, mode_of(self._name), input_size, hidden_size, num_layers, bidirectional, **options)


class GRU(BaseNetwork[None]):
    """Gated recurrent unit network: a descriptor and its weights.

    Parameters
    ----------
    input_size, hidden_size, num_layers : int
        I, H and L, as for :class:`LSTM`.
    bidirectional : bool
        As for :class:`LSTM`.
    seed : int, optional
        As for :class:`LSTM`.
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

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
        *,
        seed: int | None = None,
        **options: Unpack[GRUOptions],
    ) -> None:
        self._make(seed, mode_of(self._name), input_size, hidden_size, num_layers, bidirectional, **options)


class RNN(BaseNetwork[None]):
    """Vanilla recurrent network: a descriptor and its weights.

    Parameters
    ----------
    input_size, hidden_size, num_layers : int
        I, H and L, as for :class:`LSTM`.
    bidirectional : bool
        As for :class:`LSTM`.
    nonlinearity : {"tanh", "relu"}
        The activation.
    seed : int, optional
        As for :class:`LSTM`.
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
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
        *,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        seed: int | None = None,
        **options: Unpack[RNNOptions],
    ) -> None:
        if isinstance(nonlinearity, np.ndarray) or nonlinearity not in ("tanh", "relu"):
            raise ValueError(message("RNN", "nonlinearity", 'be "tanh" or "relu"', repr(nonlinearity)))
        mode = mode_of(self._name, nonlinearity=nonlinearity)
        self._make(seed, mode, input_size, hidden_size, num_layers, bidirectional, **options)


KINDS = {kind._name: kind for kind in (LSTM, GRU, RNN)}


class Network(BaseNetwork[Any]):
    """Network of any cell: a descriptor and its weights.

    Parameters
    ----------
    mode : str or cell
        As for :class:`rnnkit.RNNDescriptor`: a cell of :mod:`rnnkit.cells`, your own cell, or the name of a mode.
    input_size, hidden_size, num_layers : int
        I, H and L, as for :class:`LSTM`.
    bidirectional : bool
        As for :class:`LSTM`.
    seed : int, optional
        As for :class:`LSTM`. A cell may declare other ranges for its vectors and scalars.
    **options
        `bias`, `input_mode`, `proj_size`, `dropout`, `dtype`, and for the modes that have them `cell_clip` and
        `reset_after`, as for :class:`rnnkit.RNNDescriptor`.

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

    @classmethod
    def _takes(cls, mode: Any) -> bool:
        return True

    def __init__(
        self,
        mode: Mode | Cell,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
        *,
        seed: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._make(seed, mode, input_size, hidden_size, num_layers, bidirectional, **options)


def load(
    path: str | PathLike[str], cell: type | None = None, *, check_source: bool = True
) -> LSTM | GRU | RNN | Network:
    """Read a network that ``save`` wrote.

    Parameters
    ----------
    path : str or path-like
        Name of the file.
    cell : class, optional
        The class of the cell, required for your own cells. The file has the cell's name, its parameters and a digest of
        its equations, but not the equations themselves.
    check_source : bool
        Whether to raise if the equations of the cell, or of your own activations, differ from those that the file was
        saved with. Pass False after an edit that changes no result, for example a renamed variable.

    Returns
    -------
    LSTM, GRU, RNN or Network
        The class follows from the mode in the file. Extra arrays of the file are in ``arrays``.

    Raises
    ------
    OSError
        The file cannot be opened; FileNotFoundError if it does not exist.
    ValueError
        The file is damaged, truncated, not a regular file, or not written by ``save``. Or its network has a cell
        other than `cell`, or that cell with other equations.

    Notes
    -----
    It is safe to load untrusted files. Nothing is unpickled. The dtype and shape of an array are checked before it is
    read. Memory use is bounded by the size of the file.

    Examples
    --------
    >>> import os, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "net.npz")
    >>> GRU(3, 2, seed=0).save(path)
    >>> load(path)
    <GRU: RNNDescriptor('gru', 3, 2), 42 weights>
    >>> folder.cleanup()
    """
    if cell is not None and not (isinstance(cell, type) and hasattr(cell, "declaration")):
        raise not_a_cell("load", "cell", "None or the class of a cell", cell)
    if not isinstance(check_source, bool):
        raise wrong_type("load", "check_source", "a bool", check_source)
    with archive.opened("load", path) as file:
        net = network_of(*read(file, cell, check_source))
        net.arrays = extra_arrays(file)
    return net


def network_of(desc: RNNDescriptor, w: Array) -> LSTM | GRU | RNN | Network:
    """Return the network of a descriptor and its weights, without a copy of the weights."""
    kind = KINDS.get(class_of(desc.mode), Network)
    return object.__new__(kind)._set(desc, w)  # bypasses the constructor, which would draw weights
