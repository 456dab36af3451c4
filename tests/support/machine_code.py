"""The machine code of kernels, as text."""

import re
from collections import Counter
from typing import NamedTuple

import numba
from numba.core.codegen import CPUCodegen

from rnnkit_kernels.machine import jit
from rnnkit_kernels.machine.arrays import signature_of
from rnnkit_kernels.machine.registers import VECTOR_BYTES

DTYPES = "float32", "float64"
OPERATIONS = {
    "divide": r"v?div|fdiv",
    "multiply": r"v?mul|fmul",
    "compare": r"v?(?:cmp\w*|max|min)|fcm\w+|fmaxn?m?|fminn?m?",
    "fuse": r"vfn?m(?:add|sub)\d+|fml[as]|fn?madd",
}
OPERATIONS["product"] = rf"{OPERATIONS['multiply']}|{OPERATIONS['fuse']}"


class Compiled(NamedTuple):
    """A kernel part as LLVM's text and as machine code."""

    optimized: str
    machine: str

    @property
    def compares_arrays(self):
        """Whether a loop looks, before it begins, whether its arrays overlap."""
        return "vector.memcheck" in self.optimized


def both_codes(function, *arguments, **options):
    """A kernel part for arguments like these, emitted as a kernel is."""
    dispatcher = numba.njit(**jit.OPTIONS | {"no_cpython_wrapper": False} | options)(function)
    signature = signature_of(arguments)
    dispatcher.compile(signature)
    return Compiled(dispatcher.inspect_llvm(signature), dispatcher.inspect_asm(signature))


def compiled(function, *arguments, **options):
    """The machine code of a kernel part, as text."""
    return both_codes(function, *arguments, **options).machine


def instructions(text, operation):
    """How many of an operation there are, by bytes of the register that is worked on whole; 0 is a single number."""
    found = Counter()
    x86 = rf"^\s+(?:{OPERATIONS[operation]})([ps])[sd]\s+(.*)$"
    for kind, operands in re.findall(x86, text, re.M):
        found[{"x": 16, "y": 32, "z": 64}[re.search(r"([xyz])mm", operands)[1]] if kind == "p" else 0] += 1
    arm = rf"^\s+(?:{OPERATIONS[operation]})(\.\d[sd])?\s+([vsd])\d"
    for kind, register in re.findall(arm, text, re.M):
        found[16 if kind or register == "v" else 0] += 1
    return found


def assert_vectorized(text, wanted):
    """Each operation is there in vector form, as often as the equations have it.

    Beside the loop over registers stands one for the rest of a row, in narrower registers or number by number: hence a
    look at whole registers alone. With Numba before 0.62 LLVM takes half of one on Intel's CPUs with AVX-512.
    """
    for operation, count in wanted.items():
        found = instructions(text, operation)
        whole = found[VECTOR_BYTES] or found[32] * (not hasattr(CPUCodegen, "_pass_builder"))
        assert whole >= count, f"{operation}: {count} in the equations, by bytes of the register {dict(found)}"
    scattered = re.findall(r"^\s+v?p?(?:gather|scatter)\w*", text, re.M)
    assert not scattered, f"{len(scattered)} instructions collect or scatter numbers that could stand side by side"
