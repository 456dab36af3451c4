"""A team that runs on the threads of an OpenMP runtime that the process has anyway.

Such threads spin for a while after each region of their own, for example after each of PyTorch's products, and compete
with our helpers for cores. In a region that we open they do our work instead.
"""

import ctypes

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .arrays import FlatArray, view
from .jit import kernel
from .registers import I32, I64
from .sync import AWAKE_SPINS, CLOSED, NUMBER, SPIN_LIMIT, TICKET, TICKET_STEP, sync_size, take_part
from .team import WORK_PER_SPIN

_THREAD_NUMBER, _CALLER, _SYNC, _SIZE, _KNOWN, _SPINS, _FIELDS = range(7)
"""Fields passed to the threads of a region: the functions that return a thread's number and that the first thread
calls, and the arguments of `take_part` for the others."""


def _emit_others_part(context, module, kind):
    """Emit the function of all threads but the first, by Numba's convention, so that it can call compiled functions."""
    function = ir.Function(module, ir.FunctionType(I32, [*kind.args[:2], I64.as_pointer()]), "others_part")
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block())
    sync, size, known, spins = (
        builder.load(builder.gep(function.args[2], [I64(field)])) for field in (_SYNC, _SIZE, _KNOWN, _SPINS)
    )
    numbers, target = FlatArray(types.int64), types.Dispatcher(take_part)
    array = view(context, builder, numbers, builder.inttoptr(sync, I64.as_pointer()), size)
    own = target.get_call_type(context.typing_context, (numbers, types.int64, types.int64, types.int64), {})
    last = builder.add(known, I64(1))
    context.get_function(target, own)(builder, [array, known, last, spins])
    builder.ret(I32(0))
    return function


@intrinsic
def _entry(typingctx):
    """Return the address of the C function that all threads of a region run."""

    def generate(context, builder, signature, arguments):
        module, kind = builder.module, builder.function.function_type
        others = _emit_others_part(context, module, kind)
        byte = ir.IntType(8).as_pointer()
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [byte]), "region")
        function.linkage = "internal"
        inside = ir.IRBuilder(function.append_basic_block())
        fields = inside.bitcast(function.args[0], I64.as_pointer())

        def call(field, result):
            address = inside.load(inside.gep(fields, [I64(field)]))
            return inside.call(inside.inttoptr(address, ir.FunctionType(result, []).as_pointer()), [])

        number = call(_THREAD_NUMBER, I32)
        with inside.if_else(inside.icmp_signed("==", number, I32(0))) as (first, rest):
            with first:
                call(_CALLER, ir.VoidType())
            with rest:
                unused = [inside.alloca(argument.pointee) for argument in kind.args[:2]]
                inside.call(others, [*unused, fields])
        inside.ret_void()
        return builder.ptrtoint(function, I64)

    return types.int64(), generate


@kernel
def _region_entry():
    return _entry()


class OpenMPTeam:
    """The threads of a runtime, used by one caller at a time.

    Parameters
    ----------
    library : ctypes.CDLL
        The runtime, with GNU's entry points: libgomp, or another one that has them, too.
    size : int
        Number of threads, the caller among them.
    """

    def __init__(self, library, size):
        self._size, self._sync, self._number = size, np.zeros(sync_size(size), np.int64), 0
        self._parallel = library.GOMP_parallel
        self._parallel.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
        self._parallel.restype = None
        self._callback = ctypes.CFUNCTYPE(None)(self._call)
        self._call_now = self._error = None
        self._done = False
        addresses = [ctypes.cast(one, ctypes.c_void_p).value for one in (library.omp_get_thread_num, self._callback)]
        self._fields = np.array([*addresses, self._sync.ctypes.data, self._sync.size, 0, AWAKE_SPINS], np.int64)
        self._entry = _region_entry()
        assert len(self._fields) == _FIELDS

    def is_awake(self, work):
        """Return False: opening a region takes longer than brief work."""
        return False

    def run(self, kernel, work, arguments):
        """Run the kernel on all threads that arrive; one caller at a time."""
        self._number = number = self._number + 1
        self._sync[NUMBER], self._sync[SPIN_LIMIT] = number, work // WORK_PER_SPIN
        self._fields[_KNOWN] = number - 1
        self._call_now, self._error, self._done = (kernel, arguments), None, False
        self._parallel(self._entry, self._fields.ctypes.data, self._size, 0)
        if not self._done:  # without an error: a signal handler raised before `_call` began, which ctypes swallowed
            error, self._error = self._error or KeyboardInterrupt(), None
            raise error

    def _call(self):
        """Run the kernel as the first thread of a region; `run` raises its error when the region has ended."""
        kernel, arguments = self._call_now
        closed = self._number * TICKET_STEP + CLOSED
        try:
            kernel(*arguments, 0, self._size, self._sync)
            self._done = True
        except BaseException as error:
            self._error = error
        finally:
            self._call_now = None
            if self._sync[TICKET] < closed:  # the kernel handed out no tickets: nobody may wait for one
                self._sync[TICKET] = closed
