"""The tile registers of x86 CPUs (AMX): permission to use them, their instructions, and their configuration.

A tile register holds up to 16 rows of 16 words. Registers 0 to 3 hold sums, 4 and 5 rows of A, 6 and 7 words of the
panels. Linux lets a process use them only after it has asked (Documentation/arch/x86/xstate.rst of Linux); its threads
and forks inherit the permission. A process with a small alternative signal stack is refused, and one that has asked
cannot set such a stack up any more: so this asks when tile registers are first wanted, not on import.
"""

import ctypes
import sys
from functools import cache

from llvmlite import ir
from numba.core import cgutils

from .registers import FEATURES, I64, VECTOR_BYTES

I8 = ir.IntType(8)
TILE_ROWS = TILE_WORDS = 16
REGISTERS_OF_A, REGISTERS_OF_PANELS = (4, 5), (6, 7)
_NUMBER = 8  # of tile registers
_FEATURES = {"amx-tile", "amx-int8", "amx-bf16", "avx512vnni"}  # LLVM's names; the last is for products of one row
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # Linux: asm/unistd_64.h, asm/prctl.h


@cache
def has_tiles():
    """Return whether the CPU has tile registers, and this process may use them; the first call asks Linux."""
    if sys.platform != "linux" or VECTOR_BYTES != 64 or not _FEATURES <= FEATURES:
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


def emit(builder, name, *arguments):
    """Emit a tile instruction, by LLVM's name of it; ints are numbers of tile registers."""
    values = [I8(one) if isinstance(one, int) else one for one in arguments]
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), values)


def emit_configuration(builder, rows):
    """Configure the tile registers: those of A and of sums have so many rows, 1 to 16. All are set to zero."""
    data = b"".join(map(_configuration, range(TILE_ROWS + 1)))
    table = builder.module.globals.get("rnnkit_tile_configurations")
    if table is None:
        kind = ir.ArrayType(I8, len(data))
        table = ir.GlobalVariable(builder.module, kind, "rnnkit_tile_configurations")
        table.linkage, table.global_constant, table.align = "internal", True, 64
        table.initializer = ir.Constant(kind, bytearray(data))
    emit(builder, "ldtilecfg", builder.gep(table, [I64(0), builder.mul(rows, I64(64))]))


def _configuration(rows):
    """Return the 64 bytes that ldtilecfg reads: the palette, then the bytes of a row of each register, then its rows
    (Intel 64 Software Developer's Manual, volume 1, chapter 18)."""
    data = bytearray(64)
    data[0] = 1
    for register in range(_NUMBER):
        data[16 + 2 * register] = 4 * TILE_WORDS
        data[48 + register] = TILE_ROWS if register in REGISTERS_OF_PANELS else rows
    return bytes(data)
