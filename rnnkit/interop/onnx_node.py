"""One of ONNX's recurrent operators, as it runs: its layout, its direction and its constant states."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rnnkit.call import checks
from rnnkit.errors import message
from rnnkit.interop.networks import Network
from rnnkit.network.results import Infer
from rnnkit.types import Precision


class OnnxNode(NamedTuple):
    """One of ONNX's recurrent operators.

    Attributes
    ----------
    net : RNN, GRU, LSTM or Network
        Network of one layer with its weights; a Network if it needs a cell of :mod:`rnnkit.cells`.
    reverse : bool
        Whether it reads each sequence in reverse; only with one direction.
    layout : {0, 1}
        0 is time-major, as the network; 1 is batch-major.
    hx, cx : ndarray or None
        Constant initial_h and initial_c of the model, if any.
    lengths : array_like (N,) of int, or None
        Constant sequence_lens of the model, if any.
    computed : tuple of str
        Which of hx, cx and lengths the model computes: pass these to `infer`. Zeros of a computed shape are none.
    inputs : tuple of str
        Those of `computed` that are inputs of the model, or parts of them.
    plan : Plan or None
        The plan of `prepare`, with packed weights. A DynamicQuantizeLSTM comes with one of int8.
    """

    net: Network
    reverse: bool = False
    layout: int = 0
    hx: np.ndarray | None = None
    cx: np.ndarray | None = None
    lengths: Any = None
    computed: tuple[str, ...] = ()
    plan: Any = None
    inputs: tuple[str, ...] = ()

    def prepare(self, *, precision: Precision | None = None) -> OnnxNode:
        """Return the operator with packed weights, see :func:`rnnkit.prepare`: `infer` is faster, and it has `step` and
        `stream`. Later changes of the network do not reach it."""
        return self._replace(plan=self.net.prepare(precision=precision))

    def step(self, x: Any, hx: Any = None, cx: Any = None) -> Infer:
        """Run one step of a prepared operator.

        Parameters
        ----------
        x : ndarray (N, I)
            The input of this step.
        hx, cx : ndarray (1, N, H), with layout 1 (N, 1, H), optional
            The states before it; None is the node's constants, or zeros if it has none.

        Returns
        -------
        Infer
            y (N, H), and hy and cy in the shape of hx and cx.

        Raises
        ------
        TypeError, ValueError
            The operator is not prepared, or reads in reverse or in both directions; or an argument has the wrong type,
            dtype or shape, or is missing though the model computes it.
        """
        plan = self._forward_plan("step")
        states = self._given("step", hx=hx, cx=cx)
        y, *after = plan.step(x, *map(self._swapped, states.values()))
        return Infer(y, *map(self._swapped, after))

    def stream(self, num_streams: int) -> Any:
        """Return streams of a prepared operator, see :meth:`rnnkit.Plan.stream`; they begin with zeros.

        Raises
        ------
        TypeError, ValueError
            As `step`; or the operator has constant initial states.
        """
        plan = self._forward_plan("stream")
        for name in ("hx", "cx"):
            if getattr(self, name) is not None and np.any(getattr(self, name)):
                cure = f"use step, or stream of node._replace({name}=None)"
                raise ValueError(message("stream", name, "be None: streams begin with zeros", "a constant", cure))
        return plan.stream(num_streams)

    def _forward_plan(self, function: str) -> Any:
        """Return the plan; raise without one, or if the operator has no single steps."""
        if self.plan is None:
            raise ValueError(message(function, "node.plan", "be a Plan", None, "call node.prepare() first"))
        if self.reverse or self.net.desc.bidirectional:
            cure = "the reverse direction needs the whole sequence: use infer"
            raise ValueError(message(function, "direction", 'be "forward"', "another one", cure))
        return self.plan

    def _given(self, function: str, **arguments: Any) -> dict[str, Any]:
        """Return these arguments, in place of None the node's constants; raise if the model computes one."""
        for name in arguments:
            arguments[name] = getattr(self, name) if arguments[name] is None else arguments[name]
            if arguments[name] is None and name in self.computed:
                raise ValueError(message(function, name, "be given, because the model computes it", None))
        return arguments

    def infer(self, x: Any, hx: Any = None, cx: Any = None, *, lengths: Any = None) -> Infer:
        """Run the operator.

        Parameters
        ----------
        x : ndarray (T, N, I), with layout 1 (N, T, I)
            The input X.
        hx, cx : ndarray (D, N, H), with layout 1 (N, D, H), optional
            initial_h and initial_c; None is the node's constants, or zeros if it has none.
        lengths : array_like (N,) of int, optional
            sequence_lens, each 0..T; None is the node's constants, or T for all if it has none.

        Returns
        -------
        Infer
            y is Y (T, D, N, H), hy and cy are Y_h and Y_c (D, N, H); with layout 1 (N, T, D, H) and (N, D, H).  cy is
            None except for an LSTM.

        Raises
        ------
        TypeError, ValueError
            An argument has the wrong type, dtype, shape or value, or one that the model computes is missing.

        Notes
        -----
        Padding is ignored, whatever it holds, and Y is 0 there.  A sequence of length 0 returns its initial states.
        """
        arguments = self._given("infer", hx=hx, cx=cx, lengths=lengths)
        self._check("x", x, seq_length=None, batch_size=None, input_size=self.net.desc.input_size)
        x, states = self._swapped(x), (arguments["hx"], arguments["cx"])
        directions, hidden_size = self.net.desc.num_directions, self.net.desc.hidden_size
        for name, state in zip(("hx", "cx"), states, strict=True):
            if state is not None:
                self._check(name, state, num_directions=directions, batch_size=x.shape[1], hidden_size=hidden_size)
        lengths = checks.lengths("infer", arguments["lengths"], *x.shape[:2])
        x = _backwards(x, lengths) if self.reverse else x
        runner = self.net if self.plan is None else self.plan
        y, hy, cy = runner.infer(x, *map(self._swapped, states), lengths=lengths)
        y = (_backwards(y, lengths) if self.reverse else y).reshape(*y.shape[:2], directions, hidden_size)
        y = y.swapaxes(0, 1) if self.layout else y.swapaxes(1, 2)
        return Infer(y, self._swapped(hy), self._swapped(cy))

    def _check(self, name: str, array: Any, **sizes: int | None) -> None:
        """Check an array; `sizes` are its dimensions in the order of layout 0."""
        dims = list(sizes)
        if self.layout:
            dims[:2] = dims[1], dims[0]
        shape = tuple(sizes[name] for name in dims)
        checks.array("infer", name, array, shape, tuple(dims), self.net.desc, self.net.weights)

    def _swapped(self, array: Any) -> Any:
        """Return a view that converts the operator's layout to the network's, or back."""
        return array.swapaxes(0, 1) if self.layout and array is not None else array


def _backwards(x: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
    """Reverse each sequence in time; padding stays at the end."""
    if lengths is None:
        return x[::-1]
    steps = np.arange(len(x))[:, None]
    order = np.where(steps < lengths, lengths - 1 - steps, steps)
    return np.take_along_axis(x, order[:, :, None], axis=0)
