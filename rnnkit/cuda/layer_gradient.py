"""Backward of one pseudo-layer on a GPU, from its last step to its first."""

from __future__ import annotations

from typing import Any, NamedTuple

import cupy

from rnnkit.cuda.blas import Heads, Prepared, Rows
from rnnkit.cuda.graphs import run_steps
from rnnkit.cuda.kernels import address
from rnnkit.cuda.layer import LayerCall, Piece
from rnnkit.cuda.source import means_of
from rnnkit_kernels.cells.declaration import mean_blocks


class Gradients(NamedTuple):
    """What the gradient of a pseudo-layer reads and writes, on the GPU."""

    dy: Any  # of its output, (T, N, D*P), dense; None: zeros
    dhidden: Any  # (N, P): that of the state after the last step, and at the end of the one before the first
    dstates: Any  # (N, S*H), likewise; None: no states
    dx: Any  # of its input, (T, N, ...), is written, or added to if `adds_dx`; None: not wanted
    dw: Any  # of the flat weights, is added to
    dinputs: Any  # of the side inputs, (T, N, ...), zeros, is written; None: none
    of_resets: tuple[Any, Any]  # (N, P) and (N, S*H): of the states after resets, are added to
    adds_dx: bool


def run_backward(call: LayerCall, gates: Any, bias: Any, gradients: Gradients) -> None:
    """Run all steps backward. `gates` is (T, N, columns) of the forward; None: they are computed again."""
    columns = call.layer.gradient_columns + (call.layer.columns if gates is None else 0)
    chunks = [*call.chunks(columns)]
    own = _LayerGradient(call, gradients, max(map(len, chunks), default=0))
    scratch = None
    if gates is None:
        scratch = cupy.empty((own.longest, call.batch, call.layer.columns), call.dtype)
    if call.resets is not None:
        call.start_steps(call.seq_len).run(0)
    for steps in reversed(chunks):
        place = call.placed(gates, 0) if gates is not None else call.again(scratch, bias, steps)
        own.run(place, steps)
        own.add_products(place, min(steps[0], steps[-1]), len(steps))
    own.add_vectors()


class _LayerGradient:
    def __init__(self, call: LayerCall, gradients: Gradients, longest: int) -> None:
        self._call, self._gradients, self._size, self.longest = call, gradients, call.itemsize, longest
        self._dgates = cupy.empty((longest, call.batch, call.layer.gradient_columns), call.dtype)
        self._dunits = cupy.empty((call.batch, call.hidden_size), call.dtype)
        self._ones = cupy.empty((longest * call.batch, 1), call.dtype)
        self._ones.fill(1)
        vectors = len(call.declaration.vectors)
        self._dvectors = cupy.zeros((call.batch, vectors, call.hidden_size), call.dtype) if vectors else None
        self._terms = call.terms([phase.gradient for phase in call.declaration.phases], call.batch)

    def run(self, gates: Rows, steps: range) -> None:
        """Compute the gradients of the gates of these steps, the last one first."""
        program = self._program(gates, self._call.placed(self._dgates, min(steps[0], steps[-1])))
        run_steps(program, steps[::-1], self._call.blas)

    def _program(self, gates: Rows, dgates: Rows) -> list[Prepared]:
        """Prepare the kernels and products of a step."""
        call, gradients = self._call, self._gradients
        arguments, program = self._arguments(gates, dgates), []
        if call.projected:
            program.append(call.run(call.gradients("output_gradient"), call.output_size, call.batch, arguments))
            program.append(self._through_projection(dgates))
        phases, number = call.declaration.phases, len(call.declaration.products)
        for phase, own in reversed([*enumerate(phases)]):
            if own.gradient or own is phases[-1]:
                program.append(call.run(call.gradients(f"gradient_{phase}"), call.hidden_size, call.batch, arguments))
            if means_of(call.declaration, own.gradient):
                sums = call.gradients(f"means_gradient_{phase}")
                program.append(call.run(sums, mean_blocks(call.hidden_size), call.batch, arguments))
            number -= len(own.products)
            program += self._through_products(own, number, dgates)
        if call.resets is not None:
            given = address(call.resets), address(gradients.dhidden), address(gradients.dstates)
            given = (*given, *map(address, gradients.of_resets), call.output_size, call.states_size)
            program.append(call.run(call.common("end_step"), call.output_size + call.states_size, call.batch, given))
        return program

    def _arguments(self, gates: Rows, dgates: Rows) -> tuple[int, ...]:
        """Return the arguments of the kernels of the gradient, behind the first two."""
        call, gradients, dy, dinputs = self._call, self._gradients, self._gradients.dy, self._gradients.dinputs
        first = call.layer.outputs.start * self._size
        given = (
            dgates.address, dgates.stride, address(self._dunits), address(gradients.dhidden),
            address(gradients.dstates), address(self._dvectors), address(dinputs),
            0 if dinputs is None else dinputs.shape[2], 0 if dy is None else address(dy) + first,
            0 if dy is None else dy.shape[2],
        )  # fmt: skip
        return (*call.arguments(gates, call.hidden, call.states, self._terms), *given)

    def _through_projection(self, dgates: Rows) -> Prepared:
        """The gradient of the units, from that of the output, which stands in the last columns of the gates'."""
        call, piece = self._call, self._call.projection
        total, target = dgates.shifted(piece.column, self._size), Rows(address(self._dunits), call.hidden_size)
        return call.blas.times(
            target, total, call.weights(piece), (call.batch, call.hidden_size, call.output_size), False
        )

    def _through_products(self, phase: Any, number: int, dgates: Rows) -> list[Prepared]:
        """The gradients of what the products of a phase multiply, of which `number` is the first."""
        call, program = self._call, []
        for offset, product in enumerate(phase.products):
            adds = call.declaration.adds_to_source(product) or product.source == "h_prev"  # which has been cleared
            target = self._gradient_of(product.source, dgates)
            for place, piece in enumerate(call.pieces[number + offset]):
                program.append(self._back(target, piece, dgates, adds or place > 0, call.batch))
        return program

    def _gradient_of(self, name: str, dgates: Rows) -> Rows:
        call, gradients = self._call, self._gradients
        _, field, slot = call.places[f"d{name}"]
        hidden, states = address(gradients.dhidden), address(gradients.dstates)
        found = {"hidden": Rows(hidden, call.output_size), "states": Rows(states, call.states_size), "gates": dgates}
        return found[field].shifted(slot * call.hidden_size, self._size)

    def _back(self, target: Rows, piece: Piece, dgates: Rows, adds: bool, rows: int) -> Prepared:
        """target = the gates' gradients of a piece times its weights, added if `adds`."""
        call, size = self._call, piece.size // piece.heads
        own = dgates.shifted(piece.column, self._size)
        heads = None if piece.heads == 1 else Heads(piece.heads, size, size, size * piece.depth)
        return call.blas.times(target, own, call.weights(piece), (rows, piece.depth, size), adds, heads)

    # Of all steps of a chunk

    def add_products(self, gates: Rows, first: int, count: int) -> None:
        """Write the gradient of the input of some steps, and add to those of the weights."""
        call, products = self._call, self._call.declaration.products
        dgates = call.placed(self._dgates, 0)
        self._input_gradient(dgates, first, count)
        sources = [call.placed(call.arrays.source, 0), *(call.source_of(one.source, gates) for one in products[1:])]
        pieces = [(piece, own) for own, group in zip(sources, call.pieces, strict=True) for piece in group]
        if call.projected:
            pieces.append((call.projection, gates.shifted(gates.stride - call.hidden_size, self._size)))
        for piece, multiplied in pieces:
            self._add_weights(piece, dgates, call.at(multiplied, first), count * call.batch)

    def _add_weights(self, piece: Piece, dgates: Rows, multiplied: Rows, rows: int) -> None:
        call, size, dw = self._call, piece.size // piece.heads, Rows(address(self._gradients.dw), piece.depth)
        own, target = dgates.shifted(piece.column, self._size), dw.shifted(piece.weight, self._size)
        heads = None if piece.heads == 1 else Heads(piece.heads, size * piece.depth, size, size)
        call.blas.transposed_times(target, own, multiplied, (size, piece.depth, rows), True, heads).run(0)
        if piece.bias >= 0:
            target, ones = dw._replace(stride=1).shifted(piece.bias, self._size), Rows(address(self._ones), 1)
            call.blas.transposed_times(target, own, ones, (piece.size, 1, rows), True).run(0)

    def _input_gradient(self, dgates: Rows, first: int, count: int) -> None:
        call, dx, adds = self._call, self._gradients.dx, self._gradients.adds_dx
        if dx is None:
            return
        part, target = dx[first : first + count], call.at(call.placed(dx, 0), first)
        if not call.pieces[0] and not adds:
            part[...] = 0
        for number, piece in enumerate(call.pieces[0]):
            adds = self._gradients.adds_dx or number > 0
            if piece.depth:
                self._back(target, piece, dgates, adds, count * call.batch).run(0)
                continue
            own = self._dgates[:count, :, piece.column : piece.column + piece.size]
            if adds:
                part[:, :, : piece.size] += own
            else:
                part[:, :, : piece.size] = own

    def add_vectors(self) -> None:
        """Add the gradients of vectors and scalars, summed over the sequences."""
        if self._dvectors is None:
            return
        call, dw = self._call, self._gradients.dw
        vectors, scalars = len(call.declaration.vectors), len(call.declaration.scalars)
        start, total = call.layer.products[-1].bias, self._dvectors.sum(axis=0)
        stop = start + (vectors - scalars) * call.hidden_size
        dw[start:stop] += total[: vectors - scalars].reshape(-1)
        if scalars:
            dw[stop : stop + scalars] += total[vectors - scalars :].sum(axis=1)
