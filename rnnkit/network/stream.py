"""The states of many sequences that share one plan, saved between calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rnnkit.call import checks
from rnnkit.call.arena import Arena
from rnnkit.call.forking import Call, at_work, new_call
from rnnkit.call.options import CUPY, check, marks_of_step, options_of
from rnnkit.call.side_inputs import with_inputs
from rnnkit.call.steps import row_numbers
from rnnkit.common.arrays import library_of, not_an_array, on_host, overlaps_itself
from rnnkit.errors import WorkspaceError, message, wrong_dtype, wrong_shape, wrong_type


class Stream:
    """The states of S sequences that arrive step by step, for example one for each client of a server.

    `Plan.stream` makes it. Each sequence is a stream with a number from 0 to S - 1. Its state starts as zeros. The
    results of a stream do not depend on the other streams of a call. On the CPU they are bit-identical to `Plan.step`
    and `Plan.infer` on that sequence.

    A Stream is not thread-safe: a call during another call on the same object raises WorkspaceError and changes
    nothing. A plan may have any number of Stream objects.

    Later calls do not overwrite the arrays that a call returns. With `out`, a `step` on NumPy arrays allocates no large
    arrays after the first step with that number of rows. If an exception interrupts a call (KeyboardInterrupt), some
    states of its streams may be old and others new: call `restore` or `reset`.

    Attributes
    ----------
    plan : Plan
        The packed weights. Copies of this object share the plan and have their own states.
    desc : RNNDescriptor
        The network.
    num_streams : int
        S, the number of streams.

    Examples
    --------
    A server has one row for each client. It steps the clients that have sent something:

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

    When a client leaves, a new one takes its row:

    >>> rows["joe"] = rows.pop("ann")
    >>> stream.reset([rows["joe"]])

    The states are arrays, which you can save, for example with `numpy.savez`. After `restore` the results are
    bit-identical:

    >>> saved = stream.state
    >>> {name: array.shape for name, array in saved.items()}
    {'hx': (1, 1000, 8), 'cx': (1, 1000, 8)}
    >>> stream.restore(saved)
    """

    def __init__(
        self,
        plan: Any,
        network: Any,
        num_streams: int,
        place: str,
        initial_states: Callable[[int], tuple[Any, Any]],
    ) -> None:
        self.plan, self.desc, self.num_streams, self._network = plan, plan.desc, num_streams, network
        self._place = place  # in the table of options
        self._library: Any = library_of(network.weights)
        self._device = None if self._library is np else network.weights.device
        self._calls: set[Call] = set()  # a token for each running call, as in `Memory`
        self._arena = Arena()
        self._scratch: tuple[int, Any, Any] = -1, None, None  # gather buffers of the last step of some streams
        self._positions = np.empty(num_streams, np.int64)  # stream -> index in `rows`, to find duplicates
        sizes = {"hx": self.desc.output_size} | ({"cx": self.desc.states_size} if self.desc.has_cell_state else {})
        self._names = tuple(sizes)
        own, self._initial_states = zip(initial_states(1), sizes, strict=False), initial_states
        self._initial = tuple(0 if one is None else one for one, _ in own)  # of a stream, for each state
        self._states = self._exclusively("stream", self._started, sizes.values())
        self._buffers: Any = None  # output of a step of all streams; swapped with the states

    def _started(self, sizes: Iterable[int]) -> tuple[Any, ...]:
        shape = self.desc.num_layers, self.num_streams
        states = tuple(self._library.empty((*shape, size), self.desc.np_dtype) for size in sizes)
        for array, initial in zip(states, self._initial, strict=True):
            array[...] = initial
        return states

    def __reduce__(self) -> tuple[Any, ...]:
        return self.plan.stream, (self.num_streams,), self.state

    def __setstate__(self, state: Mapping[str, np.ndarray]) -> None:
        self.restore(state)

    def __repr__(self) -> str:
        return f"<Stream of {self.desc}, num_streams={self.num_streams}>"

    def step(
        self,
        x: Any,
        *,
        rows: Any = None,
        out: Any = None,
        inputs: Any = None,
        resets: Any = None,
        mask: Any = None,
    ) -> Any:
        """Run one time step for all streams, or for some.

        Parameters
        ----------
        x : ndarray (n, I), desc.dtype
            Inputs: x[i] belongs to stream rows[i]. n is the number of rows; S without `rows`.
        rows : array_like (n,) of int, optional
            The streams to step: numbers 0..S-1 in any order, without duplicates. Or a boolean array (S,), which selects
            the streams where it is True. On the host. None: all streams, in order.
        out : ndarray (n, P), optional
            Output buffer for y; it may be x. None: a new array.
        inputs : mapping of str to ndarray, optional
            Side inputs, for a cell that declares them, by name: (n, H) or (n, 1).
        resets : array_like (n,) of bool, integers or floats that are 0 or 1, optional
            1 sets the state of stream rows[i] to zeros, or to the network's own, before the step.
        mask : array_like (n,) of bool, integers or floats that are 0 or 1, optional
            0 skips the step of stream rows[i]: its state stays as it is, and y is that of the last layer. `rows`
            without them takes less time.

        Returns
        -------
        ndarray (n, P)
            y, the output of the last layer; this is `out` if given.

        Raises
        ------
        TypeError, ValueError
            An argument has the wrong type, dtype, shape or value. The states are unchanged.
        WorkspaceError
            Another call on this object is running.
        """
        return self._exclusively("step", self._step, x, rows, out, inputs, resets, mask)

    def run(
        self,
        x: Any,
        lengths: Any = None,
        *,
        rows: Any = None,
        inputs: Any = None,
        resets: Any = None,
        mask: Any = None,
    ) -> Any:
        """Run several time steps for all streams, or for some.

        Parameters
        ----------
        x : ndarray (T, n, I), desc.dtype
            Inputs, time first: x[:, i] belongs to stream rows[i].
        lengths : array_like (n,) of int, optional
            Number of steps of each of these streams, 0..T. None: T for all.
        rows : array_like (n,) of int, optional
            The streams to run, as in `step`.
        inputs : mapping of str to ndarray, optional
            Side inputs, for a cell that declares them, by name: (T, n, H), (T, n, 1), or (n, H) for all steps.
        resets : array_like (T, n) of bool, integers or floats that are 0 or 1, optional
            1 sets the state of stream rows[i] to zeros, or to the network's own, before that step.
        mask : array_like (T, n) of bool, integers or floats that are 0 or 1, optional
            0 skips that step of stream rows[i], as in :func:`rnnkit.forward`.

        Returns
        -------
        ndarray (T, n, P)
            y, the output of the last layer, 0 beyond the length of a stream.

        Raises
        ------
        TypeError, ValueError
            An argument has the wrong type, dtype, shape or value. The states are unchanged.
        WorkspaceError
            Another call on this object is running.
        """
        return self._exclusively("run", self._run, x, lengths, rows, inputs, resets, mask)

    def reset(self, rows: Any = None) -> None:
        """Reset all streams, or some, to a state of zeros, or to the network's own initial state.

        Parameters
        ----------
        rows : array_like (n,) of int, optional
            The streams to reset, as in `step`. None: all.

        Raises
        ------
        TypeError, ValueError
            `rows` has the wrong type, dtype, shape or values. The states are unchanged.
        WorkspaceError
            Another call on this object is running.
        """
        self._exclusively("reset", self._reset, rows)

    @property
    def state(self) -> dict[str, np.ndarray]:
        """Copies of the states, on the host, for `restore`: "hx" (L, S, P) and, for an LSTM, "cx" (L, S, H).

        For a cell with several states, "cx" has them side by side, in the order of the declaration.
        """
        return self._exclusively("state", self._state)

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore saved states. Later steps are bit-identical to those after the save.

        Parameters
        ----------
        state : mapping of str to ndarray
            The property `state` of a Stream with the same network and number of streams. It is copied.

        Raises
        ------
        TypeError, ValueError
            The names, dtypes or shapes of the arrays do not fit. The states are unchanged.
        WorkspaceError
            Another call on this object is running.
        """
        self._exclusively("restore", self._restore, state)

    def _exclusively(self, function: str, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call the method on the device of the states; raise if another call is running."""
        calls, call = self._calls, new_call()
        try:
            calls.add(call)  # at least one of two concurrent calls sees the other
            if len(calls) > 1 and at_work(calls, call):
                text = f"{function}: the stream is in use by another call"
                raise WorkspaceError(f"{text}; give each thread its own stream")
            if self._device is None:
                return method(*arguments)
            with self._device:
                return method(*arguments)
        finally:
            calls.discard(call)

    def _step(self, x: Any, rows: Any, out: Any, inputs: Any, resets: Any, mask: Any) -> Any:
        network, states = self._network, self._states
        rows, count, dim = self._checked_rows("step", rows)
        checks.array("step", "x", x, (count, self.desc.input_size), (dim, "input_size"), self.desc, network.weights)
        if out is not None:
            self._check_out(out, count, dim)
        anew, skipped = marks_of_step("step", self.desc, resets, mask, count, "stream.step", self._place)
        x = with_inputs("step", self.desc, x, inputs)
        if rows is None:
            self._reset_rows(states, anew)
            # Taken from `self` first: an interrupted step must not leave its output shared with the states.
            buffers, self._buffers = self._buffers or network.buffers(count), None
            y, *after = network.step(x, *states, buffers=buffers)
            self._skip(y, after, states, skipped)
            self._states = tuple(after[: len(states)])
            self._buffers = buffers and (*states, *buffers[len(states) :])
        else:
            states, buffers = self._gather(rows)
            self._reset_rows(states, anew)
            y, *after = network.step(x, *states, buffers=buffers)
            self._skip(y, after, states, skipped)
            self._scatter(rows, after)
        if out is None:
            return y if buffers is None else y.copy()  # the next step overwrites the buffers
        out[...] = y
        return out

    def _reset_rows(self, states: Iterable[np.ndarray], rows: np.ndarray | None) -> None:
        """Set the states of the marked rows to the initial ones."""
        if rows is None:
            return
        rows = self._library.asarray(rows)
        for array, initial in zip(states, self._initial, strict=True):
            array[:, rows] = initial

    def _skip(self, y: Any, after: Iterable[Any], before: Sequence[Any], rows: np.ndarray | None) -> None:
        """Restore the states of the marked rows, and their y."""
        if rows is None:
            return
        rows = self._library.asarray(rows)
        y[rows] = before[0][-1, rows]
        for array, old in zip(after, before, strict=False):
            array[:, rows] = old[:, rows]

    def _run(self, x: Any, lengths: Any, rows: Any, inputs: Any, resets: Any, mask: Any) -> Any:
        rows, count, dim = self._checked_rows("run", rows)
        shape, dims = (None, count, self.desc.input_size), ("seq_len", dim, "input_size")
        checks.array("run", "x", x, shape, dims, self.desc, self._network.weights)
        options = options_of("run", self.desc, len(x), count, lengths, resets=resets, mask=mask)
        if not (lengths is resets is mask is None) or self._place is CUPY:  # as in Plan.infer
            check("run", self.desc, options, "stream.run", self._place)
        x = with_inputs("run", self.desc, x, inputs)
        options.steps.start_from(self._initial_states(count), None, None)
        hx, cx, *_ = *(self._states if rows is None else self._gather(rows)[0]), None
        y, *after = self._network.infer(x, hx, cx, options)
        self._scatter(rows, after)
        return y

    def _reset(self, rows: Any) -> None:
        rows, _, _ = self._checked_rows("reset", rows)
        self._scatter(rows, list(self._initial))

    def _state(self) -> dict[str, np.ndarray]:
        return {name: np.array(on_host(array)) for name, array in zip(self._names, self._states, strict=True)}

    def _restore(self, state: Any) -> None:
        if not isinstance(state, Mapping):
            raise wrong_type("restore", "state", "a mapping of names to arrays", state)
        if set(state) != set(self._names):
            expected = f"have the names {sorted(self._names)} of this network's states"
            raise ValueError(message("restore", "state", expected, sorted(map(str, state))))
        found = [state[name] for name in self._names]
        for name, array, current in zip(self._names, found, self._states, strict=True):
            argument = f"state[{name!r}]"
            if library_of(array) is not np:
                raise not_an_array("restore", argument, "a numpy.ndarray", array)
            if array.dtype != current.dtype:
                raise wrong_dtype("restore", argument, str(current.dtype), array.dtype)
            if array.shape != current.shape:
                size = "proj_size" if self.desc.projected and name == "hx" else "hidden_size"
                raise wrong_shape("restore", argument, current.shape, ("num_layers", "num_streams", size), array.shape)
        self._scatter(None, [self._library.asarray(array) for array in found])

    def _gather(self, rows: np.ndarray) -> tuple[list[Any], Any]:
        """Return the states of these streams and output buffers for a step; both are valid until the next gather."""
        if self._library is not np:
            rows = self._library.asarray(rows)
            return [array[:, rows] for array in self._states], None
        if len(rows) != self._scratch[0]:
            self._scratch = self._scratch_for(len(rows))
        _, gathered, buffers = self._scratch
        for array, into in zip(self._states, gathered, strict=True):
            array.take(rows, 1, into, "clip")  # the rows are checked already; mode "raise" would buffer the output
        return gathered, buffers

    def _scratch_for(self, count: int) -> tuple[int, list[np.ndarray], Any]:
        """Return gather and output buffers for a step of `count` streams; all counts share one arena."""
        take, states = self._arena.take, zip(self._names, self._states, strict=True)
        gathered = [take(name, (len(array), count, array.shape[2]), array.dtype) for name, array in states]
        return count, gathered, self._network.buffers(count, take)

    def _scatter(self, rows: np.ndarray | None, values: list[Any]) -> None:
        """Write the states of these streams; None: of all."""
        if rows is None:
            index: Any = slice(None)
        elif len(rows) == 1:
            index = slice(row := rows.item(), row + 1)  # 5 times as fast as an index array
        else:
            index = self._library.asarray(rows)
        for array, value in zip(self._states, values, strict=False):  # cy is None without a cell state
            array[:, index] = value

    def _check_out(self, out: Any, count: int, dim: str) -> None:
        size = "proj_size" if self.desc.projected else "hidden_size"
        checks.array("step", "out", out, (count, self.desc.output_size), (dim, size), self.desc, self._network.weights)
        if isinstance(out, np.ndarray) and not out.flags.writeable:
            raise ValueError(message("step", "out", "be writeable", "a read-only array"))
        if overlaps_itself(out):
            raise ValueError(message("step", "out", "not overlap itself in memory", f"strides {out.strides}"))

    def _checked_rows(self, function: str, rows: Any) -> tuple[np.ndarray | None, int, str]:
        """Return the rows as int64 (None: all), their number, and the name of that dimension for error messages."""
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
        positions, indices = self._positions, row_numbers(rows.size)
        positions[rows] = indices  # a duplicate gets its last index
        if positions[rows].tobytes() != indices.tobytes():  # array_equal takes 2 us more
            twice = int(np.flatnonzero(positions[rows] != indices)[0])
            places = f"at {twice} and at {positions[rows[twice]]}"
            raise ValueError(f"{function}: rows must not have duplicates, got stream {rows[twice]} {places}")
