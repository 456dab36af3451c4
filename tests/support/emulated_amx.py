"""Runs a script on emulated tile registers (AMX): `python emulated_amx.py LIBRARY COUNTS SCRIPT
ARGUMENTS`.

LIBRARY is compiled from `emulated_amx.c`. The machine code calls its functions where it would have the instructions.
The file COUNTS gets how many products there were.
Set NUMBA_CACHE_DIR to a folder of its own: this code must not be loaded without the library.
"""

import ctypes
import json
import runpy
import sys
from pathlib import Path

from llvmlite import binding, ir
from numba.core import cgutils

from rnnkit_kernels.machine import amx


def emit(builder, name, *arguments):
    values = [amx.I8(one) if isinstance(one, int) else one for one in arguments]
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"emulated_{name}"), values)


def main():
    library, counts, *sys.argv = sys.argv[1:]
    binding.load_library_permanently(library)
    amx.emit, amx.has_tiles = emit, lambda: True
    runpy.run_path(sys.argv[0], run_name="__main__")
    products = ("tdpbf16ps", "tdpbusd")
    made = {name: ctypes.c_long.in_dll(ctypes.CDLL(library), f"made_{name}").value for name in products}
    Path(counts).write_text(json.dumps(made))


if __name__ == "__main__":
    main()
