"""Kernel calls as compiled code makes them: the addresses of machine code, and functions that C can call.

Only here is known how Numba passes arguments in machine code (`numba.core.callconv`).
"""

from typing import NamedTuple

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

from .arrays import FlatArray, data_pointer, signature_of, view
from .bound import Bound
from .cache import Cache
from .jit import FOLDER, OPTIONS
from .registers import I32, I64
from .signals import held
from .thread_pool import SINGLE_SYNC


class Entry(NamedTuple):
    """A prepared kernel call for compiled code, as `call_of` makes it."""

    address: int  # of the kernel's machine code
    bound: Bound  # its first argument
    work: int  # multiply-adds


def entry_of(call):
    """Return the entry of a call that `thread_pool.bound` returned; both must stay alive while it is used."""
    kernel, own, like, work = call.call
    with global_compiler_lock:
        made = kernel.overloads[signature_of((own, like, 0, 1, SINGLE_SYNC))]
        return Entry(made.library.get_pointer_to_function(made.fndesc.llvm_func_name), own, work)


def call_of(like):
    """Return an intrinsic that calls a kernel by its address, with the words of its arguments from an address on.

    These are the bound arguments, the words of `like`, which is what the kernel expects as its second argument (two
    words of each array: address and size), `thread_id`, `size`, and two words of `sync`.
    """
    kinds = signature_of((like, 0, 1, SINGLE_SYNC))

    @intrinsic
    def call(typingctx, address, words):
        def generate(context, builder, signature, arguments):
            pointers, own = [I64.as_pointer()] * 2, [I64, *context.get_arg_packer(kinds).argument_types]
            kind, (address, words) = ir.FunctionType(I32, [*pointers, *own]).as_pointer(), arguments
            words = builder.inttoptr(words, I64.as_pointer())
            values = [_as(builder, builder.load(builder.gep(words, [I64(n)])), one) for n, one in enumerate(own)]
            unused = [cgutils.alloca_once(builder, I64) for _ in pointers]  # kernels return and raise nothing
            builder.call(builder.inttoptr(address, kind), [*unused, *values])
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return call


def words_of(like):
    """Return the number of words of `call_of` that precede `thread_id`, without the bound arguments."""
    context = numba.core.registry.cpu_target.target_context
    return len(context.get_arg_packer(signature_of((like,))).argument_types)


def _as(builder, word, kind):
    """Return a word as a value of this type, in LLVM IR."""
    if isinstance(kind, ir.PointerType):
        return builder.inttoptr(word, kind)
    return builder.trunc(word, kind) if kind.width < 64 else word


def call_from_c(function):
    """Compile a function of one int64, which returns an int64, for callers in C; returns its address.

    It is cached on disk as kernels are.
    """
    dispatcher = numba.njit(**OPTIONS | {"no_cpython_wrapper": False, "no_cfunc_wrapper": False})(function)
    dispatcher._cache = Cache(function, FOLDER)
    with held(), global_compiler_lock:
        dispatcher.compile((types.int64,))
        (made,) = dispatcher.overloads.values()
        _alive.append(made.library)
        return made.library.get_pointer_to_function(made.fndesc.llvm_cfunc_wrapper_name)


_alive = []  # the machine code of functions that C calls


@intrinsic
def call_c(typingctx, address, first, second):
    """Call a C function of two int64 that returns an int64."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(I64, [I64, I64]).as_pointer()
        return builder.call(builder.inttoptr(arguments[0], kind), arguments[1:])

    return types.int64(*[types.int64] * 3), generate


def _array_at(dtype):
    @intrinsic
    def array_at(typingctx, address, size):
        def generate(context, builder, signature, arguments):
            first = builder.inttoptr(arguments[0], context.get_data_type(dtype).as_pointer())
            return view(context, builder, signature.return_type, first, arguments[1])

        return FlatArray(dtype)(types.int64, types.int64), generate

    return array_at


words_at, int32_at = _array_at(types.int64), _array_at(types.int32)
"""Intrinsics: the array of so many numbers at an address."""


@intrinsic
def address_of(typingctx, array):
    """Return the address of an array."""

    def generate(context, builder, signature, arguments):
        return builder.ptrtoint(data_pointer(context, builder, signature.args[0], *arguments, I64(0)), I64)

    return types.int64(array), generate


@intrinsic
def copy_bytes(typingctx, target, source, count):
    """Copy bytes from one address to another."""

    def generate(context, builder, signature, arguments):
        target, source = (builder.inttoptr(one, ir.IntType(8).as_pointer()) for one in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], I64(1))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@intrinsic
def clear_bytes(typingctx, target, count):
    """Zero so many bytes from an address on."""

    def generate(context, builder, signature, arguments):
        target = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        cgutils.memset(builder, target, arguments[1], 0)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 2), generate


def symbol(name):
    """Return an intrinsic without arguments: the address that `binding.add_symbol` gave this name."""

    @intrinsic
    def address(typingctx):
        def generate(context, builder, signature, arguments):
            found = builder.module.globals.get(name) or ir.GlobalVariable(builder.module, I64, name)
            found.linkage = "external"
            return builder.ptrtoint(found, I64)

        return types.int64(), generate

    return address
