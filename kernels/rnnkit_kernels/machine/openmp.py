"""A thread pool on the threads of an OpenMP runtime that the process has anyway.

Such threads spin for a while after each region of their own, for example after each of PyTorch's products, and compete
with our workers for cores. In a region that we open they do our work instead.
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
from .thread_pool import WORK_PER_SPIN

_SYNC, _SIZE, _KNOWN, _SPINS, _CLOSED, _THREAD_NUMBER, _ENSURE, _CALL, _RELEASE, _DECREF, _FETCH = range(11)
_KERNEL, _ARGUMENTS, _DONE, _ERROR, _FIELDS = 11, 12, 13, 14, 17
"""Fields passed to the threads of a region: the arguments of `take_part` for all but the first, and the ticket that
closes the call; the address of the runtime's function that returns a thread's number, and those of Python's functions
`_PYTHON`; the call of the first thread, whether it has returned, and the three parts of an error."""
_PYTHON = "PyGILState_Ensure", "PyObject_CallObject", "PyGILState_Release", "Py_DecRef", "PyErr_Fetch"


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


def _emit_callers_part(builder, fields, call):
    """Emit the call of the kernel, which is a function in C, by the first thread.

    No Python code runs in a region: in it the handler of a signal might raise an error, which would be lost.
    """

    def place(field):
        return builder.gep(fields, [I64(field)])

    gil = call(_ENSURE, I32)
    result = call(_CALL, I64, *(builder.load(place(field)) for field in (_KERNEL, _ARGUMENTS)))
    with builder.if_else(builder.icmp_signed("==", result, I64(0))) as (failed, done):
        with failed:
            call(_FETCH, ir.VoidType(), *(place(_ERROR + part) for part in range(3)))
        with done:
            call(_DECREF, ir.VoidType(), result)
            builder.store(I64(1), place(_DONE))
    call(_RELEASE, ir.VoidType(), gil)
    ticket = builder.gep(builder.inttoptr(builder.load(place(_SYNC)), I64.as_pointer()), [I64(TICKET)])
    closed = builder.load(place(_CLOSED))
    with builder.if_then(builder.icmp_signed("<", builder.load_atomic(ticket, "acquire", 8), closed)):
        builder.store_atomic(closed, ticket, "release", 8)  # it handed out no tickets: nobody may wait for one


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

        def call(field, result, *arguments):
            function_type = ir.FunctionType(result, [argument.type for argument in arguments])
            address = inside.load(inside.gep(fields, [I64(field)]))
            return inside.call(inside.inttoptr(address, function_type.as_pointer()), arguments)

        number = call(_THREAD_NUMBER, I32)
        with inside.if_else(inside.icmp_signed("==", number, I32(0))) as (first, rest):
            with first:
                _emit_callers_part(inside, fields, call)
            with rest:
                unused = [inside.alloca(argument.pointee) for argument in kind.args[:2]]
                inside.call(others, [*unused, fields])
        inside.ret_void()
        return builder.ptrtoint(function, I64)

    return types.int64(), generate


@kernel
def _region_entry():
    return _entry()


_raise = ctypes.PYFUNCTYPE(None, *[ctypes.c_void_p] * 3)(("PyErr_Restore", ctypes.pythonapi))
"""Raises the error that `PyErr_Fetch` returned in three parts."""


class OpenMPPool:
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
        functions = library.omp_get_thread_num, *(getattr(ctypes.pythonapi, name) for name in _PYTHON)
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
        self._fields = np.zeros(_FIELDS, np.int64)
        self._fields[[_SYNC, _SIZE, _SPINS]] = self._sync.ctypes.data, self._sync.size, AWAKE_SPINS
        self._fields[_THREAD_NUMBER : _FETCH + 1] = addresses
        self._entry = _region_entry()

    def is_awake(self, work):
        """Return False: opening a region takes longer than brief work."""
        return False

    def run(self, kernel, work, arguments):
        """Run the kernel on all threads that arrive; one caller at a time."""
        self._number = number = self._number + 1
        self._sync[NUMBER], self._sync[SPIN_LIMIT] = number, work // WORK_PER_SPIN
        given, fields = (*arguments, 0, self._size, self._sync), self._fields  # `given` is alive until the call returns
        fields[_KNOWN], fields[_CLOSED] = number - 1, number * TICKET_STEP + CLOSED
        fields[_KERNEL], fields[_ARGUMENTS], fields[_DONE] = id(kernel), id(given), 0
        self._parallel(self._entry, fields.ctypes.data, self._size, 0)
        if not fields[_DONE]:
            _raise(*map(int, fields[_ERROR:]))
