"""What only kernels call becomes machine code in them alone, whatever Numba has inside."""

import functools
import inspect
import operator
import os
import re
import subprocess
import sys
from collections import Counter

import numba
import numpy as np
import pytest
from combinations import nightly
from machine_code import instructions
from messages import says
from numba.core import base, callconv, codegen, compiler, compiler_machinery, targetconfig, typed_passes, types, typing
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.core.targetconfig import ConfigStack
from numba.extending import overload

import rnnkit
from rnnkit_kernels import loop, loop_gradient
from rnnkit_kernels.machine import compiler as chosen
from rnnkit_kernels.machine import jit, thread_pool
from rnnkit_kernels.machine.arrays import signature_of
from rnnkit_kernels.machine.cache import Folder
from rnnkit_kernels.machine.jit import OPTIONS, inner, kernel
from rnnkit_kernels.machine.operators import InternedFlags, cached_context
from rnnkit_kernels.machine.registers import not_inlined


@pytest.fixture(autouse=True)
def _nothing_from_before(tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "FOLDER", Folder(str(tmp_path), "rnnkit", "digest"))


@pytest.fixture
def emitted(monkeypatch):
    """Names of the functions that become machine code from now on, however often."""
    cpu_target.target_context.refresh()  # with what Numba itself has for all
    names = []
    specific = codegen.JITCodeLibrary._finalize_specific

    def finalize(library):
        names.append(library.name.rsplit(".", 1)[-1])
        return specific(library)

    monkeypatch.setattr(codegen.JITCodeLibrary, "_finalize_specific", finalize)
    return names


def _triple(x):
    """What `overload` implements below."""


@overload(_triple, jit_options=OPTIONS)
def _triple_of(x):
    return lambda x: 3 * x


def _chain():
    """Three levels of functions, one of them an overload; the lowest is called by both of those in the middle."""

    @inner
    def lowest(x, factor):
        return x * factor

    @inner
    def left(x):
        return lowest(x, 2) + 1

    @inner
    def right(x):
        return lowest(_triple(x), 1) + 1

    def both(x):
        return left(x) + right(x)

    return lowest, both


def test_called_function_is_given_only_what_it_uses():
    """Of an array one of seven fields; in a step of a small network that is half of the time."""

    @inner
    def first(values, others):
        not_inlined()
        return values[0]

    def use(values, others):
        return first(values, others)

    compiled = kernel(use)
    assert compiled(np.array([7.0]), np.array([8.0])) == 7
    [text] = compiled.inspect_llvm().values()
    [head] = [line for line in text.splitlines() if line.startswith("define") and "first" in line]
    assert "%arg.values.4" in head and not re.search(r"%arg\.(values\.[^4]|others)", head), head


def test_kernels_alone_are_emitted_and_share_their_functions(emitted):
    lowest, both = _chain()
    compiled = kernel(both)
    assert compiled(10) == 52

    def other(x):
        return lowest(x, 5)

    assert kernel(other)(10) == 50
    assert emitted == ["both", "other"]
    assert lowest.signatures == [(numba.int64, numba.int64)]  # of types and not of literals
    [text] = compiled.inspect_llvm().values()
    assert text.count("define ") > 1  # the wrapper is there
    assert "lowest" not in text and "left" not in text  # as they are inlined


def test_inner_function_runs_in_numbas_code_and_not_in_python():
    lowest, both = _chain()
    assert numba.njit(lambda x: lowest(x, 2))(10) == 20
    assert numba.njit(both)(10) == 52
    with pytest.raises(TypeError, match=says("lowest", "kernels")):
        lowest(1, 2)


PARTS = [(loop.forward, {"divide": 5}), nightly(loop_gradient.backward, {"divide": 1, "product": 15})]


@pytest.mark.parametrize(("part", "wanted"), PARTS)
def test_linked_gate_loop_is_vectorized(monkeypatch, part, wanted):
    """The cell's part alone is looked at elsewhere; here it stands in the kernel, in loops over steps and rows."""
    given, run = {}, thread_pool.run

    def watched(kernel, work, *arguments):
        given[kernel] = *arguments, 0, 1, thread_pool.SINGLE_SYNC
        run(kernel, work, *arguments)

    monkeypatch.setattr(thread_pool, "run", watched)
    desc = rnnkit.RNNDescriptor("lstm", 8, 8)
    w = rnnkit.init_weights(desc, seed=0)
    result = rnnkit.forward(desc, w, np.ones((2, 3, 8), np.float32))
    if part is loop_gradient.backward:
        rnnkit.backward(desc, w, result.workspace, result.y)
    signature = signature_of(given[part])
    anew = kernel(part.py_func)  # what comes from the cache has no text
    anew.compile(signature)
    text = anew.inspect_asm(signature)
    for operation, count in wanted.items():
        found = instructions(text, operation)
        assert max(found[width] for width in found if width) >= count, f"{operation}: {dict(found)}"


@pytest.fixture
def asked(monkeypatch):
    """How often Numba looks up what an operator does, by operator and types."""
    questions = Counter()
    get_call_type = types.Function.get_call_type

    def counted(function, context, args, kws):
        questions[function.typing_key, args] += 1
        return get_call_type(function, context, args, kws)

    monkeypatch.setattr(types.functions.BaseFunction, "get_call_type", counted)
    return questions


def test_operator_is_looked_up_once_per_flags(asked):
    def sums(x):
        return (x + x) + (x + x) * (x * x + x)

    assert kernel(sums)(np.complex64(2)) == 28
    complexes, shorts = (numba.complex64,) * 2, (numba.int16,) * 2
    assert asked[operator.add, complexes] == asked[operator.mul, complexes] == 1
    addition = cached_context(cpu_target.typing_context).resolve_value_type(operator.add)
    for error_model in ("numpy", "python", "numpy"):
        flags = InternedFlags()
        flags.error_model = error_model
        with ConfigStack().enter(flags.copy()):
            addition.get_call_type(cpu_target.typing_context, shorts, {})
    assert asked[operator.add, shorts] == 2


def test_operator_implemented_later_is_found():
    def apply(x, y):
        return x - y

    with pytest.raises(TypingError, match="sub"):
        kernel(apply)((3, 4), 1)

    @overload(operator.sub, jit_options=OPTIONS)
    def less(x, y):
        if isinstance(x, types.UniTuple) and isinstance(y, types.Integer):
            return lambda x, y: x[0] - y

    assert kernel(apply)((3, 4), 1) == 2


def test_installed_numba_is_known():
    from rnnkit_kernels.machine.linking import LinkingCompiler

    assert chosen.COMPILER is OPTIONS["pipeline_class"] is LinkingCompiler


PLAIN = compiler.Compiler
_MODULES = base, callconv, codegen, compiler, compiler_machinery, targetconfig, typed_passes, types, typing
OWNERS = {module.__name__.rpartition(".")[2]: module for module in _MODULES}


@pytest.mark.parametrize("name", chosen._INSIDE)
def test_changed_or_missing_numba_internal_is_noticed(monkeypatch, name):
    module, _, path = name.partition(":")
    *way, last = path.removesuffix(".fget").split(".")
    owner = functools.reduce(getattr, way, OWNERS[module])
    monkeypatch.setattr(owner, last, lambda something, other: None)
    assert chosen._compiler() is PLAIN
    monkeypatch.undo()
    assert chosen._compiler() is not PLAIN
    for holder in inspect.getmro(owner) if way else [owner]:
        if last in vars(holder) and holder is not object:
            monkeypatch.delattr(holder, last)
    assert chosen._compiler() is PLAIN


OTHER_NUMBA = """
from numba.core import codegen
plain = codegen.CPUCodeLibrary.add_llvm_module
def add_llvm_module(self, ll_module, optimized=False):
    plain(self, ll_module)
codegen.CPUCodeLibrary.add_llvm_module = add_llvm_module

from rnnkit_kernels.machine import compiler, jit
@jit.inner
def lowest(x, factor):
    return x * factor
@jit.kernel
def both(x):
    return lowest(x, 2) + lowest(x, 3)
print(both(10), compiler.COMPILER.__module__)
"""


def test_kernels_of_another_numba_use_its_own_compiler(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    options = dict(env=environment, capture_output=True, text=True, check=True)
    found = subprocess.run([sys.executable, "-c", OTHER_NUMBA], **options)
    assert found.stdout.split() == ["50", "numba.core.compiler"]
