"""The machine code of gate loops and tiles works on whole vector registers; nothing else would notice if it did not.

What is counted are instructions of the code that this machine runs, compiled anew: kernels from the disk cache have no
text to look at.
"""

import re
from collections import Counter
from itertools import product
from types import SimpleNamespace
from typing import NamedTuple

import numba
import numpy as np
import own_cells
import pytest
from combinations import nightly
from shipped_networks import DEFAULT, KINDS

from examples.gallery.gated import FastRNN, IntersectionRNN
from examples.gallery.lstms import NAS
from rnnkit import RNNDescriptor
from rnnkit.cells import LayerNormGRU, LayerNormLSTM, RegularizedGRU, RegularizedLSTM, VariationalGRU, VariationalLSTM
from rnnkit_kernels import stages
from rnnkit_kernels.cells.gru import ResetAfterGRU, ResetBeforeGRU
from rnnkit_kernels.cells.lstm import LSTM
from rnnkit_kernels.cells.modes import MODES, modes_with
from rnnkit_kernels.cells.vanilla import ReLU, Tanh
from rnnkit_kernels.machine import jit, linking, registers, shapes, tiles
from rnnkit_kernels.machine.arrays import signature_of
from rnnkit_kernels.machine.matrix import Matrix, Range
from rnnkit_kernels.machine.registers import HAS_FMA, VECTOR_BYTES
from rnnkit_kernels.operands import Gradients, Operands

DTYPES = "float32", "float64"
# What the equations of a cell have of an operation, each loop's own. A sigmoid or tanh is a division. Only where there
# is none are the products counted, of LSTM's gradient those behind its tanh; ReLU is a comparison.
WANTED = {
    (Tanh, "activate"): {"divide": 1},
    (Tanh, "differentiate"): {"multiply": 2},
    (ReLU, "activate"): {"compare": 1},
    (ReLU, "differentiate"): {"compare": 1},
    (LSTM, "activate"): {"divide": 5},
    (LSTM, "differentiate"): {"divide": 1, "multiply": 15},
    (ResetAfterGRU, "activate"): {"divide": 3},
    (ResetAfterGRU, "differentiate"): {"multiply": 11},
    (ResetBeforeGRU, "activate"): {"divide": 2},
    (ResetBeforeGRU, "differentiate"): {"multiply": 7},
    (ResetBeforeGRU, "complete"): {"divide": 1},
    (ResetBeforeGRU, "complete_gradient"): {"multiply": 3},
}
# Of users' cells: with a function and numbers of the user's own.
OWN = {
    ("OwnLSTM", "activate"): {"divide": 5},
    ("OwnLSTM", "differentiate"): {"divide": 1, "multiply": 15},
    ("Independent", "activate"): {"multiply": 2},
    ("Independent", "differentiate"): {"multiply": 4},
}
# Of the cells that are shipped, with their usual activations and with others.
SHIPPED = {
    ("peephole", "activate"): {"divide": 5},
    ("peephole", "differentiate"): {"divide": 1, "multiply": 18},
    ("peephole-hard", "activate"): {"divide": 2, "compare": 6},
    ("peephole-hard", "differentiate"): {"divide": 1, "multiply": 15},
    ("coupled", "activate"): {"divide": 4},
    ("coupled", "differentiate"): {"divide": 1, "multiply": 9},
    ("coupled-elu", "activate"): {"divide": 4, "compare": 3},
    ("coupled-elu", "differentiate"): {"multiply": 6, "compare": 3},
    ("activated", "activate"): {"divide": 3, "compare": 3},
    ("activated", "differentiate"): {"divide": 3, "compare": 2},
    ("minimal", "activate"): {"divide": 1},
    ("minimal", "complete"): {"divide": 1},
    ("minimal", "differentiate"): {"multiply": 3},
    ("minimal", "complete_gradient"): {"multiply": 2},
    ("indrnn", "activate"): {"compare": 1},
    ("indrnn", "differentiate"): {"multiply": 3},
    ("indrnn-tanh", "activate"): {"divide": 1},
    ("indrnn-tanh", "differentiate"): {"multiply": 4},
    ("mingru", "activate"): {"divide": 1},
    ("mingru", "differentiate"): {"multiply": 5},
    ("slstm", "activate"): {"divide": 3},
    ("slstm", "differentiate"): {"divide": 2, "multiply": 10},
    ("slstm-sigmoid", "activate"): {"divide": 4},
    ("slstm-sigmoid", "differentiate"): {"divide": 3, "multiply": 11},
    ("slstm-heads", "activate"): {"divide": 3},
    ("slstm-heads", "differentiate"): {"divide": 2, "multiply": 10},
    ("janet", "activate"): {"divide": 3},
    ("janet", "differentiate"): {"multiply": 8},
    ("ligru", "activate"): {"divide": 1, "compare": 1},
    ("ligru", "differentiate"): {"multiply": 5, "compare": 1},
    ("ugrnn", "activate"): {"divide": 2},
    ("ugrnn", "differentiate"): {"multiply": 6},
    ("ran", "activate"): {"divide": 3},
    ("ran", "differentiate"): {"divide": 1, "multiply": 9},
    ("star", "activate"): {"divide": 3},
    ("star", "differentiate"): {"divide": 1, "multiply": 9},
    ("cornn", "activate"): {"divide": 1},
    ("cornn", "differentiate"): {"multiply": 3},
    ("lem", "activate"): {"divide": 2},
    ("lem", "complete"): {"divide": 2},
    ("lem", "differentiate"): {"multiply": 7},
    ("lem", "complete_gradient"): {"multiply": 7},
    ("minimal-rnn", "activate"): {"divide": 1},
    ("minimal-rnn", "complete"): {"divide": 1},
    ("minimal-rnn", "differentiate"): {"multiply": 5},
    ("minimal-rnn", "complete_gradient"): {"multiply": 2},
    ("multiplicative", "activate"): {"multiply": 1},
    ("multiplicative", "complete"): {"divide": 5},
    ("multiplicative", "differentiate"): {"divide": 1, "multiply": 15},
    ("multiplicative", "complete_gradient"): {"multiply": 2},
    ("nbr", "activate"): {"divide": 3},
    ("nbr", "differentiate"): {"multiply": 9},
    ("fastgrnn", "activate"): {"divide": 2},
    ("fastgrnn", "differentiate"): {"multiply": 8},
    ("augru", "activate"): {"divide": 3},
    ("augru", "differentiate"): {"multiply": 12},
}
# Of the gallery: scalars, whose own logistic functions are computed once a row, and a side input.
GALLERY = {
    (FastRNN, "activate"): {"divide": 1},
    (FastRNN, "differentiate"): {"multiply": 7},
    (IntersectionRNN, "activate"): {"divide": 3, "compare": 1},
    (IntersectionRNN, "differentiate"): {"multiply": 13, "compare": 1},
    (NAS, "activate"): {"divide": 13},
    (NAS, "differentiate"): {"divide": 6, "multiply": 30},
}
# Of those with means and noises, by phase: a loop ends where a mean is read, whose own arithmetic is done once a row.
REGULARIZED = {
    (LayerNormLSTM, 0, "forward"): {"multiply": 2},
    (LayerNormLSTM, 1, "forward"): {"multiply": 8},
    (LayerNormLSTM, 2, "forward"): {"divide": 4},
    (LayerNormLSTM, 3, "forward"): {"multiply": 1},
    (LayerNormLSTM, 4, "forward"): {"divide": 1},
    (LayerNormLSTM, 4, "gradient"): {"divide": 1, "multiply": 10},
    (LayerNormLSTM, 3, "gradient"): {"multiply": 1},
    (LayerNormLSTM, 2, "gradient"): {"multiply": 40},
    (LayerNormLSTM, 1, "gradient"): {"multiply": 2},
    (LayerNormGRU, 0, "forward"): {"multiply": 2},
    (LayerNormGRU, 1, "forward"): {"multiply": 6},
    (LayerNormGRU, 2, "forward"): {"divide": 3},
    (LayerNormGRU, 2, "gradient"): {"multiply": 30},
    (LayerNormGRU, 1, "gradient"): {"multiply": 2},
    (RegularizedLSTM, 0, "forward"): {"divide": 5},
    (RegularizedLSTM, 0, "gradient"): {"divide": 1, "multiply": 16},
    (RegularizedGRU, 0, "forward"): {"divide": 3},
    (RegularizedGRU, 0, "gradient"): {"multiply": 11},
    (VariationalLSTM, 0, "forward"): {"multiply": 1},
    (VariationalLSTM, 1, "forward"): {"divide": 5},
    (VariationalLSTM, 1, "gradient"): {"divide": 1, "multiply": 15},
    (VariationalLSTM, 0, "gradient"): {"multiply": 1},
    (VariationalGRU, 1, "forward"): {"divide": 3},
    (VariationalGRU, 1, "gradient"): {"multiply": 11},
}
BY_DEFAULT = *(name for name, _ in DEFAULT), "augru", "slstm-heads"
# The loops of a cell by name: those of a phase, or of the gradient of one.
RUNNERS = {"activate": (0, "forward"), "complete": (1, "forward"), "differentiate": (-1, "gradient")}
RUNNERS |= {"complete_gradient": (0, "gradient")}
ONE = np.arange(1)
OPERATIONS = {
    "divide": r"v?div|fdiv",
    "multiply": r"v?mul|fmul",
    "compare": r"v?(?:cmp\w*|max|min)|fcm\w+|fmaxn?m?|fminn?m?",
    "fuse": r"vfn?m(?:add|sub)\d+|fml[as]|fn?madd",
}


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
    single width, and no look at what is not in vector form.
    """
    for operation, count in wanted.items():
        found = instructions(text, operation)
        widest = max((found[width] for width in found if width), default=0)
        assert widest >= count, f"{operation}: {count} in the equations, by bytes of the register {dict(found)}"
    scattered = re.findall(r"^\s+v?p?(?:gather|scatter)\w*", text, re.M)
    assert not scattered, f"{len(scattered)} instructions collect or scatter numbers that could stand side by side"


def stages_of(declaration, name):
    """The stages of a loop; none where the cell has a single phase and this is another one's."""
    number, part = RUNNERS[name]
    return getattr(declaration.phases[number], part) if len(declaration.phases) > name.startswith("complete") else ()


def machine_code(name, cell, dtype):
    """That of the loops over units of some stages of a cell."""
    return code_of(lambda declaration: stages_of(declaration, name), cell, dtype)


def code_of(own_stages, cell, dtype):
    """The same of these stages of its declaration. None of them compares its arrays with each other: those of a row lie
    so near together that the loop number by number would run."""
    run, rows = stages.runner(own_stages), Matrix(np.zeros(64, dtype), ONE, 0, 8)
    operands, gradients = (kind(*[rows] * len(kind._fields)) for kind in (Operands, Gradients))

    def all_rows(cell, operands, gradients, units, count):
        run(cell, operands, gradients, units, Range(0, count), Range(0, units))

    found = both_codes(all_rows, cell, operands, gradients, 8, 1)
    assert not found.compares_arrays
    return found.machine


def instance(kind, dtype):
    real = np.dtype(dtype).type
    return kind(True, real(-1), real(1)) if kind is LSTM else kind()


def in_one_dtype(loops, default=None):
    """One by default, by turns, and the other nightly: what LLVM makes of a loop does not depend on it."""
    cases = product(enumerate(loops), enumerate(DTYPES))
    return [
        (pytest.param if n % 2 == k and (default is None or loop[0] in default) else nightly)(*loop, dtype)
        for (n, loop), (k, dtype) in cases
    ]


@pytest.mark.parametrize(("triple", "features", "expected"), [
    ("x86_64-unknown-linux-gnu", "+sse2,-avx", (16, 16, False, {"sse2"})),
    ("x86_64-unknown-linux-gnu", "+avx", (32, 16, False, {"avx"})),
    ("x86_64-unknown-linux-gnu", "+avx2,+fma,-avx512f", (32, 16, True, {"avx2", "fma"})),
    ("x86_64-pc-windows-msvc", "+avx2,+avx512f,+fma", (64, 32, True, {"avx2", "avx512f", "fma"})),
    ("aarch64-unknown-linux-gnu", "+neon", (16, 32, True, {"neon", "dotprod"})),
    ("arm64-apple-darwin23.1.0", "+neon", (16, 32, True, {"neon", "dotprod"})),
])  # fmt: skip
def test_the_registers_of_a_machine(monkeypatch, triple, features, expected):
    codegen = SimpleNamespace(magic_tuple=lambda: (triple, "some-cpu", features))
    target = SimpleNamespace(target_context=SimpleNamespace(codegen=lambda: codegen))
    monkeypatch.setattr(registers, "cpu_target", target)
    monkeypatch.setattr(registers, "_arm_dots", lambda: {"dotprod"})
    assert registers._host() == expected


@pytest.mark.parametrize(("kind", "name", "dtype"), in_one_dtype(WANTED), ids=str)
def test_gate_mathematics_is_vectorized(kind, name, dtype):
    assert_vectorized(machine_code(name, instance(kind, dtype), dtype), WANTED[kind, name])


@pytest.mark.parametrize(("kind", "name", "dtype"), in_one_dtype(OWN, ["Independent"]))
def test_the_mathematics_of_a_users_cell_is_vectorized(kind, name, dtype):
    cell = RNNDescriptor(getattr(own_cells, kind), 3, 5, dtype=dtype).cell
    assert_vectorized(machine_code(name, cell, dtype), OWN[kind, name])


@pytest.mark.parametrize(("kind", "name", "dtype"), in_one_dtype(SHIPPED, BY_DEFAULT))
def test_the_mathematics_of_a_shipped_cell_is_vectorized(kind, name, dtype):
    cell = RNNDescriptor(KINDS[kind], 3, 8, dtype=dtype).cell
    assert_vectorized(machine_code(name, cell, dtype), SHIPPED[kind, name])


@pytest.mark.parametrize(("kind", "name", "dtype"), in_one_dtype(GALLERY))
def test_the_mathematics_of_a_cell_of_the_gallery_is_vectorized(kind, name, dtype):
    cell = RNNDescriptor(kind, 3, 5, dtype=dtype).cell
    assert_vectorized(machine_code(name, cell, dtype), GALLERY[kind, name])


@pytest.mark.parametrize(
    ("kind", "number", "part", "dtype"),
    [case for case in in_one_dtype(REGULARIZED, [LayerNormLSTM]) if case.values[0] is LayerNormLSTM or
     case.values[3] == "float32"],
)
def test_the_mathematics_of_means_and_noises_is_vectorized(kind, number, part, dtype):
    cell = RNNDescriptor(kind, 3, 5, dtype=dtype).cell
    text = code_of(lambda declaration: getattr(declaration.phases[number], part), cell, dtype)
    assert_vectorized(text, REGULARIZED[kind, number, part])


def runs_of(cell):
    """Names of the loops that the cell has."""
    return [name for name in RUNNERS if stages_of(cell.declaration, name)]


def test_every_cell_is_looked_at():
    descs = [RNNDescriptor(mode, 3, 5) for mode in MODES]
    descs += [RNNDescriptor(mode, 3, 5, reset_after=False) for mode in modes_with("reset_after")]
    assert {(type(desc.cell), name) for desc in descs for name in runs_of(desc.cell)} == set(WANTED)
    assert {(kind, name) for kind, cell in KINDS.items() for name in runs_of(cell)} == set(SHIPPED)


def test_a_stage_that_is_called_is_noticed(monkeypatch):
    """As a call, unit by unit, it takes three to four times as long. LLVM makes none of one as short as here, unless it
    must."""
    plain = linking._LinkedLibrary.add_llvm_module

    def not_inlined(self, module):
        for function in module.functions:
            if not function.is_declaration:
                function.add_function_attribute("noinline")
        plain(self, module)

    monkeypatch.setattr(linking._LinkedLibrary, "add_llvm_module", not_inlined)
    monkeypatch.setattr(stages, "_COMPILED", {})
    monkeypatch.setattr(stages, "_INLINED", {"forceinline": False})
    with pytest.raises(AssertionError, match=r"divide: \d in the equations"):
        assert_vectorized(machine_code("activate", instance(LSTM, "float32"), "float32"), WANTED[LSTM, "activate"])


@pytest.mark.skipif(not HAS_FMA, reason="a CPU without fused multiply-add")
@pytest.mark.parametrize(("gates", "dtype"), [
    (1, "float32"), (2, "float64"), (4, "float32"), nightly(1, "float64"), nightly(2, "float32"),
    nightly(3, "float32"), nightly(3, "float64"), nightly(4, "float64"),
])  # fmt: skip
def test_tiles_stay_in_whole_registers(dtype, gates):
    """Multiply-adds are on whole registers, and the sums are not moved to the stack and back between them."""
    text = compiled(tiles._compile.py_func, np.empty(0, dtype), (0,) * gates, np.zeros(4, np.int64))
    found = instructions(text, "fuse")
    assert found.keys() == {VECTOR_BYTES}, f"multiply-adds by bytes of the register: {dict(found)}"
    moves = re.findall(r"^.*[xyz]mm\d.*\(%rsp\)|^.*\(%rsp\).*[xyz]mm\d|^\s+(?:str|ldr)\s+q\d+, \[sp", text, re.M)
    assert len(moves) < found[VECTOR_BYTES] / 20, f"{len(moves)} registers moved, {found[VECTOR_BYTES]} multiply-adds"
    asking = re.findall(r"^\w*rnnkit_tile_\w*_far:.*?^\s+prefetch", text, re.M | re.S)
    assert bool(asking) == (shapes.far_bytes(gates) < shapes.NEVER_FAR)


def _quotients(x, y):
    for i in range(x.size):
        x[i] = x[i] / y[i]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_loop_that_is_not_vectorized_is_noticed(dtype):
    """For the check of each division. One that compares its arrays is noticed too."""
    x = np.ones(8, dtype)
    found = both_codes(_quotients, x, x)
    assert found.compares_arrays
    assert_vectorized(found.machine, {"divide": 1})
    with pytest.raises(AssertionError, match="divide: 1 in the equations"):
        assert_vectorized(compiled(_quotients, x, x, error_model="python"), {"divide": 1})
