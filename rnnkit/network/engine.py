"""forward, backward and infer: check the arguments and call the backend for the array type of x."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from rnnkit.call import checks, debugging, forking
from rnnkit.call.options import options_of
from rnnkit.call.pool import Lease, leased
from rnnkit.call.side_inputs import shapes_of, split_gradient, with_inputs
from rnnkit.call.workspace import Workspace
from rnnkit.common.arrays import Array
from rnnkit.descriptor.descriptor import RNNDescriptor, check_descriptor
from rnnkit.descriptor.states import add_state_gradients, concatenate_states, learned_states, split_states
from rnnkit.errors import message, wrong_type
from rnnkit.network import per_sequence
from rnnkit.network.arguments import check_backward, check_call, check_reuse
from rnnkit.network.backends import backend, cpu_module
from rnnkit.network.results import Backward, BackwardWithInputs, Forward, Infer
from rnnkit.types import CallPrecision, Initial

_COPIED_BYTES = 1 << 16  # largest y that is copied, in less time than it takes to make a view that holds a lease


def forward(
    desc: RNNDescriptor,
    w: Array,
    x: Array,
    hx: Array | None = None,
    cx: Any = None,
    *,
    lengths: Any = None,
    mask: Any = None,
    inputs: Any = None,
    resets: Any = None,
    initial: Initial = "zeros",
    seed: int | None = None,
    first_row: int = 0,
    workspace: Workspace | None = None,
    checkpoint_steps: int | None = None,
    precision: CallPrecision | None = None,
) -> Forward[Any]:
    """Run the network over a batch of sequences and save what backward needs.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    w : ndarray (num_weights,), desc.dtype
        The flat weight buffer.
    x : ndarray (T, N, I), desc.dtype
        Input, time first. The workspace keeps a reference: do not change x before backward.
    hx : ndarray (L*D, N, P), optional
        Initial hidden state. None: zeros, or the network's own with `learned_initial_state`.
    cx : ndarray (L*D, N, H), optional
        Initial cell state, only for LSTM and cells with states. None: as for hx. A tuple of arrays for a cell with
        several states; cy is then a tuple, too.
    lengths : array_like (N,) of int, optional
        Length of each sequence, 0..T; the order does not matter. None: T for all.
    mask : array_like (T, N) of bool, integers or floats that are 0 or 1, optional
        0 skips step t of sequence n in all layers and both directions: nothing of x[t, n] is read, the state stays as
        it is, and y repeats the y of before; hx if no step was before. None: 1 for all. What is left of a sequence has
        the bits that it has alone, with random numbers by its own count of steps. Values beyond its length are ignored.
    inputs : mapping of str to ndarray, optional
        Side inputs, for a cell that declares them, by name: (T, N, H), (T, N, 1), or (N, H) for all steps. Copied,
        unless x and all of them are columns of one array, side by side in the order of the declaration.
    resets : array_like (T, N) of bool, integers or floats that are 0 or 1, optional
        1 resets the state of sequence n before step t, where one episode ends and the next begins. The reverse
        direction is reset between the same two steps. Values beyond the length of a sequence are ignored. No reset may
        be at a step that `mask` skips.
    initial : {"zeros", "hx"}, optional
        The state after a reset: zeros (with `learned_initial_state` the network's own), or hx and cx of the sequence.
        With "hx", dhx and dcx are sums over the episodes of a sequence.
    seed : int, optional
        Seed of dropout and of a cell's noises, an unsigned 64-bit integer. None: a random seed. ``workspace.seed`` has
        the seed that was used.
    first_row : int, optional
        Index of the first sequence of x in a larger batch. Each sequence then gets the same random numbers as in the
        larger batch.
    workspace : Workspace, optional
        The workspace of an earlier forward, to reuse its memory. Its views, including y, become invalid, even if this
        call is interrupted. No input may be a view of it.
    checkpoint_steps : int, optional
        K, at least 1: gradient checkpointing. The workspace saves the states of every K-th step only, and backward
        recomputes the rest, one segment of K steps at a time. Results are bit-identical. None: save everything.
    precision : {"bfloat16"}, optional
        Round what the products multiply to bfloat16, here and in backward, for a float32 network on NumPy arrays. Sums,
        gates, states and gradients stay float32. None: full precision.

    Returns
    -------
    Forward
        - y (T, N, D*P), the output, 0 beyond the length of a sequence. It is a view of the workspace, or a copy in a
          small call, and read-only, because backward reads it. CuPy has no read-only arrays: on a GPU do not change y
          before backward. With `checkpoint_steps` or a mask that skips steps y is an array of its own.
        - hy (L*D, N, P) and cy (L*D, N, H), the states after the last step of each sequence. cy is None except for
          LSTM and cells with states.
        - workspace, for backward.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type, dtype, shape or value.
    WorkspaceError
        A call in another thread is using the memory of `workspace`.
    BackendError
        The arrays are CuPy's, and a library is missing, or they are of half precision and cuDNN does not have the
        network or an option.

    Notes
    -----
    The equations are in the notes of :class:`rnnkit.RNNDescriptor`. NumPy arrays run on the CPU, CuPy arrays on their
    GPU. All arrays must be on the device of x, except `lengths`, which is always on the host.

    With `checkpoint_steps` (Chen et al. 2016, arXiv 1604.06174) a training step takes a third to a half longer. The
    workspace has the states of T/K steps and everything for K steps. It is smallest for K near sqrt(T); its size is
    ``workspace_nbytes``. K is rounded up to a multiple of 1024/N steps (float64: 512/N), because dw is summed in chunks
    of 1024 rows (float64: 512); a row is one step of one sequence. With one direction, all layers run through a segment
    together. With two directions, each direction of each layer runs by itself: the outputs of the lower layers are
    saved for all T steps, and so are their gradients during backward. A reused `workspace` that was filled without
    checkpoints keeps its memory: use a new one to save memory.

    With `precision` the results are bit-identical on every CPU with fused multiply-add, and y has the bits of
    ``prepare(precision="bfloat16").infer``. It is faster only with tile registers (AMX); a warning says so elsewhere.
    Each row of gradients is divided by a power of two before it is rounded, and its sums are multiplied with that
    again: a small loss needs no scaling.

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
    arguments = lengths, seed, checkpoint_steps, precision, resets, initial, first_row, mask
    options = options_of("forward", desc, seq_len, batch_size, *arguments)
    checks.weights("forward", w, desc, x)
    backend_module = backend("forward", "forward", desc, x, options)
    if workspace is not None:
        check_reuse(workspace, w=w, x=x, hx=hx, cx=cx)
    shelf, call = None, forking.new_call()
    if workspace is not None:
        memory = workspace.memory
    else:
        shelf = None if checkpoint_steps is not None else backend_module.Memory.shelf(desc, batch_size)
        memory = (shelf.take() if shelf is not None else None) or backend_module.Memory()
    try:
        memory.renew(call)
        x, cx, given = with_inputs("forward", desc, x, inputs), concatenate_states(desc, cx), None
        if desc.learned_initial_state:
            given = hx is not None, cx is not None
            hx, cx = options.steps.start_from(learned_states(desc, w, batch_size), hx, cx)
        filled = Workspace(desc, {"x": x, "hx": hx, "cx": cx}, options, memory)
        if given is not None:
            filled.given_states = given
        if inputs is not None:
            filled.input_shapes = shapes_of(desc, inputs)
        y, hy, cy = backend_module.forward(desc, w, x, hx, cx, filled)
        debugging.note(filled, w)
        if shelf is not None:
            filled.lease = Lease(memory, shelf)
            if options.mask is None:  # else y is an array of its own
                y = leased(y, filled.lease) if y.nbytes > _COPIED_BYTES else y.copy()
        if options.mask is None and checkpoint_steps is None and isinstance(y, np.ndarray):
            y.flags.writeable = False  # backward reads it, or what it is a copy of
        return Forward(y, hy, split_states(desc, cy), filled)
    finally:
        memory.calls.discard(call)


def backward(
    desc: RNNDescriptor,
    w: Array,
    workspace: Workspace,
    dy: Array | None = None,
    dhy: Array | None = None,
    dcy: Any = None,
    *,
    dw: Array | None = None,
    per_sequence: bool = False,
    rows: Any = None,
) -> Backward[Any]:
    """Compute all gradients from the workspace of forward.

    Parameters
    ----------
    desc : RNNDescriptor
        The descriptor that was passed to forward.
    w : ndarray (num_weights,), desc.dtype
        The flat weight buffer, unchanged since forward. If it changed, the gradients are silently wrong;
        :func:`rnnkit.set_debug` detects this.
    workspace : Workspace
        The workspace of forward. It is not changed: you may call backward again.
    dy : ndarray (T, N, D*P), optional
        Gradient of y. None: zeros; at least one of dy, dhy and dcy is required. Padding is ignored: values beyond the
        length of a sequence are not read. Where a step was skipped, it counts for the y that is repeated there.
    dhy : ndarray (L*D, N, P), optional
        Gradient of hy. None: zeros.
    dcy : ndarray (L*D, N, H), optional
        Gradient of cy, only for LSTM and cells with states. None: zeros. A tuple of arrays for a cell with several
        states; dcx is then a tuple, too.
    dw : ndarray (num_weights,), optional
        Buffer to which the gradient of w is added, and which is returned. None: a new array. It must not overlap other
        arrays of this call and of its forward. If the call is interrupted, part of the gradient has been added.
    per_sequence : bool, optional
        Whether dw is that of each sequence, (N, num_weights): N times the memory of w. Each row has the bits of a call
        with that sequence alone. Every sequence runs forward again, so x, hx and cx must not have changed since.
    rows : slice or sequence of int, optional
        With `per_sequence`, the sequences that are wanted: all results have these alone, in this order. For a batch
        whose dw would not fit in memory, pass some at a time. None: all.

    Returns
    -------
    Backward
        - dx (T, N, I), 0 beyond the length of a sequence and at steps that the forward skipped
        - dhx (L*D, N, P)
        - dcx (L*D, N, H), None except for LSTM and cells with states
        - dw (num_weights,), in the layout of w; with `per_sequence` (N, num_weights)
        - inputs, only for a cell with side inputs: their gradients by name, in the shapes of the arguments

        All are new arrays, except a `dw` that was passed.

    Raises
    ------
    WorkspaceError
        A later forward has reused the memory of the workspace, or it belongs to another descriptor. In debug mode: w or
        x has changed since forward.
    TypeError, ValueError
        An argument has the wrong type, dtype, shape or value.
    BackendError
        `per_sequence` with dropout or noises on a GPU.

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
    >>> backward(desc, w, result.workspace, dy=np.ones_like(result.y), per_sequence=True).dw.shape
    (4, 150)
    """
    if not isinstance(per_sequence, bool):
        raise wrong_type("backward", "per_sequence", "a bool", per_sequence)
    if per_sequence:
        return _gradients_of_each(desc, w, workspace, dy, dhy, dcy, dw, rows)
    if rows is not None:
        raise ValueError(message("backward", "rows", "be None without per_sequence", type(rows).__name__))
    return gradients_of(desc, w, workspace, dy, dhy, dcy, dw)


def _gradients_of_each(
    desc: RNNDescriptor, w: Any, workspace: Any, dy: Any, dhy: Any, dcy: Any, dw: Any, rows: Any
) -> Backward[Any]:
    x = check_backward(desc, w, workspace, dy, dhy, dcy)
    copied = cpu_module("alone").sequences_of(workspace) if isinstance(x, np.ndarray) else None
    chosen, call = per_sequence.rows_of(rows, workspace.steps.batch_size), forking.new_call()
    try:
        workspace.memory.read("backward", call, workspace.generation)
        run = forward, gradients_of, copied
        return per_sequence.backward_of_each(*run, desc, w, workspace, dy, dhy, dcy, dw, chosen)
    finally:
        workspace.memory.calls.discard(call)


def gradients_of(
    desc: RNNDescriptor,
    w: Array,
    workspace: Workspace,
    dy: Any,
    dhy: Any,
    dcy: Any,
    dw: Array | None = None,
    wants_dx: bool = True,
) -> Backward[Any]:
    """Run `backward`, which may leave dx empty if it is not wanted and the cell has no side inputs."""
    x = check_backward(desc, w, workspace, dy, dhy, dcy)
    checks.weight_gradient("backward", dw, desc, x)
    if dw is not None and workspace.memory.arena.holds(dw):
        raise ValueError("backward: dw is a view of the workspace; pass an array with memory of its own")
    if dw is not None:
        checks.separate("backward", dw, w=w, dy=dy, dhy=dhy, dcy=dcy, **workspace.inputs)
    backend_module, call = backend("backward", "backward", desc, x, workspace.options), forking.new_call()
    try:
        workspace.memory.read("backward", call, workspace.generation)
        dx, dhx, dcx, dw = backend_module.backward(
            desc, w, workspace, dy, dhy, concatenate_states(desc, dcy), dw, wants_dx or bool(desc.inputs_size)
        )
        if desc.learned_initial_state:
            unless_given = zip((dhx, dcx), workspace.given_states, strict=True)
            add_state_gradients(desc, dw, *(None if given else one for one, given in unless_given))
        if workspace.input_shapes:
            dx, of_inputs = split_gradient(desc, dx, workspace.input_shapes)
            return BackwardWithInputs(dx, dhx, split_states(desc, dcx), dw, of_inputs)
        return Backward(dx, dhx, split_states(desc, dcx), dw)
    finally:
        workspace.memory.calls.discard(call)


def infer(
    desc: RNNDescriptor,
    w: Array,
    x: Array,
    hx: Array | None = None,
    cx: Any = None,
    *,
    lengths: Any = None,
    mask: Any = None,
    inputs: Any = None,
    resets: Any = None,
    initial: Initial = "zeros",
    precision: CallPrecision | None = None,
) -> Infer[Any]:
    """Run the network over a batch of sequences, without dropout and without saving anything for backward.

    Parameters
    ----------
    desc : RNNDescriptor
        The network.
    w : ndarray (num_weights,), desc.dtype
        The flat weight buffer. For many calls with the same weights use :func:`rnnkit.prepare`, which packs them once.
    x : ndarray (T, N, I), desc.dtype
        Input, time first.
    hx, cx : ndarray (L*D, N, P) and (L*D, N, H), optional
        Initial states, as in :func:`rnnkit.forward`.
    lengths : array_like (N,) of int, optional
        Length of each sequence, 0..T; the order does not matter. None: T for all.
    mask : array_like (T, N) of bool, integers or floats that are 0 or 1, optional
        0 skips step t of sequence n, as in :func:`rnnkit.forward`.
    inputs : mapping of str to ndarray, optional
        Side inputs, as in :func:`rnnkit.forward`.
    resets : array_like (T, N) of bool, integers or floats that are 0 or 1, optional
        1 resets the state of sequence n before step t, as in :func:`rnnkit.forward`.
    initial : {"zeros", "hx"}, optional
        The state after a reset.
    precision : {"bfloat16"}, optional
        Round what the products multiply to bfloat16, as in :func:`rnnkit.forward`.

    Returns
    -------
    Infer
        - y (T, N, D*P), the output, 0 beyond the length of a sequence
        - hy (L*D, N, P) and cy (L*D, N, H), the states after the last step of each sequence; cy is None except for
          LSTM and cells with states

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
    arguments = lengths, None, None, precision, resets, initial, 0, mask
    options = options_of("infer", desc, seq_len, batch_size, *arguments)
    checks.weights("infer", w, desc, x)
    backend_module = backend("infer", "infer", desc, x, options)
    x, cx = with_inputs("infer", desc, x, inputs), concatenate_states(desc, cx)
    if desc.learned_initial_state:
        hx, cx = options.steps.start_from(learned_states(desc, w, batch_size), hx, cx)
    y, hy, cy = backend_module.infer(desc, w, x, hx, cx, options)
    return Infer(y, hy, split_states(desc, cy))
