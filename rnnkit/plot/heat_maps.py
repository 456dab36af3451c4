"""Heat maps of the gates and states of one sequence: time to the right, a unit per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rnnkit import BackendError, Workspace
from rnnkit.errors import message, wrong_type
from rnnkit.plot.figures import BLANK, new_figure, whole_numbers

_WIDTH, _ROW, _MARGIN = 8.0, 1.6, 0.8  # inches: of a figure, of a heat map, of title and time axis


def gates(
    workspace: Workspace, layer: int = 0, direction: int = 0, sequence: int = 0, *, names: Sequence[str] | None = None
) -> Any:
    """Draw the gates of a layer over one sequence, a heat map for each.

    Parameters
    ----------
    workspace : Workspace
        Of a forward on NumPy arrays, without checkpoints.
    layer : int
        0..L-1.
    direction : int
        0 forward, 1 reverse. Time goes to the right for both.
    sequence : int
        0..N-1.
    names : sequence of str, optional
        The gates to draw, in this order. Default: all that :meth:`rnnkit.Workspace.gates` returns. Gates that enter one
        function together are one heat map, titled with all their names.

    Returns
    -------
    matplotlib.figure.Figure
        Colours go from 0 to 1 if all values of a gate are there, from -1 to 1 if all are there, else as far to both
        sides of 0 as the values. Steps that a mask skips are grey, like NaN; steps beyond the sequence's length are not
        drawn.

    Raises
    ------
    ImportError
        Matplotlib is not installed.
    TypeError, ValueError
        `workspace` is not a workspace, an int is out of range, a name is unknown, or the sequence has no steps.
    WorkspaceError, BackendError
        As :meth:`rnnkit.Workspace.gates`.
    """
    _check("gates", workspace, sequence)
    names = [names] if isinstance(names, str) else names
    found, joined = workspace.gates(layer, direction, names=names), workspace.joined_gates()
    titled = {", ".join(joined[name]): one for name, one in found.items()}
    return _drawn("gates", workspace, titled, layer, direction, sequence)


def states(
    workspace: Workspace, layer: int = 0, direction: int = 0, sequence: int = 0, *, names: Sequence[str] | None = None
) -> Any:
    """Draw the states of a layer after each step of one sequence, a heat map for each.

    Parameters
    ----------
    workspace, layer, direction, sequence
        As for :func:`gates`.
    names : sequence of str, optional
        The states to draw, in this order: "h", or one that the cell declares. Default: all.

    Returns
    -------
    matplotlib.figure.Figure
        As of :func:`gates`, but colours always go as far to both sides of 0 as the values.

    Raises
    ------
    ImportError, TypeError, ValueError, WorkspaceError, BackendError
        As :func:`gates`.
    """
    _check("states", workspace, sequence)
    names = _checked_names("states", names, ["h", *workspace.desc.states])
    found = {name: workspace.state(name, layer, direction) for name in names}
    return _drawn("states", workspace, found, layer, direction, sequence)


def _check(function: str, workspace: Any, sequence: Any) -> None:
    if not isinstance(workspace, Workspace):
        raise wrong_type(function, "workspace", "a Workspace of forward", workspace)
    if not isinstance(workspace.x, np.ndarray):
        raise BackendError(f"{function}: only a workspace of NumPy arrays can be drawn; run the network on these")
    if isinstance(sequence, bool) or not isinstance(sequence, (int, np.integer)):
        raise wrong_type(function, "sequence", "an int", sequence)
    count = workspace.steps.batch_size
    if not 0 <= sequence < count:
        raise ValueError(message(function, "sequence", f"be in 0..batch_size-1={count - 1}", sequence))
    if not _runs(workspace, int(sequence)).any():
        raise ValueError(message(function, "sequence", "have at least one step", f"{sequence}, which has none"))


def _checked_names(function: str, given: Sequence[str] | None, known: list[str]) -> list[str]:
    names = known if given is None else [given] if isinstance(given, str) else list(given)
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        listed = ", ".join(f'"{name}"' for name in known)
        raise ValueError(message(function, "names", f"be some of {listed}", repr(wrong[0]) if wrong else "none"))
    return names


def _runs(workspace: Workspace, sequence: int) -> np.ndarray:
    """Return which steps of a sequence run, (length,) bool."""
    mask = workspace.options.mask
    if mask is None:
        return np.ones(int(workspace.steps.lengths[sequence]), bool)
    return mask.listed[: mask.lengths[sequence] if mask.lengths.size else mask.seq_len, sequence]


def _drawn(
    function: str, workspace: Workspace, arrays: dict[str, Any], layer: int, direction: int, sequence: int
) -> Any:
    runs = _runs(workspace, sequence)
    with new_figure(function, _WIDTH, _MARGIN + _ROW * len(arrays)) as figure:
        rows = figure.subplots(len(arrays), sharex=True, squeeze=False)[:, 0]
        for axes, (name, values) in zip(rows, arrays.items(), strict=True):
            units = np.ma.array(values[: runs.size, sequence].T, copy=True)
            units[:, ~runs] = np.ma.masked
            _heat_map(figure, axes, name, units, _limits(units, is_gate=function == "gates"))
        rows[-1].set_xlabel("time step")
        side = f", {'reverse' if direction else 'forward'} direction" if workspace.desc.bidirectional else ""
        kind = workspace.desc.mode if isinstance(workspace.desc.mode, str) else type(workspace.desc.mode).__name__
        figure.suptitle(f"{kind}, {function} of layer {layer}{side}, sequence {sequence}", fontsize=11)
    return figure


def _heat_map(figure: Any, axes: Any, name: str, units: np.ma.MaskedArray, limits: tuple[float, float]) -> None:
    low, high = limits
    image = axes.imshow(
        units, cmap="viridis" if low == 0 else "RdBu_r", vmin=low, vmax=high, aspect="auto", interpolation="nearest"
    )
    axes.set_facecolor(BLANK)
    axes.set_title(name, loc="left", fontsize=10, fontweight="bold")
    axes.set_ylabel("unit")
    whole_numbers(axes.xaxis)
    whole_numbers(axes.yaxis, 4)
    figure.colorbar(image, ax=axes, pad=0.01, aspect=10)


def _limits(units: np.ma.MaskedArray, is_gate: bool) -> tuple[float, float]:
    """Return the range of the colours."""
    finite = units.compressed()[np.isfinite(units.compressed())]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if is_gate and 0 <= low and high <= 1:
        return 0.0, 1.0
    bound = max(-low, high)
    if bound == 0 or (is_gate and bound <= 1):
        bound = 1.0
    return -bound, bound
