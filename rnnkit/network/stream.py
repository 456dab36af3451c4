"""The states of many streams that one network serves: each goes on from where its last step left it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from rnnkit.call import checks
from rnnkit.call.arena import Arena
from rnnkit.call.forking import Call, at_work, new_call
from rnnkit.call.options import check, checked_resets, options_of
from rnnkit.call.side_inputs import with_inputs
from rnnkit.call.steps import row_numbers
from rnnkit.common.arrays import library_of, not_an_array, on_host, overlaps_itself
from rnnkit.errors import WorkspaceError, message, wrong_shape, wrong_type


class Stream:
    """Many streams, one row of states each, that run through one plan; `Plan.stream` makes it.

    Every stream begins with a state of zeros. A stream's results do not depend on which others step with it, and are
    those of `Plan.step` and `Plan.infer` on it alone, to the same bits on the CPU. A plan may have any number of these
    objects, each for one thread at a time: a call while another one is at work raises WorkspaceError and changes
    nothing.

    What a call returns belongs to the caller and is never written again. With `out` a `step` on NumPy arrays allocates
    nothing of their size, once a step has had as many rows. An exception that a signal's handler raises amid a call
    (KeyboardInterrupt) may leave some states of that call's streams old and others new: `restore` or `reset` them.

    Attributes
    ----------
    plan : Plan
        What the streams run through; copies of this object, which have states of their own, run through the same.
    desc : RNNDescriptor
        The network.
    num_streams : int
        S, the number of streams.

    Examples
    --------
    A server keeps one row for each of its clients and steps those that have sent something:

    >>> import numpy as np
    >>> import rnnkit
    >>> stream = rnnkit.LSTM(3, 8, seed=0).prepare().stream(1000)
    >>> rows = {"ann": 0, "bob": 1, "eve": 2}
    >>> def serve(arrived):
    ...     y = stream.step(np.stack(list(arrived.values())), rows=[rows[name] for name in arrived])
    ...     return dict(zip(arrived, y))
    >>> answers = serve({"eve": np.ones(3, np.float32), "ann": np.zeros(3, np.float32)})
    >>> answers["eve"].shape
    (8,)

    Where a client leaves, another one takes its row:

    >>> rows["joe"] = rows.pop("ann")
    >>> stream.reset([rows["joe"]])

    The states are arrays, for `numpy.savez` say; the server that restores them goes on with the same bits:

    >>> saved = stream.state
    >>> {name: array.shape for name, array in saved.items()}
    {'hx': (1, 1000, 8), 'cx': (1, 1000, 8)}
    >>> stream.restore(saved)
    """

    def __init__(self, plan: Any, network: Any, num_streams: int, place: str) -> None:
        self.plan, self.desc, self.num_streams, self._network = plan, plan.desc, num_streams, network
        self._place = place  # in the table of options
        self._library: Any = library_of(network.weights)
        self._device = None if self._library is np else network.weights.device
        self._calls: set[Call] = set()  # a token of each call at work, as `Memory` has them
        self._arena = Arena()
        self._scratch: tuple[int, Any, Any] = -1, None, None  # what the last step of some streams worked in
        self._positions = np.empty(num_streams, np.int64)  # where in `rows` a stream stands
        sizes = {"hx": self.desc.output_size} | ({"cx": self.desc.states_size} if self.desc.has_cell_state else {})
        self._names = tuple(sizes)
        self._states = self._exclusively("stream", self._zeros, sizes.values())
        self._buffers: Any = None  # what a step of all streams writes: never the memory of the states

    def _zeros(self, sizes: Iterable[int]) -> tuple[Any, ...]:
        shape = self.desc.num_layers, self.num_streams
        return tuple(self._library.zeros((*shape, size), self.desc.np_dtype) for size in sizes)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.plan.stream, (self.num_streams,), self.state

    def __setstate__(self, state: Mapping[str, np.ndarray]) -> None:
        self.restore(state)

    def __repr__(self) -> str:
        return f"<Stream of {self.desc}, num_streams={self.num_streams}>"

    def step(self, x: Any, *, rows: Any = None, out: Any = None, inputs: Any = None, resets: Any = None) -> Any:
        """Run one time step of all streams, or of some.

        Parameters
        ----------
        x : ndarray (n, I), desc.dtype
            Inputs, x[i] of the stream rows[i]; n is the number of rows, S without `rows`.
        rows : array_like (n,) of int, optional
            Which streams step: numbers 0..S-1 in any order, none of them twice. A boolean array (S,) stands for the
            numbers where it is True, ascending. On the host; None is all streams, in their order.
        out : ndarray (n, P), optional
            Where y is written; it may be x. None is a new array.
        inputs : mapping of str to ndarray, optional
            Side inputs of a cell that declares some: (n, H) or (n, 1).
        resets : array_like (n,) of bool, integers or floats that are 0 or 1, optional
            Where it is 1 the state of the stream rows[i] is zeros before the step.

        Returns
        -------
        ndarray (n, P)
            y, the outputs of the last layer, or `out`.

        Raises
        ------
        TypeError, ValueError
            An argument has the wrong type, dtype, shape or value. No state is changed then.
        WorkspaceError
            Another thread's call is at work on this object.
        """
        return self._exclusively("step", self._step, x, rows, out, inputs, resets)

    def run(self, x: Any, lengths: Any = None, *, rows: Any = None, inputs: Any = None, resets: Any = None) -> Any:
        """Run several time steps of all streams, or of some.

        Parameters
        ----------
        x : ndarray (T, n, I), desc.dtype
            Inputs, time-major, x[:, i] of the stream rows[i].
        lengths : array_like (n,) of int, optional
            Number of steps of each of these streams, 0..T; None is T for all.
        rows : array_like (n,) of int, optional
            Which streams run, as `step` takes them.
        inputs : mapping of str to ndarray, optional
            Side inputs of a cell that declares some: (T, n, H), (T, n, 1), or (n, H) for all steps.
        resets : array_like (T, n) of bool, integers or floats that are 0 or 1, optional
            Where it is 1 the state of the stream rows[i] is zeros before that step.

        Returns
        -------
        ndarray (T, n, P)
            y, 0 beyond a stream's length.

        Raises
        ------
        TypeError, ValueError
            An argument has the wrong type, dtype, shape or value. No state is changed then.
        WorkspaceError
            Another thread's call is at work on this object.
        """
        return self._exclusively("run", self._run, x, lengths, rows, inputs, resets)

    def reset(self, rows: Any = None) -> None:
        """Have all streams, or some, begin again with a state of zeros.

        Parameters
        ----------
        rows : array_like (n,) of int, optional
            Which streams, as `step` takes them.

        Raises
        ------
        TypeError, ValueError
            `rows` has the wrong type, dtype, shape or values. No state is changed then.
        WorkspaceError
            Another thread's call is at work on this object.
        """
        self._exclusively("reset", self._reset, rows)

    @property
    def state(self) -> dict[str, np.ndarray]:
        """Copies of the states on the host: "hx" (L, S, P) and, of the LSTM, "cx" (L, S, H); `restore` takes them.

        Of a cell with several states beside h "cx" holds them side by side, in their order.
        """
        return self._exclusively("state", self._state)

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from saved states: the steps that follow have the same bits.

        Parameters
        ----------
        state : mapping of str to ndarray
            As `state` gave it, from an object of as many streams and of the same network; it is copied.

        Raises
        ------
        TypeError, ValueError
            The state is of other streams. Nothing is changed then.
        WorkspaceError
            Another thread's call is at work on this object.
        """
        self._exclusively("restore", self._restore, state)

    def _exclusively(self, function: str, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call the method, on the states' device, unless another call is at work."""
        calls, call = self._calls, new_call()
        try:
            calls.add(call)  # of two that come at once, one at least sees the other
            if len(calls) > 1 and at_work(calls, call):
                cure = "give each thread a stream of its own"
                raise WorkspaceError(message(function, "the stream", "not be in use", "one with a call at work", cure))
            if self._device is None:
                return method(*arguments)
            with self._device:
                return method(*arguments)
        finally:
            calls.discard(call)

    def _step(self, x: Any, rows: Any, out: Any, inputs: Any, resets: Any) -> Any:
        network, states = self._network, self._states
        rows, count, dim = self._checked_rows("step", rows)
        checks.array("step", "x", x, (count, self.desc.input_size), (dim, "input_size"), self.desc, network.weights)
        if out is not None:
            self._check_out(out, count, dim)
        resets = checked_resets("step", self.desc, resets, count, "stream.step", self._place)
        x = with_inputs("step", self.desc, x, inputs)
        if rows is None:
            self._zero(states, resets)
            buffers, self._buffers = self._buffers or network.buffers(count), None  # whatever interrupts what follows
            y, *after = network.step(x, *states, buffers=buffers)
            self._states = tuple(after[: len(states)])
            self._buffers = buffers and (*states, *buffers[len(states) :])
        else:
            states, buffers = self._gather(rows)
            self._zero(states, resets)
            y, *after = network.step(x, *states, buffers=buffers)
            self._scatter(rows, after)
        if out is None:
            return y if buffers is None else y.copy()  # the next step writes into buffers again
        out[...] = y
        return out

    @staticmethod
    def _zero(states: Iterable[np.ndarray], resets: np.ndarray | None) -> None:
        """Reset these of the states."""
        if resets is not None and resets.any():
            for array in states:
                array[:, resets] = 0

    def _run(self, x: Any, lengths: Any, rows: Any, inputs: Any, resets: Any) -> Any:
        rows, count, dim = self._checked_rows("run", rows)
        shape, dims = (None, count, self.desc.input_size), ("seq_len", dim, "input_size")
        checks.array("run", "x", x, shape, dims, self.desc, self._network.weights)
        options = options_of("run", self.desc, len(x), count, lengths, resets=resets)
        if lengths is not None or resets is not None:  # of the network alone prepare has checked it
            check("run", self.desc, options, "stream.run", self._place)
        x = with_inputs("run", self.desc, x, inputs)
        hx, cx, *_ = *(self._states if rows is None else self._gather(rows)[0]), None
        y, *after = self._network.infer(x, hx, cx, options)
        self._scatter(rows, after)
        return y

    def _reset(self, rows: Any) -> None:
        rows, _, _ = self._checked_rows("reset", rows)
        self._scatter(rows, [0] * len(self._states))

    def _state(self) -> dict[str, np.ndarray]:
        return {name: np.array(on_host(array)) for name, array in zip(self._names, self._states, strict=True)}

    def _restore(self, state: Any) -> None:
        if not isinstance(state, Mapping):
            raise wrong_type("restore", "state", "a mapping of names to arrays", state)
        if set(state) != set(self._names):
            expected = f"hold {sorted(self._names)} as the network says"
            raise ValueError(message("restore", "state", expected, sorted(map(str, state))))
        found = [state[name] for name in self._names]
        for name, array, own in zip(self._names, found, self._states, strict=True):
            argument = f"state[{name!r}]"
            if library_of(array) is not np:
                raise not_an_array("restore", argument, "a numpy.ndarray", array)
            if array.dtype != own.dtype:
                raise TypeError(message("restore", argument, f"be {own.dtype} as the descriptor says", array.dtype))
            if array.shape != own.shape:
                size = "proj_size" if self.desc.projected and name == "hx" else "hidden_size"
                raise wrong_shape("restore", argument, own.shape, ("num_layers", "num_streams", size), array.shape)
        self._scatter(None, [self._library.asarray(array) for array in found])

    def _gather(self, rows: np.ndarray) -> tuple[list[Any], Any]:
        """The states of these streams, and what a step of them writes; both void when others are gathered."""
        if self._library is not np:
            rows = self._library.asarray(rows)
            return [array[:, rows] for array in self._states], None
        if len(rows) != self._scratch[0]:
            self._scratch = self._scratch_for(len(rows))
        _, gathered, buffers = self._scratch
        for array, into in zip(self._states, gathered, strict=True):
            array.take(rows, 1, into, "clip")  # they have been checked: with "raise" it would buffer what it writes
        return gathered, buffers

    def _scratch_for(self, count: int) -> tuple[int, list[np.ndarray], Any]:
        """Memory for a step of so many streams, which is that of other numbers too."""
        take, named = self._arena.take, zip(self._names, self._states, strict=True)
        gathered = [take(name, (len(array), count, array.shape[2]), array.dtype) for name, array in named]
        return count, gathered, self._network.buffers(count, take)

    def _scatter(self, rows: np.ndarray | None, values: list[Any]) -> None:
        """Write the states of these streams; None is all."""
        if rows is None:
            index: Any = slice(None)
        elif len(rows) == 1:
            index = slice(row := rows.item(), row + 1)  # in a fifth of the time
        else:
            index = self._library.asarray(rows)
        for array, value in zip(self._states, values, strict=False):  # a mode without cells has None for theirs
            array[:, index] = value

    def _check_out(self, out: Any, count: int, dim: str) -> None:
        size = "proj_size" if self.desc.projected else "hidden_size"
        checks.array("step", "out", out, (count, self.desc.output_size), (dim, size), self.desc, self._network.weights)
        if isinstance(out, np.ndarray) and not out.flags.writeable:
            raise ValueError(message("step", "out", "be writeable", "a read-only array"))
        if overlaps_itself(out):
            expected = "have memory of its own for each element"
            raise ValueError(message("step", "out", expected, f"strides {out.strides}"))

    def _checked_rows(self, function: str, rows: Any) -> tuple[np.ndarray | None, int, str]:
        """The rows as int64, or None for all; how many these are, and what a message calls their number."""
        size = self.num_streams
        if rows is None:
            return None, size, "num_streams"
        found = checks.integers(function, "rows", rows, "iub", "hold integers, or be a mask of booleans")
        if found.dtype.kind == "b":
            if found.shape != (size,):
                raise wrong_shape(function, "rows", (size,), ("num_streams",), found.shape)
            found = np.flatnonzero(found)
        if found.ndim != 1:
            raise wrong_shape(function, "rows", (None,), ("number of rows",), found.shape)
        count = len(found)
        checks.within(function, "rows", found, size - 1, f"num_streams-1={size - 1}")
        numbers = found if found.dtype == np.int64 else found.astype(np.int64)
        if count > 1:
            self._check_each_once(function, numbers)
        return numbers, count, "number of rows"

    def _check_each_once(self, function: str, rows: np.ndarray) -> None:
        positions, own = self._positions, row_numbers(rows.size)
        positions[rows] = own  # of a stream that is named twice, the last one's
        if positions[rows].tobytes() != own.tobytes():  # array_equal takes 2 us more
            twice = int(np.flatnonzero(positions[rows] != own)[0])
            got = f"{rows[twice]} at {twice} and at {positions[rows[twice]]}"
            raise ValueError(message(function, "rows", "name no stream twice", got))
