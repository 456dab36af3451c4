"""One pseudo-layer of a call on a GPU: its products by cuBLAS, and the kernels of its cell, step by step.

The steps of a direction run one after the other. The products with W of a chunk of steps are one product, and so are
those of the weight gradient; each step has the products with R of each phase, and a kernel. All rows of a batch run in
each step: where a sequence does not run, the state stays as it is, and the gradients of the gates are 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import cupy

from rnnkit.cpu.layer import DESCRIPTORS, Layer, layers_of
from rnnkit.cuda.blas import Blas, Heads, Prepared, Rows
from rnnkit.cuda.common import common_source
from rnnkit.cuda.graphs import run_steps
from rnnkit.cuda.kernels import address, kernel, prepared
from rnnkit.cuda.marks import Marks
from rnnkit.cuda.source import FIRST_OF_GRADIENT, PARAMETERS, means_of, source_of
from rnnkit.descriptor.descriptor import RNNDescriptor
from rnnkit_kernels.cells.declaration import mean_blocks
from rnnkit_kernels.stages import operand_places

_CHUNK_BYTES = 1 << 26  # of gates that are not kept, and of gradients of gates
_NAMES = [*PARAMETERS]


class Piece(NamedTuple):
    """Columns of the gates that one product with neighbouring rows of a weight matrix adds to."""

    column: int
    size: int
    weight: int  # where its first row starts in the flat weights
    bias: int  # where its bias starts; -1: it has none
    depth: int  # 0: the input itself is added ("skip" input)
    heads: int


@lru_cache(DESCRIPTORS)
def pieces_of(desc: RNNDescriptor) -> tuple[tuple[tuple[Piece, ...], ...], ...]:
    """Return the pieces of each product of the cell, for each pseudo-layer."""
    return tuple(map(_pieces, layers_of(desc)))


def _pieces(layer: Layer) -> tuple[tuple[Piece, ...], ...]:
    found, hidden = [], layer.sizes.hidden
    for product in layer.products[:-2]:
        own: list[Piece] = []
        for number in range(product.gates):
            row = int(product.rows[number * hidden])
            bias = -1 if product.bias < 0 else product.bias + row
            column, weight = product.first + number * hidden, product.start + row * product.depth
            last = own[-1] if own and product.heads == 1 and product.depth else None
            if last is not None and weight == last.weight + last.size * product.depth:
                own[-1] = last._replace(size=last.size + hidden)
            else:
                own.append(Piece(column, hidden, weight, bias, product.depth, product.heads))
        found.append(tuple(own))
    return tuple(found)


class Arrays(NamedTuple):
    """What a pseudo-layer reads and writes, on the GPU."""

    source: Any  # its input, (T, N, ...), dense; the first columns
    hidden: Any  # (T + D, N, D*P), see `states_shape`
    cells: Any  # (T + D, N, S*H); None: no states
    inputs: Any = None  # side inputs: the last columns of the network's input, (T, N, ...)
    noises: Any = None  # (N, ...)
    step_noises: Any = None  # (T, N, ...)
    initial: tuple[Any, Any] = (None, None)  # what hidden and cells are reset to, (N, ...); None: zeros


class LayerCall:
    """A pseudo-layer over the steps of a call. `kind` is that of `source_of`."""

    def __init__(
        self, desc: RNNDescriptor, layer: Layer, blas: Blas, w: Any, marks: Marks, arrays: Arrays, kind: str
    ) -> None:
        self.layer, self.blas, self.w, self.arrays = layer, blas, w, arrays
        self.flags, self.resets = marks.flags, marks.resets[layer.direction]
        self.declaration = layer.cell.declaration
        self.seq_len, self.batch = arrays.source.shape[:2]
        self.hidden_size, self.output_size = layer.sizes.hidden, layer.sizes.output
        self.projected, self.states_size = desc.projected, desc.states_size if desc.has_cell_state else 0
        self.places, self.pieces = operand_places(self.declaration), pieces_of(desc)[layer.index]
        self.dtype, self.itemsize = desc.np_dtype, desc.np_dtype.itemsize
        draws = arrays.noises is not None or arrays.step_noises is not None
        facts = layer.cell, self.dtype, self.projected
        self.kernels = partial(kernel, source_of(*facts, kind, draws))
        self.gradients = partial(kernel, source_of(*facts, "gradient", draws, "backward"))
        self.common = partial(kernel, common_source(self.dtype))
        self._kept: Any = None
        self._place_states()

    def _place_states(self) -> None:
        """Set the places of the states before and after step 0, as rows."""
        arrays, batch = self.arrays, self.batch
        before, after = (2, 1) if self.layer.direction else (0, 1)
        width, column = arrays.hidden.shape[2], self.layer.outputs.start
        hidden = Rows(address(arrays.hidden), width, batch * width).shifted(column, self.itemsize)
        states = Rows(address(arrays.cells), self.states_size, batch * self.states_size)
        self.hidden, self.states = (self.at(one, after) for one in (hidden, states))
        self.hidden_prev, self.states_prev = self._earlier = self.at(hidden, before), self.at(states, before)
        if self.resets is not None:  # states before the steps are arrays of their own
            sizes = self.output_size, self.states_size
            self._starts = [cupy.empty((self.seq_len, batch, size), self.dtype) for size in sizes]
            self.hidden_prev, self.states_prev = (self.placed(one, 0) for one in self._starts)

    def at(self, rows: Rows, step: int) -> Rows:
        """Return the rows of steps from this one on."""
        return rows.shifted(step * rows.step, self.itemsize)

    def placed(self, array: Any, first: int) -> Rows:
        """Return the rows of an array (steps, N, columns) whose first step is `first`, as those of all steps."""
        columns = array.shape[2]
        return self.at(Rows(address(array), columns, self.batch * columns), -first)

    def chunks(self, columns: int) -> Iterator[range]:
        """Yield the numbers of the steps in processing order, as many at once as fit so many columns of scratch."""
        count = max(1, _CHUNK_BYTES // max(1, self.batch * columns * self.itemsize))
        for done in range(0, self.seq_len, count):
            steps = range(done, min(done + count, self.seq_len))
            if self.layer.direction:
                steps = range(self.seq_len - 1 - steps.start, self.seq_len - 1 - steps.stop, -1)
            yield steps

    # Forward

    def forward(self, gates: Any, bias: Any, keeps: bool) -> None:
        """Run all steps. `gates` is (T, N, columns) if it `keeps` those of all steps, else memory for a chunk. `bias`
        is the sum of the biases of each column of the products."""
        for steps in self.chunks(0 if keeps else self.layer.columns):
            first = min(steps[0], steps[-1])
            place = self.placed(gates, 0 if keeps else first)
            self._project(gates[first:] if keeps else gates, bias, first, len(steps))
            program = self._program(place, self.hidden, self.states, self.batch)
            if self.resets is not None:
                program.insert(0, self.start_steps(1))
            if self.projected:
                program += self._projection_of_units(place)
            run_steps(program, steps, self.blas)

    def again(self, gates: Any, bias: Any, steps: range) -> Rows:
        """Compute the gates of steps whose states are known, all at once, and return their place."""
        first, count = min(steps[0], steps[-1]), len(steps)
        place = self.placed(gates, first)
        self._project(gates, bias, first, count)
        scratch = [cupy.empty((count, self.batch, size), self.dtype) for size in (self.output_size, self.states_size)]
        hidden, states = (self.placed(one, first) for one in scratch)  # others read the states at the same time
        for one in self._program(place, hidden, states, count * self.batch):
            one.run(first)
        return place

    def _project(self, gates: Any, bias: Any, first: int, count: int) -> None:
        """Gates of some steps = bias + W x; with "skip" input each gate receives x itself."""
        own, source = gates[:count], self.arrays.source
        own[:, :, : bias.size] = bias
        x = self.at(self.placed(source, 0), first)
        for piece in self.pieces[0]:
            if piece.depth:
                self._product(self.placed(own, 0), piece, x, count * self.batch).run(0)
            else:
                own[:, :, piece.column : piece.column + piece.size] += source[first : first + count, :, : piece.size]

    def _product(self, gates: Rows, piece: Piece, source: Rows, rows: int) -> Prepared:
        """Prepare a product of some rows, which is added to the gates."""
        target, size, heads = gates.shifted(piece.column, self.itemsize), piece.size // piece.heads, None
        if piece.heads > 1:
            heads = Heads(piece.heads, size, size, size * piece.depth)
        return self.blas.times_transposed(target, source, self.weights(piece), (rows, size, piece.depth), True, heads)

    def weights(self, piece: Piece) -> Rows:
        """Return the matrix of a piece."""
        return Rows(address(self.w), piece.depth).shifted(piece.weight, self.itemsize)

    def source_of(self, name: str, gates: Rows) -> Rows:
        """Return what a product multiplies."""
        _, field, slot = self.places[name]
        rows = {"hidden_prev": self.hidden_prev, "states_prev": self.states_prev, "states": self.states, "gates": gates}
        return rows[field].shifted(slot * self.hidden_size, self.itemsize)

    def arguments(self, gates: Rows, hidden: Rows, states: Rows, terms: Any) -> tuple[int, ...]:
        """Return the arguments of the kernels of the forward pass, behind the first two."""
        arrays, inputs = self.arrays, self.arrays.inputs
        given = {
            "batch": self.batch, "units": self.hidden_size, "outputs": self.output_size, "flags": address(self.flags),
            "gates": gates.address, "gates_stride": gates.stride, "hidden_prev": self.hidden_prev.address,
            "hidden_prev_stride": self.hidden_prev.stride, "hidden": hidden.address, "hidden_stride": hidden.stride,
            "states_prev": self.states_prev.address, "states": states.address,
            "vectors": address(self.w) + self.layer.products[-1].bias * self.itemsize, "inputs": address(inputs),
            "inputs_stride": 0 if inputs is None else inputs.strides[1] // self.itemsize,
            "noises": address(arrays.noises), "step_noises": address(arrays.step_noises), "terms": address(terms),
        }  # fmt: skip
        return tuple(given[name] for name in _NAMES[2 : _NAMES.index(FIRST_OF_GRADIENT)])

    def terms(self, stages: list[Any], rows: int) -> Any:
        """Return memory for the terms of the means of any of these groups of stages; None if there are none."""
        count = max(len(means_of(self.declaration, own)) for own in stages)
        return cupy.empty((rows, count * self.hidden_size), self.dtype) if count else None

    def _program(self, gates: Rows, hidden: Rows, states: Rows, rows: int) -> list[Prepared]:
        """Prepare the products and kernels of a step, or of several at once: `rows` rows."""
        declaration, program, number = self.declaration, [], 1
        terms = self.terms([phase.forward for phase in declaration.phases], rows)
        arguments = self.arguments(gates, hidden, states, terms)
        for phase, own in enumerate(declaration.phases):
            for product in own.products:
                source = self.source_of(product.source, gates)
                program += [self._product(gates, piece, source, rows) for piece in self.pieces[number]]
                number += 1
            program.append(self.run(self.kernels(f"forward_{phase}"), self.hidden_size, rows, arguments))
            if means_of(declaration, own.forward):
                sums = self.kernels(f"means_forward_{phase}")
                program.append(self.run(sums, mean_blocks(self.hidden_size), rows, arguments))
        self._kept = terms  # while the program runs
        return program

    def run(self, function: Any, width: int, rows: int, arguments: tuple[int, ...]) -> Prepared:
        """Prepare a kernel with `width` threads for each row."""
        return prepared(function, rows * width, rows, self.batch, arguments)

    def _projection_of_units(self, gates: Rows) -> list[Prepared]:
        units = gates.shifted(gates.stride - self.hidden_size, self.itemsize)
        sizes = self.batch, self.output_size, self.hidden_size
        program = [self.blas.times_transposed(self.hidden, units, self.weights(self.projection), sizes, False)]
        if self.flags is not None:
            given = self.output_size, address(self.flags), *self.hidden_prev[:2], *self.hidden[:2]
            program.append(self.run(self.common("carry_outputs"), self.output_size, self.batch, given))
        return program

    @property
    def projection(self) -> Piece:
        """The weights of the projection; in backward they belong to the last columns of the gates' gradients."""
        product = self.layer.products[-2]
        column = self.layer.gradient_columns - self.output_size
        return Piece(column, self.output_size, product.start, -1, self.hidden_size, 1)

    def start_steps(self, count: int) -> Prepared:
        """Prepare writing the states before so many steps, after resets; those after the steps before are known."""
        (hidden, states), rows = self._earlier, count * self.batch
        given = self.batch, address(self.resets), *hidden[:2], states.address, *map(address, self.arrays.initial)
        given = (*given, self.hidden_prev.address, self.states_prev.address, self.output_size, self.states_size)
        return self.run(self.common("start_step"), self.output_size + self.states_size, rows, given)
