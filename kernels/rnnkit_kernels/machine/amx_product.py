"""The product on tile registers (`amx_tile`): all rows, for a range of panels."""

from numba.extending import overload

from .amx import TILE_ROWS, TILE_WORDS
from .formats import format_of, storage
from .jit import OPTIONS, inner
from .matrix import Range
from .partition import partition
from .registers import not_inlined, panel_lanes
from .tiles import (
    REGISTERS,
    REGISTERS_WIDE,
    configure_registers,
    panels_of_registers,
    release_registers,
    tile,
)


def uses_registers(panels, words, count):
    """Return whether a product of so many words and rows runs on tile registers."""


@overload(uses_registers, jit_options=OPTIONS)
def _uses_registers(panels, words, count):
    form = format_of(panels)
    if not form.tiles:
        return lambda panels, words, count: False
    least = form.least_rows
    return lambda panels, words, count: count >= least and words > 0 and words % TILE_WORDS == 0


def product_by_registers(c, a, rows, packed, words, vectors, bias, overwrite, reverse_panels):
    """Compute `gemm.product` on tile registers, for rows of A that are converted."""


@overload(product_by_registers, jit_options=OPTIONS)
def _product_by_registers(c, a, rows, packed, words, vectors, bias, overwrite, reverse_panels):
    if not format_of(packed.types[0]).tiles:
        return lambda c, a, rows, packed, words, vectors, bias, overwrite, reverse_panels: None
    return _product.py_func


@inner
def tiles_of(count):
    """Return the number of tiles of rows, each of up to two registers, and the rows of a register."""
    tiles = (count + 2 * TILE_ROWS - 1) // (2 * TILE_ROWS)
    most = (count + tiles - 1) // tiles
    return tiles, most if most <= TILE_ROWS else (most + 1) // 2


@inner
def _are_in_order(numbers, positions):
    """Return whether the row numbers at these positions follow each other."""
    first, differences = numbers[positions.start], 0
    for i in range(positions.stop - positions.start):
        differences |= numbers[positions.start + i] - first - i
    return differences == 0


@inner
def _product(c, a, rows, packed, words, vectors, bias, overwrite, reverse_panels):
    not_inlined()
    count = rows.stop - rows.start
    tiles, height = tiles_of(count)
    configure_registers(packed, height)
    in_order, whole = _are_in_order(c.rows, rows), packed.units // panel_lanes(storage(packed.panels))
    at_once = panels_of_registers(packed.columns, REGISTERS)
    groups = (vectors.stop - vectors.start + at_once - 1) // at_once
    for i in range(groups):
        first = vectors.start + (groups - 1 - i if reverse_panels else i) * at_once
        last, shape, step = min(first + at_once, vectors.stop), REGISTERS, 1
        if 1 < at_once == last - first and last <= whole:
            shape, step = REGISTERS_WIDE, at_once
        for vector in range(first, last, step):
            for number in range(tiles):
                own = partition(count, number, tiles)
                at = Range(rows.start + own.start, rows.start + own.stop)
                k = Range(0, words)
                tile(shape, c, a, at, rows.start, packed, words, vector, k, bias, overwrite, 0, height, in_order)
    release_registers(packed)
