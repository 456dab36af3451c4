"""forward, backward and infer: check the arguments, then hand them to the backend that the array type of x decides."""

from __future__ import annotations

import secrets
from functools import cache
from types import ModuleType
from typing import Any, Generic, NamedTuple

import numpy as np

from rnnkit.call import checks, debugging, forking
from rnnkit.call.memory import Lease, idle_memories, popped
from rnnkit.call.options import CUPY, NUMPY, ZEROS, CallOptions, check, options_of
from rnnkit.call.side_inputs import apart_of, shapes_of, with_inputs
from rnnkit.call.workspace import Workspace, check_workspace
from rnnkit.common.arrays import Array, device_of
from rnnkit.descriptor.descriptor import RNNDescriptor, check_descriptor
from rnnkit.descriptor.states import arrays_of, concatenate_states, split_states
from rnnkit.errors import message, wrong_type
from rnnkit.types import Floats, Initial, States


class Forward(NamedTuple, Generic[States]):
    """Results of `forward`: y (T, N, D*P), hy (L*D, N, P), cy (L*D, N, H) or None, and the workspace for `backward`."""

    y: Floats
    hy: Floats
    cy: States
    workspace: Workspace


class Backward(NamedTuple, Generic[States]):
    """Results of `backward`: dx (T, N, I), dhx (L*D, N, P), dcx (L*D, N, H) or None, dw (num_weights,)."""

    dx: Floats
    dhx: Floats
    dcx: States
    dw: Floats


class Infer(NamedTuple, Generic[States]):
    """Results of `infer`: y (T, N, D*P), hy (L*D, N, P), cy (L*D, N, H) or None."""

    y: Floats
    hy: Floats
    cy: States


class BackwardWithInputs(NamedTuple, Generic[States]):
    """The same of a cell with side inputs: beside these, inputs, the gradients of those by name."""

    dx: Floats
    dhx: Floats
    dcx: States
    dw: Floats
    inputs: dict[str, Floats]


def backend(function: str, call: str, desc: RNNDescriptor, array: Any, options: CallOptions) -> ModuleType:
    """Return the module that runs a network where the array is; numba or cupy are imported here, on first use.

    Raises where a call of that name in the table of options, or a call there, does not do what it is asked for.
    """
    if isinstance(array, np.ndarray):  # which has been checked: no subclass means more
        check(function, desc, options, call, NUMPY)
        return _cpu_engine()
    check(function, desc, options, call, CUPY)
    with forking.importing:
        from rnnkit.cuda import engine
    return engine


@cache
def _cpu_engine() -> ModuleType:
    with forking.importing:
        from rnnkit.cpu import engine
    return engine


@cache
def small_calls() -> ModuleType:
    """Return the module of training calls that are laid out once, for arguments that are checked."""
    with forking.importing:
        from rnnkit.cpu import small
    return small


def check_call(function: str, desc: RNNDescriptor, x: Any, hx: Any, cx: Any, like: Any = None) -> tuple[int, int]:
    """Check what forward and infer have in common, beside the weights; x says where the others are, or `like` does.

    Returns seq_len and batch_size.
    """
    checks.inputs(function, x, checks.SEQUENCE_DIMS, desc, like)
    seq_len, batch_size, _ = x.shape
    checks.hidden(function, "hx", hx, batch_size, desc, x)
    checks.cell(function, "cx", cx, batch_size, desc, x)
    return seq_len, batch_size


def forward(
    desc: RNNDescriptor,
    w: Array,
    x: Array,
    hx: Array | None = None,
    cx: Any = None,
    *,
    lengths: Any = None,
    inputs: Any = None,
    resets: Any = None,
    initial: Initial = "zeros",
    seed: int | None = None,
    first_row: int = 0,
    workspace: Workspace | None = None,
    checkpoint_steps: int | None = None,
) -> Forward[Any]:
    """Run the network over a batch of sequences and keep what backward needs.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    w : ndarray (num_weights,), desc.dtype
        The flat weight buffer.
    x : ndarray (T, N, I), desc.dtype
        Input, time-major. Kept by reference in the workspace: do not change it before backward.
    hx : ndarray (L*D, N, P), optional
        Initial hidden states; None is zeros.
    cx : ndarray (L*D, N, H), optional
        Initial cell states, LSTM only; None is zeros. Of a cell with several states a tuple, here and in the results.
    lengths : array_like (N,) of int, optional
        Length of each sequence, 0..T, in any order; None is T for all.
    inputs : mapping of str to ndarray, optional
        Side inputs of a cell that declares some: (T, N, H), (T, N, 1), or (N, H) for all steps; copied.
    resets : array_like (T, N) of bool, integers or floats that are 0 or 1, optional
        Where it is 1 the state of sequence n is reset before step t: an episode ends, and the next begins. The reverse
        direction is reset between the same two steps. Marks beyond a sequence's length are ignored.
    initial : {"zeros", "hx"}, optional
        What states are reset to: zeros, or the sequence's hx and cx. dhx and dcx are then sums over its episodes.
    seed : int, optional
        Seed of dropout and of a cell's noises, of 64 bits without sign; None draws one. It is kept in
        ``workspace.seed``.
    first_row : int, optional
        Where x is a part of a larger batch, the number of its first row there: each row draws what it would draw in the
        whole batch.
    workspace : Workspace, optional
        One that an earlier forward returned: its memory is used again. What views it, y included, is then void, also
        where this call ends with an interrupt; no input may view it.
    checkpoint_steps : int, optional
        K, at least 1: of every K steps the workspace keeps the states before the first alone, and backward computes
        the rest again, a segment of K steps at a time, to the same bits. None keeps all that backward needs.

    Returns
    -------
    Forward
        y (T, N, D*P), 0 beyond a sequence's length: a view of the workspace, which backward reads (read-only; on a GPU,
        where CuPy has no such arrays, do not change it before backward), of a small call a read-only copy, with
        `checkpoint_steps` a new array; hy (L*D, N, P) and cy (L*D, N, H; None but for the LSTM), the states after each
        sequence's last step; and the workspace.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type, dtype, shape or value.
    WorkspaceError
        Another thread's call is at work in the memory of `workspace`.
    BackendError
        The arrays are CuPy's, and cuDNN is not there or does not do what is asked: it has no checkpoints.

    Notes
    -----
    The equations stand in the notes of :class:`rnnkit.RNNDescriptor`. NumPy arrays run on the CPU, CuPy arrays on their
    GPU: x decides, and the other arrays must be with it; `lengths` stays on the host.

    With `checkpoint_steps` (Chen et al. 2016, arXiv 1604.06174) a training step takes about a third longer. The
    workspace holds the states of T/K steps and all of K steps: least for K around sqrt(T), of a long sequence a small
    part of the whole; ``workspace_nbytes`` tells it. Segments are whole chunks of the rows that the weights' gradient
    sums up at a time: K is rounded up to a multiple of 1024/N steps (float64 512/N), of 1 where N is larger. With one
    direction all layers go through a segment together. With two each direction of each layer goes alone: what the lower
    layers put out is then kept for all T steps, and so, while backward runs, is its gradient. A `workspace` that was
    filled without checkpoints does not give back what it holds: for less memory begin with a new one.

    Examples
    --------
    >>> import numpy as np
    >>> import rnnkit
    >>> desc = rnnkit.RNNDescriptor("lstm", 3, 5, num_layers=2)
    >>> result = forward(desc, rnnkit.init_weights(desc, seed=0), np.ones((7, 4, 3), np.float32), lengths=[7, 0, 2, 5])
    >>> result.y.shape, result.hy.shape, result.cy.shape
    ((7, 4, 5), (2, 4, 5), (2, 4, 5))
    """
    check_descriptor("forward", desc)
    seq_len, batch_size = check_call("forward", desc, x, hx, cx)
    if seed is None and desc.draws:
        seed = secrets.randbits(64)
    asked = lengths, seed, checkpoint_steps, None, resets, initial, first_row
    options = options_of("forward", desc, seq_len, batch_size, *asked)
    checks.weights("forward", w, desc, x)
    chosen = backend("forward", "forward", desc, x, options)
    if workspace is not None:
        _check_reuse(workspace, w=w, x=x, hx=hx, cx=cx)
    idle, call = idle_memories(chosen.Memory, desc, seq_len, batch_size), forking.new_call()
    memory = workspace.memory if workspace is not None else popped(idle) or chosen.Memory()
    try:
        memory.renew(call)
        cx = concatenate_states(desc, cx)
        x = with_inputs("forward", desc, x, inputs)
        filled = Workspace(desc, {"x": x, "hx": hx, "cx": cx}, options, memory)
        filled.input_shapes = shapes_of(desc, inputs)
        y, hy, cy = chosen.forward(desc, w, x, hx, cx, filled)
        debugging.note(filled, w)
        if workspace is None and checkpoint_steps is None and memory.is_small:
            filled.lease, y = Lease(memory, idle), y.copy()
            y.flags.writeable = False  # as a view of what backward reads
        return Forward(y, hy, split_states(desc, cy), filled)
    finally:
        memory.calls.discard(call)


def _check_reuse(workspace: Any, **inputs: Any) -> None:
    """Check a workspace whose memory forward is to use again."""
    if not isinstance(workspace, Workspace):
        raise wrong_type("forward", "workspace", "None or a Workspace", workspace)
    x = inputs["x"]
    if device_of(workspace.x) != device_of(x):
        expected = f"be on {device_of(x)} as x is"
        raise ValueError(message("forward", "workspace", expected, f"one on {device_of(workspace.x)}"))
    for name, given in inputs.items():
        for array in arrays_of(given):
            if workspace.memory.arena.holds(array):
                expected, got = "not view the workspace, whose memory is used again", "a view of it"
                raise ValueError(message("forward", name, expected, got, "give a copy, or another workspace"))


def backward(
    desc: RNNDescriptor,
    w: Array,
    workspace: Workspace,
    dy: Array | None = None,
    dhy: Array | None = None,
    dcy: Any = None,
    *,
    dw: Array | None = None,
) -> Backward[Any]:
    """Compute every gradient from what forward left in the workspace.

    Parameters
    ----------
    desc : RNNDescriptor
        The network, as forward had it.
    w : ndarray (num_weights,), desc.dtype
        The flat weight buffer, as forward had it. With weights that have changed since the gradients are wrong, and
        nobody says so; :func:`rnnkit.set_debug` has it noticed.
    workspace : Workspace
        From forward. It is not changed: backward may be called on it any number of times.
    dy : ndarray (T, N, D*P), optional
        Gradient of y; None is zeros, but one of dy, dhy and dcy must be given. What stands beyond a sequence's length
        is not read.
    dhy : ndarray (L*D, N, P), optional
        Gradient of hy; None is zeros.
    dcy : ndarray (L*D, N, H), optional
        Gradient of cy, LSTM only; None is zeros. Of a cell with several states a tuple, here and in the results.
    dw : ndarray (num_weights,), optional
        The gradient of w is added into it and it is returned; None makes a new array. It may lie over no other array
        of this call and its forward. Where an interrupt ends the call, a part has been added.

    Returns
    -------
    Backward
        dx (T, N, I), 0 beyond a sequence's length; dhx (L*D, N, P); dcx (L*D, N, H; None but for the LSTM); dw
        (num_weights,) in the layout of w. New arrays, but for a dw that was given. Of a cell with side inputs a fifth,
        inputs, has their gradients by name, in the shapes in which they were given.

    Raises
    ------
    WorkspaceError
        The workspace's memory has been used by a later forward, or it is of another descriptor; or in debugging, w or
        x have changed since forward.
    TypeError, ValueError
        An argument has the wrong type, dtype, shape or value.

    Examples
    --------
    >>> import numpy as np
    >>> import rnnkit
    >>> desc = rnnkit.RNNDescriptor("gru", 3, 5)
    >>> w = rnnkit.init_weights(desc, seed=0)
    >>> result = forward(desc, w, np.ones((7, 4, 3), np.float32))
    >>> gradients = backward(desc, w, result.workspace, dy=np.ones_like(result.y))
    >>> gradients.dx.shape, gradients.dw.shape == w.shape
    ((7, 4, 3), True)
    """
    check_descriptor("backward", desc)
    if not isinstance(workspace, Workspace):
        raise wrong_type("backward", "workspace", "the Workspace of a forward", workspace)
    check_workspace("backward", workspace, desc)
    seq_len, batch_size, x = workspace.steps.seq_len, workspace.steps.batch_size, workspace.x
    checks.weights("backward", w, desc, x)
    checks.dy("backward", dy, seq_len, batch_size, desc, x)
    checks.hidden("backward", "dhy", dhy, batch_size, desc, x)
    checks.cell("backward", "dcy", dcy, batch_size, desc, x)
    checks.weight_gradient("backward", dw, desc, x)
    if dw is not None and workspace.memory.arena.holds(dw):
        raise ValueError(message("backward", "dw", "have memory of its own", "the memory of the workspace"))
    if dw is not None:
        checks.separate("backward", dw, w=w, dy=dy, dhy=dhy, dcy=dcy, **workspace.inputs)
    if dy is None and dhy is None and dcy is None:
        cure = "without any of them every gradient is zero"
        raise ValueError(message("backward", "dy, dhy or dcy", "be given", "none of them", cure))
    debugging.compare("backward", workspace, w)
    chosen, call = backend("backward", "backward", desc, x, workspace.options), forking.new_call()
    try:
        workspace.memory.read("backward", call, workspace.generation)
        dx, dhx, dcx, dw = chosen.backward(desc, w, workspace, dy, dhy, concatenate_states(desc, dcy), dw)
        if workspace.input_shapes:
            dx, of_inputs = apart_of(desc, dx, workspace.input_shapes)
            return BackwardWithInputs(dx, dhx, split_states(desc, dcx), dw, of_inputs)
        return Backward(dx, dhx, split_states(desc, dcx), dw)
    finally:
        workspace.memory.calls.discard(call)


def infer(
    desc: RNNDescriptor, w: Array, x: Array, hx: Array | None = None, cx: Any = None, *, lengths: Any = None,
    inputs: Any = None, resets: Any = None, initial: Initial = "zeros",
) -> Infer[Any]:
    """Run the network over a batch of sequences without keeping anything for backward, and without dropout.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    w : ndarray (num_weights,), desc.dtype
        The flat weight buffer. For many calls with the same weights, ``prepare`` packs them once.
    x : ndarray (T, N, I), desc.dtype
        Input, time-major.
    hx : ndarray (L*D, N, P), optional
        Initial hidden states; None is zeros.
    cx : ndarray (L*D, N, H), optional
        Initial cell states, LSTM only; None is zeros. Of a cell with several states a tuple, here and in the results.
    lengths : array_like (N,) of int, optional
        Length of each sequence, 0..T, in any order; None is T for all.
    inputs : mapping of str to ndarray, optional
    resets : array_like (T, N) of bool, integers or floats that are 0 or 1, optional
    initial : {"zeros", "hx"}, optional
        Side inputs, and where states are reset and to what, as in :func:`forward`.

    Returns
    -------
    Infer
        y (T, N, D*P), 0 beyond a sequence's length; hy (L*D, N, P) and cy (L*D, N, H; None but for the LSTM), the
        states after each sequence's last step.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type, dtype, shape or value.

    Examples
    --------
    >>> import numpy as np
    >>> import rnnkit
    >>> desc = rnnkit.RNNDescriptor("rnn_tanh", 3, 5, bidirectional=True)
    >>> infer(desc, rnnkit.init_weights(desc, seed=0), np.ones((7, 4, 3), np.float32)).y.shape
    (7, 4, 10)
    """
    check_descriptor("infer", desc)
    seq_len, batch_size = check_call("infer", desc, x, hx, cx)
    asked = () if lengths is resets is None and initial is ZEROS else (lengths, None, None, None, resets, initial)
    options = options_of("infer", desc, seq_len, batch_size, *asked)
    checks.weights("infer", w, desc, x)
    chosen = backend("infer", "infer", desc, x, options)
    y, hy, cy = chosen.infer(desc, w, with_inputs("infer", desc, x, inputs), hx, concatenate_states(desc, cx), options)
    return Infer(y, hy, split_states(desc, cy))
