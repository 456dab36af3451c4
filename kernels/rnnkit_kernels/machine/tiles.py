"""Compiles the tile functions, once for each number of gates, and calls them.

They are long, so they are compiled separately, and kernels call them through a table of addresses: LLVM would optimise
them again in each kernel, which took a third of the time of a first call.
"""

import ctypes
from functools import cache, partial

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

from .amx_tile import AmxTile, configure_function, panels_at_once, release_function
from .arrays import data_pointer, view_of
from .bfloat16_tile import Bfloat16Tile
from .cache import symbol_provider
from .formats import FullPrecision, format_of, no_panels, storage_type
from .in_place import ColumnsTile, RowsTile
from .jit import DIGEST, kernel
from .matrix import matrix_pointers
from .registers import I64, VECTOR_BYTES
from .shapes import FAR, SHAPES, TAIL, max_rows, units
from .tail import TailTile
from .tile import Tile, function_type

_OF_FLOATS = FAR, TAIL
_IN_PLACE = {"rows": RowsTile, "columns": ColumnsTile}
_OF_BFLOAT16 = "bfloat16", "bfloat16scaled", "bfloat16tiles", "bfloat16scaledtiles"
_TILES = _IN_PLACE | dict.fromkeys(_OF_BFLOAT16, Bfloat16Tile)
_FUNCTIONS = len(SHAPES) + 4
# After those of the shapes: of tile registers, for one panel and for several.
REGISTERS, REGISTERS_WIDE, _CONFIGURE, _RELEASE = range(len(SHAPES), _FUNCTIONS)
_TABLE = f"rnnkit_tiles_{DIGEST}_"


@symbol_provider(_TABLE)
def _define_table(symbol, in_use=False):
    """Define the symbol of a table, unless it is defined: the addresses of the tile functions for panels of one format,
    dtype and number of gates, one per shape, then those of tile registers. For weights in place the table is empty
    until it is `in_use`: they take 0.6 CPU s to compile, and only small calls read them.

    The table exists once, even if modules are reloaded, and is never freed: machine code holds its address.
    """
    form, dtype, gates = symbol.removeprefix(_TABLE).split("_")
    with global_compiler_lock:  # as in `team`
        address = binding.address_of_symbol(symbol)
        if address is None:
            table = np.zeros(_FUNCTIONS, np.int64)
        else:
            table = np.frombuffer((ctypes.c_int64 * _FUNCTIONS).from_address(address), np.int64)
        if not table.any() and (in_use or form not in _IN_PLACE):
            _compile(no_panels(np.dtype(dtype), form), (0,) * int(gates), table)
        if address is None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(table))
            binding.add_symbol(symbol, table.ctypes.data)


@cache
def ensure_in_place_tiles(form, itemsize):
    """Compile the tiles for weights of this format in place, unless they are compiled."""
    _define_table(_symbol(form, np.dtype(f"f{itemsize}"), 1), in_use=True)


def _symbol(form, dtype, gates):
    return f"{_TABLE}{form}_{dtype}_{gates}"


def _entry(builder, panels, gates, number):
    """Return the address of a function in its table."""
    symbol = _symbol(format_of(panels).name, storage_type(panels).dtype, gates)
    table = builder.module.globals.get(symbol)
    if table is None:
        _define_table(symbol)  # before there is code that refers to it
        table = ir.GlobalVariable(builder.module, ir.ArrayType(I64, _FUNCTIONS), symbol)
    return builder.load(builder.gep(table, [I64(0), number]))


@intrinsic
def _write_addresses(typingctx, like, columns, table):
    def generate(context, builder, signature, arguments):
        panels, gates = signature.args[0], len(columns)
        form, kind = format_of(panels), storage_type(panels).dtype
        real, found = context.get_value_type(kind), {}
        for shape in SHAPES:
            tiles = TailTile if shape == TAIL else _TILES.get(form.name, Tile)
            if tiles.has_shape(gates, shape) and (shape not in _OF_FLOATS or form is FullPrecision):
                found[shape] = tiles(builder.module, form, real, kind.bitwidth, gates, shape).function()
        if form.tiles:
            for number, panels in (REGISTERS, 1), (REGISTERS_WIDE, panels_at_once(gates)):
                if number == REGISTERS or panels > 1:
                    own = AmxTile(builder.module, form, real, kind.bitwidth, gates, panels)
                    found[number] = own.function()
            found[_CONFIGURE], found[_RELEASE] = configure_function(builder.module), release_function(builder.module)
        for number, function in found.items():
            place = data_pointer(context, builder, signature.args[2], arguments[2], I64(number))
            builder.store(builder.ptrtoint(function, I64), place)
        return context.get_dummy_value()

    return types.void(like, columns, table), generate


@partial(kernel, computes=False)
def _compile(like, columns, table):
    """Compile the tile functions for such panels and as many gates as columns, and write their addresses."""
    _write_addresses(like, columns, table)


@intrinsic
def tile(typingctx, shape, c, a, rows, first, packed, words, vector, k, bias, overwrite, ahead, height, in_order):
    """C[rows, columns] = (bias if overwrite else C[rows, columns]) + A[rows - first, k] . panels[k].

    For one tile of registers, which starts at panel number `vector` of panels of so many `words`, a range of positions
    in C's row list and a range of words. A NARROW tile writes only the lanes within C's units; a FAR tile prefetches
    panels from element `ahead` on. REGISTERS in place of a shape are tile registers of `height` rows, REGISTERS_WIDE
    the same for `panels_of_registers` panels, and `in_order` says whether the rows of C follow each other.
    """
    gates = len(packed.types[3])

    def generate(context, builder, signature, arguments):
        shape, c, a, rows, first, packed, depth, vector, k, bias, overwrite, ahead, height, in_order = arguments
        _, c_type, a_type, _, _, packed_type, _, _, _, bias_type, *_ = signature.args
        panels = packed_type.types[0]
        form, words = format_of(panels), storage_type(panels)
        kind = words.dtype
        start, stop = (builder.extract_value(rows, field) for field in range(2))
        begin, end = (builder.extract_value(k, field) for field in range(2))
        data, _, units, columns = (builder.extract_value(packed, field) for field in range(4))
        lanes = I64(VECTOR_BYTES * 8 // kind.bitwidth)
        unit, panel = builder.mul(vector, lanes), builder.mul(builder.mul(depth, lanes), I64(gates))
        c_first, c_rows, ldc = matrix_pointers(context, builder, c_type, c, start, unit)
        a_first, a_rows, lda = matrix_pointers(context, builder, a_type, a, builder.sub(start, first), I64(0))
        columns = cgutils.unpack_tuple(builder, columns, gates)
        scales, array = [], data
        if form is not FullPrecision:
            array = builder.extract_value(data, 0)
        if form.in_place:
            weights = matrix_pointers(context, builder, panels, data, *form.first_of(unit))
        else:
            weights = data_pointer(context, builder, words, array, builder.mul(vector, panel)), panel
        if form.has_scales:  # addressed by the columns of C
            own = builder.extract_value(data, len(panels.types) - 1)
            first, size = view_of(context, builder, panels.types[-1], own)
            first = builder.gep(first, [builder.sub(unit, columns[0])])
            scales = [first, builder.gep(first, [builder.udiv(size, I64(2))])]
        of_registers = [height, builder.zext(in_order, I64)] if form.tiles else []
        values = [
            builder.sub(stop, start), builder.sub(end, begin), a_first, a_rows, lda, *weights, c_first, c_rows, ldc,
            data_pointer(context, builder, bias_type, bias, unit),
            builder.trunc(overwrite, ir.IntType(1)), builder.sub(units, unit), begin,
            data_pointer(context, builder, words, array, ahead), *scales, *of_registers, *columns,
        ]  # fmt: skip
        address = _entry(builder, panels, gates, shape)
        kind = function_type(form, context.get_value_type(kind), gates)
        builder.call(builder.inttoptr(address, kind.as_pointer()), values)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(i64, c, a, rows, i64, packed, i64, i64, k, bias, types.boolean, i64, i64, types.boolean), generate


@intrinsic
def configure_registers(typingctx, packed, height):
    """Give tile registers so many rows, 1 to 16, for products with these panels."""
    return types.void(packed, types.int64), lambda context, builder, signature, arguments: _call_of_registers(
        context, builder, signature.args[0], _CONFIGURE, arguments[1:]
    )


@intrinsic
def release_registers(typingctx, packed):
    """Set tile registers to their initial state."""
    return types.void(packed), lambda context, builder, signature, arguments: _call_of_registers(
        context, builder, signature.args[0], _RELEASE, []
    )


def _call_of_registers(context, builder, packed, number, arguments):
    kind = ir.FunctionType(ir.VoidType(), [I64] * len(arguments))
    address = _entry(builder, packed.types[0], len(packed.types[3]), I64(number))
    builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)
    return context.get_dummy_value()


def _of_tile(number):
    """Make a kernel function that returns `number(gates, shape)` of a tile of len(columns) gates."""

    @intrinsic
    def of_tile(typingctx, columns, shape):
        def generate(context, builder, signature, arguments):
            *others, found = (I64(number(len(columns), one)) for one in SHAPES)
            for one, value in zip(SHAPES, others, strict=False):
                found = builder.select(builder.icmp_signed("==", arguments[1], I64(one)), value, found)
            return found

        return types.int64(columns, types.int64), generate

    return of_tile


units_of_tile, rows_of_tile, panels_of_registers = map(_of_tile, (units, max_rows, panels_at_once))
