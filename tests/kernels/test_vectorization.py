"""The machine code of gate loops and tiles works on whole vector registers; nothing else would notice if it did not.

What is counted are instructions of the code that this machine runs, compiled anew: kernels from the disk cache have no
text to look at.
"""

import re
from itertools import product
from types import SimpleNamespace

import numpy as np
import own_cells
import pytest
from combinations import nightly
from machine_code import DTYPES, assert_vectorized, both_codes, compiled, instructions
from other_cells import DEFAULT, KINDS

from examples.gallery.gated import FastRNN, IntersectionRNN
from examples.gallery.lstms import NAS
from rnnkit import RNNDescriptor
from rnnkit.cells import LayerNormGRU, LayerNormLSTM, RegularizedGRU, RegularizedLSTM, VariationalGRU, VariationalLSTM
from rnnkit_kernels import stages
from rnnkit_kernels.cells.modes import MODES, modes_with
from rnnkit_kernels.machine import linking, registers, shapes, tiles
from rnnkit_kernels.machine.matrix import Matrix, Range
from rnnkit_kernels.machine.registers import HAS_FMA, VECTOR_BYTES
from rnnkit_kernels.operands import Gradients, Operands

CLASSES = own_cells.OwnLSTM, own_cells.Independent, FastRNN, IntersectionRNN, NAS, LayerNormGRU, LayerNormLSTM
CLASSES += RegularizedGRU, RegularizedLSTM, VariationalGRU, VariationalLSTM
OF_MODES = {"Tanh": "rnn_tanh", "ReLU": "rnn_relu", "LSTM": "lstm", "ResetAfterGRU": "gru", "ResetBeforeGRU": "gru"}
CELLS = OF_MODES | KINDS | {kind.__name__: kind for kind in CLASSES}
OPTIONS = {"LSTM": {"cell_clip": (-1.0, 1.0)}, "ResetBeforeGRU": {"reset_after": False}}


def table(text):
    """Operations by cell and loop, of lines such as "cell: loop divide 1 multiply 2; other loop divide 1"."""
    found = {}
    for line in text.split("\n"):
        cell, loops = line.split(": ")
        for name, *counts in map(str.split, loops.split("; ")):
            found[cell, name] = dict(zip(counts[::2], map(int, counts[1::2]), strict=True))
    return found


# What the equations of a cell have of an operation, each loop's own. A sigmoid or tanh is a division. Only where there
# is none are the products counted, of LSTM's gradient those behind its tanh; ReLU is a comparison. Of products, those
# with gradients are fused with an addition (`small.lifted_product`).
WANTED = table("""Tanh: activate divide 1; differentiate product 2
ReLU: activate compare 1; differentiate compare 1
LSTM: activate divide 5; differentiate divide 1 product 15
ResetAfterGRU: activate divide 3; differentiate product 11
ResetBeforeGRU: activate divide 2; differentiate product 7; complete divide 1; complete_gradient product 3""")
# Of users' cells: with a function and numbers of the user's own.
OWN = table("""OwnLSTM: activate divide 5; differentiate divide 1 product 15
Independent: activate multiply 2; differentiate product 4""")
# Of the cells that are shipped, with their usual activations and with others.
SHIPPED = table("""peephole: activate divide 5; differentiate divide 1 product 18
peephole-hard: activate divide 2 compare 6; differentiate divide 1 product 15
coupled: activate divide 4; differentiate divide 1 product 9
coupled-elu: activate divide 4 compare 3; differentiate product 6 compare 3
activated: activate divide 3 compare 3; differentiate divide 3 compare 2
minimal: activate divide 1; complete divide 1; differentiate product 3; complete_gradient product 2
indrnn: activate compare 1; differentiate product 3
indrnn-tanh: activate divide 1; differentiate product 4
mingru: activate divide 1; differentiate product 5
slstm: activate divide 3; differentiate divide 2 product 10
slstm-sigmoid: activate divide 4; differentiate divide 3 product 11
slstm-heads: activate divide 3; differentiate divide 2 product 10
janet: activate divide 3; differentiate product 8
ligru: activate divide 1 compare 1; differentiate product 5 compare 1
ugrnn: activate divide 2; differentiate product 6
ran: activate divide 3; differentiate divide 1 product 9
star: activate divide 3; differentiate divide 1 product 9
cornn: activate divide 1; differentiate product 3
lem: activate divide 2; complete divide 2; differentiate product 7; complete_gradient product 7
minimal-rnn: activate divide 1; complete divide 1; differentiate product 5; complete_gradient product 2
multiplicative: activate multiply 1; complete divide 5; differentiate divide 1 product 15; complete_gradient product 2
nbr: activate divide 3; differentiate product 9
fastgrnn: activate divide 2; differentiate product 8
augru: activate divide 3; differentiate product 12""")
# Of the gallery: scalars, whose own logistic functions are computed once a row, and a side input.
GALLERY = table("""FastRNN: activate divide 1; differentiate product 7
IntersectionRNN: activate divide 3 compare 1; differentiate product 13 compare 1
NAS: activate divide 13; differentiate divide 6 product 30""")
# Of those with means and noises, by phase: a loop ends where a mean is read, whose own arithmetic is done once a row.
REGULARIZED = table("""LayerNormLSTM: 0-forward multiply 2; 1-forward multiply 8; 2-forward divide 4
LayerNormLSTM: 3-forward multiply 1; 4-forward divide 1; 4-gradient divide 1 product 10; 3-gradient product 1
LayerNormLSTM: 2-gradient product 40; 1-gradient product 2
LayerNormGRU: 0-forward multiply 2; 1-forward multiply 6; 2-forward divide 3; 2-gradient product 30
LayerNormGRU: 1-gradient product 2
RegularizedLSTM: 0-forward divide 5; 0-gradient divide 1 product 16
RegularizedGRU: 0-forward divide 3; 0-gradient product 11
VariationalLSTM: 0-forward multiply 1; 1-forward divide 5; 1-gradient divide 1 product 15; 0-gradient product 1
VariationalGRU: 1-forward divide 3; 1-gradient product 11""")
BY_DEFAULT = *(name for name, _ in DEFAULT), "augru", "slstm-heads"
# The loops of a cell by name: those of a phase, or of the gradient of one.
RUNNERS = {"activate": (0, "forward"), "complete": (1, "forward"), "differentiate": (-1, "gradient")}
RUNNERS |= {"complete_gradient": (0, "gradient")}
ONE, OF_ROWS = np.arange(1), (Operands, Gradients)


def stages_of(declaration, name):
    """The stages of a loop; none where the cell has a single phase and this is another one's."""
    number, part = RUNNERS[name] if name in RUNNERS else name.split("-")
    has_phase = len(declaration.phases) > name.startswith("complete")
    return getattr(declaration.phases[int(number)], part) if has_phase else ()


def machine_code(kind, name, dtype):
    """That of the loops over units of some stages of a cell. None of them compares its arrays with each other: those of
    a row lie so near together that the loop number by number would run."""
    cell = RNNDescriptor(CELLS[kind], 3, 8, dtype=dtype, **OPTIONS.get(kind, {})).cell
    rows, own_stages = Matrix(np.zeros(64, dtype), ONE, 0, 8), lambda declaration: stages_of(declaration, name)
    run, (operands, gradients) = stages.runner(own_stages), (one(*[rows] * len(one._fields)) for one in OF_ROWS)

    def all_rows(cell, operands, gradients, units, count):
        run(cell, operands, gradients, units, Range(0, count), Range(0, units))

    found = both_codes(all_rows, cell, operands, gradients, 8, 1)
    assert not found.compares_arrays
    return found.machine


def in_one_dtype(loops, default=None):
    """One by default, by turns, and the other nightly: what LLVM makes of a loop does not depend on it."""
    cases = product(enumerate(loops), enumerate(DTYPES))
    return [
        (pytest.param if n % 2 == k and (default is None or loop[0] in default) else nightly)(*loop, dtype)
        for (n, loop), (k, dtype) in cases
    ]


LOOPS = WANTED | OWN | SHIPPED | GALLERY | REGULARIZED
CASES = in_one_dtype(WANTED) + in_one_dtype(OWN, ["Independent"]) + in_one_dtype(SHIPPED, BY_DEFAULT)
CASES += in_one_dtype(GALLERY)
CASES += [one for one in in_one_dtype(REGULARIZED, ["LayerNormLSTM"]) if {"LayerNormLSTM", "float32"} & {*one.values}]
X86 = "x86_64-unknown-linux-gnu"
REGISTERS = [
    (X86, "+sse2,-avx", (16, 16, False, {"sse2"})),
    (X86, "+avx", (32, 16, False, {"avx"})),
    (X86, "+avx2,+fma,-avx512f", (32, 16, True, {"avx2", "fma"})),
    ("x86_64-pc-windows-msvc", "+avx2,+avx512f,+fma", (64, 32, True, {"avx2", "avx512f", "fma"})),
    ("aarch64-unknown-linux-gnu", "+neon", (16, 32, True, {"neon", "dotprod"})),
    ("arm64-apple-darwin23.1.0", "+neon", (16, 32, True, {"neon", "dotprod"})),
]


@pytest.mark.parametrize(("triple", "features", "expected"), REGISTERS)
def test_registers_follow_the_target(monkeypatch, triple, features, expected):
    codegen = SimpleNamespace(magic_tuple=lambda: (triple, "some-cpu", features))
    target = SimpleNamespace(target_context=SimpleNamespace(codegen=lambda: codegen))
    monkeypatch.setattr(registers, "cpu_target", target)
    monkeypatch.setattr(registers, "_arm_dots", lambda: {"dotprod"})
    assert registers._host() == expected


@pytest.mark.parametrize(("kind", "name", "dtype"), CASES)
def test_gate_loop_is_vectorized(kind, name, dtype):
    assert_vectorized(machine_code(kind, name, dtype), LOOPS[kind, name])


def runs_of(cell):
    """Names of the loops that the cell has."""
    return [name for name in RUNNERS if stages_of(cell.declaration, name)]


def test_every_cell_has_counts():
    descs = [RNNDescriptor(mode, 3, 5) for mode in MODES]
    descs += [RNNDescriptor(mode, 3, 5, reset_after=False) for mode in modes_with("reset_after")]
    assert {(type(desc.cell).__name__, name) for desc in descs for name in runs_of(desc.cell)} == set(WANTED)
    assert {(kind, name) for kind, cell in KINDS.items() for name in runs_of(cell)} == set(SHIPPED)


def test_stage_that_is_called_is_noticed(monkeypatch):
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
        assert_vectorized(machine_code("LSTM", "activate", "float32"), WANTED["LSTM", "activate"])


TILES = [(1, "float32"), (2, "float64"), (4, "float32")]
TILES += [nightly(*one) for one in product(range(1, 5), DTYPES) if one not in TILES]


@pytest.mark.skipif(not HAS_FMA, reason="a CPU without fused multiply-add")
@pytest.mark.parametrize(("gates", "dtype"), TILES)
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
def test_scalar_loop_is_noticed(dtype):
    x = np.ones(8, dtype)
    found = both_codes(_quotients, x, x)
    assert found.compares_arrays
    assert_vectorized(found.machine, {"divide": 1})
    with pytest.raises(AssertionError, match="divide: 1 in the equations"):
        assert_vectorized(compiled(_quotients, x, x, error_model="python"), {"divide": 1})
