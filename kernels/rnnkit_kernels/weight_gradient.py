"""The gradients of the weights, dW = dgates^T . source, summed over many rows; `source` is what W multiplied."""

from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic

from .machine.arrays import part
from .machine.formats import OF_GRADIENTS, form_of, storage, words_of
from .machine.gemm import Packed, depth_block, product_of_rows
from .machine.jit import inner
from .machine.matrix import Matrix, Range, add, clear, copy, row_part, shifted
from .machine.packing import pack_rows, panel_size, panels_part, vectors_of
from .machine.partition import next_block, num_claims, partition
from .machine.registers import I64, fma, not_inlined, panel_lanes
from .machine.small import small_of
from .machine.tiles import ensure_in_place_tiles
from .machine.transpose import transpose
from .products import packed_part

# Columns that a thread transposes at once: 400 KB, which fit into L2 with the panels of a wide tile; whole tiles of 6
COLUMN_GRAIN = 96
_ORDINARY = 2.0**-26  # products with gates' gradients, which are 0 or at least SMALL, are normal numbers
PADDING = 16  # elements, a cache line of float32: with a power of two a square's lines would share a cache set


class Term(NamedTuple):
    """The backward counterpart of a product of the forward pass; it covers contiguous columns of the gates' gradients.

    Column first + i belongs to row weight.rows[i] of a weight matrix, and to the same element of its bias. An array is
    empty if there is no such product or matrix. The term of a layer's vectors has only the offset of the bias, and
    covers no columns.

    With several heads the columns come in `blocks` of equal size, one head after the other. A row of `source` has
    `stride` numbers for each head, in the same order; so have the panels.
    """

    first: int
    weight: Matrix
    bias: int  # where the bias starts, -1 without one
    source: Matrix  # what the weights multiplied
    packed: Packed  # the rows of `weight`
    block: np.ndarray  # buffer for a block of rows of `source` as panels
    blocks: int
    heads: int


def in_lines(count):
    """Round a number of elements up to whole cache lines."""
    return (count + PADDING - 1) // PADDING * PADDING


def scratch_size(columns, threads, rows):
    """Return the scratch elements of `add_weight_gradients`, for so many rows at a time."""
    return in_lines(columns + threads) + threads * COLUMN_GRAIN * (in_lines(rows) + PADDING)


def offsets_of(products, columns, threads, itemsize, rows, in_place, precision=None):
    """Return where the panels of each product's weights, those of its source, and the scratch start, and where the
    scratch ends. Weights and sources that are read in place have no panels. `precision` is that of forward."""
    block, form = min(depth_block(itemsize), rows), form_of(OF_GRADIENTS[precision])
    sizes = [p.blocks * panel_size(form.words(p.rows.size // p.blocks), p.depth, 1, itemsize) for p in products]
    sizes += [p.heads * panel_size(form.words(block), p.depth, 1, itemsize) if p.rows.size else 0 for p in products]
    if in_place:
        ensure_in_place_tiles("rows", itemsize)
        sizes = [0] * len(sizes)
    sizes += [scratch_size(columns, threads, block)]
    return np.array(list(accumulate(sizes, initial=0)), np.int64)


whole_lines = inner(in_lines)


@inner
def _term(product, place, source, w, buffer, offsets, thread_id):
    count, depth, rows, one = (offsets.size - 2) // 2, product.depth, product.rows.size, (0,)
    weight = Matrix(w, product.rows, product.start, depth)
    packed = packed_part(buffer, offsets[place], offsets[place + 1], rows, depth, one, thread_id)
    place += count
    block = packed_part(buffer, offsets[place], offsets[place + 1], 0, depth, one, thread_id).panels
    return Term(product.first, weight, product.bias, source, packed, block, product.blocks, product.heads)


@inner
def block_of(term, number):
    """Return the rows of the weights that belong to a block of columns."""
    weight, count = term.weight, term.weight.rows.size // term.blocks
    return Matrix(weight.data, part(weight.rows, number * count, (number + 1) * count), weight.start, weight.stride)


@inner
def packed_block(term, number):
    """Return the packed weights that belong to a block of columns."""
    panels, one = term.packed.panels, (0,)
    own = _share(panels, number, term.blocks)
    return Packed(own, term.weight.rows.size // term.blocks, term.weight.stride, one)


@inner
def _share(panels, number, count):
    """Return one of `count` equal parts of panels."""
    size = storage(panels).size // count
    return panels_part(panels, number * size, (number + 1) * size)


@intrinsic
def terms_of(typingctx, products, sources, w, buffer, offsets, thread_id):
    """Return a tuple of the terms of the forward pass's products, which multiplied `sources`, for a thread.

    `_term` is compiled once for all of them: a copy for each takes a tenth more time to compile the gradient's kernel.
    """
    function = types.Dispatcher(_term)
    arguments = products.dtype, types.int64, sources.dtype, w, buffer, offsets, types.int64
    own = function.get_call_type(typingctx, arguments, {})
    result = types.UniTuple(own.return_type, len(products))

    def generate(context, builder, signature, arguments):
        products, sources, *others = arguments
        make, items = context.get_function(function, own), []
        for place in range(len(result)):
            product, source = (builder.extract_value(given, place) for given in (products, sources))
            items.append(make(builder, [product, I64(place), source, *others]))
        return context.make_tuple(builder, result, items)

    return result(products, sources, w, buffer, offsets, types.int64), generate


@inner
def pack_terms(terms, team):
    """Pack all weights for the backward products."""
    not_inlined()
    for term in terms:
        for number in range(term.blocks if storage(term.packed.panels).size > 0 else 0):
            count = term.weight.rows.size // term.blocks
            panels, rows = _share(term.packed.panels, number, term.blocks), number * count
            pack_rows(panels, term.weight, Range(rows, rows + count), term.weight.stride, team)


@inner
def pack_sources(terms, rows, scratch, num_columns, team):
    """Pack a block of rows of each term's source, and let each thread mark whether its share has small numbers: behind
    the sums in the scratch of `add_weight_gradients`."""
    count, ordinary, found = rows.stop - rows.start, scratch.dtype.type(_ORDINARY), False
    own = partition(count, team.thread_id, team.size)
    for term in terms:
        units, is_packed = term.weight.stride, storage(term.block).size > 0
        for head in range(term.heads if is_packed else 0):
            panels = _share(term.block, head, term.heads)
            pack_rows(panels, shifted(term.source, head * units), rows, units, team)
            found |= _has_small_panels(panels, count, units, ordinary, team)
        if not (is_packed and _are_floats(term.block)):
            found |= _has_small_rows(term, Range(rows.start + own.start, rows.start + own.stop), ordinary)
    scratch[num_columns + team.thread_id] = 1 if found else 0


@inner
def _are_floats(panels):
    """Return whether the words of panels are numbers, in kernels as a constant."""
    return words_of(panels, 2) == 2


@inner
def _has_small_panels(panels, depth, units, ordinary, team):
    """Return whether a number in the panels that this thread packed is below `ordinary`, but not 0."""
    not_inlined()
    words, vectors = storage(panels), partition(vectors_of(storage(panels), units), team.thread_id, team.size)
    size = depth * panel_lanes(words)
    return _are_floats(panels) and _has_small(part(words, vectors.start * size, vectors.stop * size), ordinary)


@inner
def _has_small_rows(term, rows, ordinary):
    """Return whether a number that the weights multiplied in these rows is below `ordinary`, but not 0."""
    not_inlined()
    found, columns = False, Range(0, term.heads * term.weight.stride)
    for row in range(rows.start, rows.stop):
        found |= _has_small(row_part(term.source, row, columns), ordinary)
    return found


@inner
def _has_small(values, ordinary):
    found = False
    for j in range(values.size):
        found |= (abs(values[j]) < ordinary) & (values[j] != 0)
    return found


@inner
def _lift_of(marks):
    """Return what is added to dw before the products of some rows, and subtracted after them: 0, or a number that makes
    no difference except that sums of small products do not become subnormal, and stay so in all rows that follow."""
    lift = small_of(marks)
    for i in range(marks.size):
        if marks[i] > 0:
            return lift
    return lift * 0


@inner
def _add_number(dw, columns, units, number, is_new):
    """Add a number to rows of dw, or write it if dw is new."""
    not_inlined()
    for column in range(columns.start, columns.stop):
        own = row_part(dw, column, Range(0, units))
        for j in range(own.size):
            own[j] = number if is_new else own[j] + number


@inner
def _sum_rows(sums, dgates, rows, columns):
    """sums[columns] = the sum over the rows, in order."""
    total = part(sums, columns.start, columns.stop)
    clear(total)
    for row in range(rows.start, rows.stop):
        add(total, row_part(dgates, row, columns))


@inner
def _are_summed(terms, columns):
    """Return whether a term covers some of these columns."""
    for term in terms:
        if term.first < columns.stop and columns.start < term.first + term.weight.rows.size:
            return True
    return False


@inner
def _are_multiplied(terms, columns):
    """Return whether a term with a matrix covers some of these columns."""
    for term in terms:
        own = term.first < columns.stop and columns.start < term.first + term.weight.rows.size
        if own and term.weight.stride > 0:
            return True
    return False


@inner
def _add_row(dw, dgates_t, columns, source, is_new):
    """Do the work of `add_weight_gradients` for a single row, where each number of dw is one product. Writing dw in the
    order of memory takes two thirds of the time of tiles (H = 512, N = 1)."""
    not_inlined()
    for column in range(columns.start, columns.stop):
        own, zero = row_part(dw, column, Range(0, source.size)), source.dtype.type(0)
        value = row_part(dgates_t, column, Range(0, 1))[0]
        if is_new:
            for j in range(own.size):
                own[j] = fma(value, source[j], zero)
        else:
            for j in range(own.size):
                own[j] = fma(value, source[j], own[j])


@inner
def add_weight_gradients(terms, dw, is_new, dgates, rows, scratch, zeros, numbers, team):
    """Add the contribution of the rows, whose sources are packed, to dw, or write it if dw is new. Each column of
    `dgates` is handled by one thread.

    `numbers` lists all columns; `scratch` holds their sums, the marks of the threads, and a block for each of these.
    """
    not_inlined()
    num_rows, one = rows.stop - rows.start, (0,)
    stride, lift = whole_lines(num_rows) + PADDING, _lift_of(part(scratch, numbers.size, numbers.size + team.size))
    own = whole_lines(numbers.size + team.size) + team.thread_id * COLUMN_GRAIN * stride
    for claim in range(num_claims(numbers.size, COLUMN_GRAIN, team)):
        columns = next_block(claim, numbers.size, COLUMN_GRAIN, team)
        if not _are_summed(terms, columns):  # for example slots that are saved for the gradient
            continue
        if _are_multiplied(terms, columns):
            transpose(scratch, own, stride, dgates, rows, columns)
        _sum_rows(scratch, dgates, rows, columns)
        for term in terms:
            weight = term.weight
            start, stop = max(columns.start - term.first, 0), min(columns.stop - term.first, weight.rows.size)
            dgates_t = Matrix(scratch, numbers, own + (term.first - columns.start) * stride, stride)
            count, block_start = weight.rows.size // term.blocks, start
            while block_start < stop and weight.stride > 0:
                block = block_start // count
                block_stop = min(stop, (block + 1) * count)
                head, units = block % term.heads, weight.stride
                own_dw, source = Matrix(dw, weight.rows, weight.start, units), shifted(term.source, head * units)
                own_columns, overwrites = Range(block_start, block_stop), is_new and lift == 0
                if lift > 0:
                    _add_number(own_dw, own_columns, units, lift, is_new)
                if num_rows == 1 and _are_floats(term.block):
                    only = row_part(source, rows.start, Range(0, units))
                    _add_row(own_dw, dgates_t, own_columns, only, overwrites)
                else:
                    panels = _share(term.block, head, term.heads)
                    listed = part(source.rows, rows.start, rows.stop)
                    product_of_rows(
                        own_dw,
                        dgates_t,
                        own_columns,
                        Packed(panels, num_rows, units, one),
                        Matrix(source.data, listed, source.start, source.stride),
                        Range(0, vectors_of(scratch, units)),
                        zeros,
                        overwrites,
                        False,
                    )
                if lift > 0:
                    _add_number(own_dw, own_columns, units, -lift, False)
                block_start = block_stop
            if term.bias >= 0:
                for i in range(start, stop):
                    place, total = term.bias + weight.rows[i], scratch[term.first + i]
                    dw[place] = total if is_new else dw[place] + total


@inner
def add_vector_gradients(term, dw, is_new, dvectors, hidden_size, scalars, team):
    """Add the gradients of vectors and of so many scalars to dw, or write them if dw is new: the sums over the
    sequences, in order, and for a scalar then over the units. Clears the sums of the sequences."""
    count, size = dvectors.data.size // dvectors.stride, dvectors.stride - scalars * hidden_size
    if count == 0:  # no sequences
        return
    own = partition(size, team.thread_id, team.size)
    _sum_sequences(dvectors, count, own)
    sums, target = part(dvectors.data, own.start, own.stop), part(dw, term.bias + own.start, term.bias + own.stop)
    if is_new:
        copy(target, sums)
    else:
        add(target, sums)
    clear(sums)
    for scalar in range(scalars if team.thread_id == 0 else 0):
        own = Range(size + scalar * hidden_size, size + (scalar + 1) * hidden_size)
        _sum_sequences(dvectors, count, own)
        place, total = term.bias + size + scalar, dvectors.data[own.start]
        for column in range(own.start + 1, own.stop):
            total += dvectors.data[column]
        dw[place] = total if is_new else dw[place] + total
        clear(part(dvectors.data, own.start, own.stop))


@inner
def _sum_sequences(dvectors, count, columns):
    """Sum these columns of all sequences into those of the first; clear those of the others."""
    total = part(dvectors.data, columns.start, columns.stop)
    for number in range(1, count):
        first = number * dvectors.stride
        own = part(dvectors.data, first + columns.start, first + columns.stop)
        add(total, own)
        clear(own)


@inner
def clear_vector_gradients(dvectors, team):
    """Clear the sums of all sequences."""
    own = partition(dvectors.data.size, team.thread_id, team.size)
    clear(part(dvectors.data, own.start, own.stop))
