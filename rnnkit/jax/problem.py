"""Static facts of a call: what its operands and results are, and a text from which another process knows it."""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit.descriptor.texts import descriptor_of_text, descriptor_text
from rnnkit.descriptor.weights import num_weights
from rnnkit.errors import message
from rnnkit.network import engine
from rnnkit_kernels.machine.registers import VECTOR_BYTES

_CURE = "call rnnkit.jax.rnn with a network of {cell} first"
OPTIONS = "lengths", "mask", "resets", "seed"
OPERANDS = "w", "x", "hx", "cx", *OPTIONS
"""Operands of a call, in order; x has the side inputs as its last columns, cx all states other than h. Those of infer
may end in the `packed` weights."""

WANTED = "w", "x", "y"
"""Operands whose gradients `backward` leaves out if nobody wants them; and y, whose gradient it has unless that is
0."""

_SIZES = 3  # fields of a problem after its static facts
_ROWS_PACKED = 128  # rows of a call up to which it takes a tenth longer, or more, if it also packs the weights

Shaped = tuple[tuple[int, ...], np.dtype]


class Static(NamedTuple):
    """What is known of a call besides the sizes of its batch; a parameter of the primitives."""

    desc: RNNDescriptor
    names: tuple[str, ...]  # of the operands that are given
    initial: str = "zeros"
    first_row: int = 0
    engine: bool = True  # else the call runs on JAX's operations, also on a CPU
    vector_bytes: int = 0  # of the machine whose programs read the `packed` weights; others read w
    wanted: tuple[str, ...] = WANTED  # of these gradients, by backward: others are empty

    @property
    def running(self) -> RNNDescriptor:
        """The descriptor of the call: without a seed that of inference, which draws nothing."""
        return self.desc if "seed" in self.names else self.desc.evaluating

    @property
    def unpacked(self) -> Static:
        """These facts without packed weights."""
        return self._replace(names=tuple(name for name in self.names if name != "packed"), vector_bytes=0)

    def named(self, operands: Any) -> dict[str, Any]:
        """Return the operands by name."""
        return dict(zip(self.names, operands, strict=True))


class Problem(NamedTuple):
    """A call on batches of one size: of `kind` infer, forward, backward or pack."""

    kind: str
    static: Static
    seq_len: int
    batch_size: int
    threads: int = 0  # of the engine; 0: all

    @property
    def text(self) -> str:
        """Return the problem as text."""
        return _text(self)

    @property
    def names(self) -> list[str]:
        """Names of the operands and the results; of gradients with a d before the name."""
        own = [*self.static.names]
        return {
            "pack": [*own, "packed"], "infer": [*own, "y", "hy", "cy"], "forward": [*own, "y", "hy", "cy", "kept"],
            "backward": ["dy", "dhy", "dcy", "kept", *own, "dw", "dx", "dhx", "dcx"],
        }[self.kind]  # fmt: skip

    @property
    def reads_packed(self) -> bool:
        """Whether packed weights are those of this machine."""
        return self.static.vector_bytes == VECTOR_BYTES

    @property
    def call(self) -> Any:
        """Return the call as the engine's programs know it; None if they do not."""
        static, program = self.static, engine.cpu_module("program")
        if "mask" in static.names or static.initial != "zeros":
            return None
        if self.kind == "pack" and not self.reads_packed:
            return None
        given = ("lengths" in static.names), ("resets" in static.names), self.reads_packed
        return program.Call(self.kind, static.running, self.seq_len, self.batch_size, *given)

    @property
    def nbytes(self) -> int:
        """Bytes of all operands and results, but of packed weights, which other machines do not read."""
        each = zip(self.names, self.operands + self.results, strict=True)
        return sum(prod(shape) * dtype.itemsize for name, (shape, dtype) in each if name != "packed")

    @property
    def operands(self) -> list[Shaped]:
        """Shapes and dtypes of the operands."""
        own = [self.shaped(name) for name in self.static.names]
        if self.kind != "backward":
            return own
        return [self._of_backward("y"), *(self.shaped(name) for name in ("hx", "cx", "kept")), *own]

    @property
    def results(self) -> list[Shaped]:
        """Shapes and dtypes of the results."""
        names = {
            "infer": ("y", "hx", "cx"), "forward": ("y", "hx", "cx", "kept"), "backward": ("w", "x", "hx", "cx"),
            "pack": ("packed",),
        }  # fmt: skip
        return [(self._of_backward if self.kind == "backward" else self.shaped)(one) for one in names[self.kind]]

    def _of_backward(self, name: str) -> Shaped:
        """Return the shape and dtype of a gradient."""
        is_wanted = name not in WANTED or name in self.static.wanted
        return self.shaped(name) if is_wanted else ((0,), self.static.running.np_dtype)

    @property
    def packing(self) -> Static | None:
        """Return the static facts of a `pack` for this infer, of few steps, if programs do both."""
        call = self.call
        is_short = self.seq_len * self.batch_size <= _ROWS_PACKED
        if not is_short or call is None or not engine.cpu_module("program").has_program(call):
            return None
        return Static(self.static.running, ("w",), vector_bytes=VECTOR_BYTES)

    def shaped(self, name: str) -> Shaped:
        """Return the shape and dtype of an array; gradients have those of what they belong to."""
        names, desc, steps, rows = self.static.names, self.static.running, self.seq_len, self.batch_size
        layers, dtype = desc.num_pseudo_layers, desc.np_dtype
        if name == "kept":
            nbytes = engine.cpu_module("kept").kept_nbytes(desc, steps, rows, "resets" in names)
            return (nbytes,), np.dtype(np.uint8)
        if name == "packed":
            return (engine.cpu_module("program").packed_nbytes(desc) // dtype.itemsize,), dtype
        return {
            "w": ((num_weights(desc),), dtype),
            "x": ((steps, rows, desc.row_size), dtype),
            "y": ((steps, rows, desc.num_directions * desc.output_size), dtype),
            "hx": ((layers, rows, desc.output_size), dtype),
            "cx": ((layers, rows, desc.states_size if desc.has_cell_state else 0), dtype),
            "lengths": ((rows,), np.dtype(np.int32)),
            "mask": ((steps, rows), np.dtype(bool)),
            "resets": ((steps, rows), np.dtype(bool)),
            "seed": ((2,), np.dtype(np.uint32)),
        }[name]


_FORMAT = 1  # of texts; it counts up with every change of what the arrays of a program hold
_ANOTHER = "the program was made by another version of rnnkit: make it again"


@lru_cache(1024)
def _text(problem: Problem) -> str:
    kind, (desc, *static), *sizes = problem
    return json.dumps([_FORMAT, problem.nbytes, kind, descriptor_text(desc), *static, *sizes])


@lru_cache(1024)
def problem_of(text: str) -> Problem:
    """Return the problem of a text, also in another process: for a cell of the user's after its class was used there.

    Raises
    ------
    ValueError
        The cell is not known in this process, or the text is of another version.
    """
    written, nbytes, kind, desc, names, *rest = json.loads(text)
    if written != _FORMAT:
        raise ValueError(message("rnn", "program", f"have format {_FORMAT}", written, _ANOTHER))
    *static, wanted = rest[:-_SIZES]
    desc = descriptor_of_text(desc, _CURE)
    found = Problem(kind, Static(desc, tuple(names), *static, tuple(wanted)), *rest[-_SIZES:])
    if found.nbytes != nbytes:
        raise ValueError(message("rnn", "program", f"have arrays of {found.nbytes} bytes", nbytes, _ANOTHER))
    return found
