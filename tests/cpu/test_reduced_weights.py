"""Plans with quantized weights: the equations on rounded numbers, and the same bits every way."""

import copy
import os
import pickle
import subprocess
import sys

import numba
import numpy as np
import pytest
import rounded
from combinations import nightly
from compiled import for_python
from llvmlite import binding, ir
from machine_code import compiled
from other_cells import KINDS, whole_heads
from problems import CELLS, REDUCED, Problem
from refused import refusals
from tolerances import OUTPUTS, assert_close, assert_same_results

import rnnkit
from rnnkit.cpu import reduced
from rnnkit_kernels.machine import formats, tiles
from rnnkit_kernels.machine.formats import BFLOAT16_DOT, BYTE_DOT, ROWS_AT_ONCE, no_panels, packed_as
from rnnkit_kernels.machine.jit import inner
from rnnkit_kernels.machine.packing import panels_of
from rnnkit_kernels.machine.registers import FEATURES, VECTOR_BYTES

NATIVE = "bfloat16-native"
FORMS = "bfloat16", "int8", *[NATIVE] * (BFLOAT16_DOT is not None)
ROUNDED = {"bfloat16": rounded.bfloat16, "int8": rounded.int8, NATIVE: rounded.bfloat16}
OF_COLUMNS = {"bfloat16": np.ones_like, "int8": rounded.factors, NATIVE: np.ones_like}
# Sums of bfloat16 are worked through in blocks; int8's are exact in 32 bits up to 133,000 products.
OPTIONS = [
    *({"proj_size": 3}, {"proj_size": 18}, {"cell_clip": (-0.3, 0.2)}, {"bias": "none"}, {"bias": "recurrent"}),
    {"input_mode": "skip", "input_size": 19},
    *({"input_size": size, "hidden_size": 5, "batch_size": 3} for size in (2048, 2051, 4098, 8203)),
]
# By rows and by units, whole threads and blocks of units, two directions and two layers at once.
SHARED_OUT = [
    *({"hidden_size": 128, "batch_size": 40}, {"hidden_size": 256, "batch_size": 2}),
    *({"hidden_size": 320, "num_layers": 2}, {"hidden_size": 96, "bidirectional": True, "batch_size": 16}),
    {"hidden_size": 640, "batch_size": 24, "seq_len": 4},
]
RARE = ("peephole", "bfloat16"), ("slstm", "int8"), ("mingru", "bfloat16"), ("indrnn", "int8")
HEADS = nightly("slstm-heads", "bfloat16"), nightly("slstm-heads", "int8")
KNOWN, INT8 = f"precision | None | bfloat16 | {NATIVE} | int8", {"precision": "int8"}
REFUSED = [
    (lambda: rnnkit.LSTM(3, 5).prepare(precision="float16"), f"{KNOWN} | 'float16'"),
    (lambda: rnnkit.LSTM(3, 5).prepare(precision=8), f"{KNOWN} | 8"),
    (lambda: rnnkit.LSTM(3, 5, dtype="float64").prepare(**INT8), "precision | None | float64 | 'int8'"),
    (lambda: rnnkit.LSTM(3, 5).prepare(precision=NATIVE), f"precision | bfloat16 | int8 | AVX-512 BF16 | '{NATIVE}'"),
    (lambda: rnnkit.RNN(133_145, 1).prepare(**INT8), "precision | None | bfloat16 | 133144 | 'int8' | 133145"),
]
DOTS = formats._BFLOAT16_DOTS, formats._BYTE_DOTS


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


def assert_rounded(problem, form):
    """One step is that of the equations on rounded numbers."""
    plan = rnnkit.prepare(problem.desc, problem.w, precision=form)
    found = plan.infer(*problem.inputs[1:])
    h, c = (None if states is None else states[0] for states in (problem.hx, problem.cx))
    functions = ROUNDED[form], ROUNDED[form], OF_COLUMNS[form]
    h, c = rounded.one_step(problem.desc, problem.views, problem.x[0], h, c, *functions)
    assert_close("y", found.y[0], h, "float32")
    if c is not None:
        assert_close("cy", found.cy[0], c, "float32")


@pytest.mark.parametrize(("input_size", "hidden_size"), [(1, 4), (3, 5), (4, 16), (7, 17), (18, 31), (33, 64)])
@pytest.mark.parametrize(("form", "cell"), REDUCED)
def test_step_equals_the_equations_on_rounded_numbers(form, cell, input_size, hidden_size):
    sizes = dict(input_size=input_size, hidden_size=hidden_size, batch_size=7, seq_len=1)
    assert_rounded(Problem(**CELLS[cell], dtype="float32", **sizes), form)


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_feature_of_another_size_costs_int8_no_accuracy(cell, size):
    """Its weights are of the inverse size."""
    problem = Problem(cell, dtype="float32", input_size=16, hidden_size=64, batch_size=4, seq_len=50)
    problem.views["weight_ih_l0"][:, 3] /= size
    problem.x[..., 3] *= size
    expected = problem.infer().y
    found = rnnkit.prepare(problem.desc, problem.w, precision="int8").infer(*problem.inputs[1:]).y
    assert np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)) < 0.01


@pytest.mark.parametrize("options", OPTIONS)
def test_options_and_long_sums_on_rounded_numbers(form, options):
    assert_rounded(Problem("lstm", dtype="float32", seq_len=1, **{"hidden_size": 19, "batch_size": 5} | options), form)


def test_sums_of_int8_are_exact_up_to_the_longest():
    desc = rnnkit.RNNDescriptor("rnn_relu", 133_144, 1, bias="none")
    w, x = np.full(rnnkit.num_weights(desc), 0.5, np.float32), np.ones((1, 133_144), np.float32)
    assert rnnkit.prepare(desc, w, precision="int8").step(x, None).y.item() == pytest.approx(133_144 / 2, rel=1e-5)


@pytest.mark.parametrize(("form", "cell"), REDUCED)
def test_steps_lengths_and_layers_alone_give_the_same_bits(form, cell):
    """All at once, step by step, each sequence alone, and in a stack or one layer after the other."""
    sizes = dict(input_size=9, hidden_size=21, seq_len=6, batch_size=5, num_layers=2, dtype="float32")
    problem = Problem(**CELLS[cell], **sizes)
    plan = rnnkit.prepare(problem.desc, problem.w, precision=form)
    expected, (x, *states) = plan.infer(*problem.inputs[1:]), problem.inputs[1:]
    for t in range(6):
        y, *states = plan.step(x[t], *states)
        assert np.array_equal(y, expected.y[t])
    assert_same_results(rnnkit.Infer(expected.y, *states), expected, OUTPUTS)
    lengths = [6, 0, 3, 6, 1]
    ragged = plan.infer(*problem.inputs[1:], lengths=lengths)
    for n, length in enumerate(lengths):
        own = [None if states is None else states[:, n : n + 1] for states in (problem.hx, problem.cx)]
        alone = plan.infer(problem.x[:length, n : n + 1], *own)
        assert np.array_equal(alone.y[:, 0], ragged.y[:length, n]) and not ragged.y[length:, n].any()
        assert np.array_equal(alone.hy[:, 0], ragged.hy[:, n])
    for seq_len, batch_size in (0, 3), (2, 0), (0, 0):
        assert plan.infer(x[:seq_len, :batch_size]).y.shape == (seq_len, batch_size, problem.output_size)
    for number, input_size in enumerate((9, problem.output_size)):
        own = problem.twin(num_layers=1, input_size=input_size)
        named = {name[:-1] + "0": view for name, view in problem.views.items() if name.endswith(str(number))}
        one = rnnkit.prepare(own.desc, rnnkit.pack_weights(own.desc, named), precision=form)
        cx = None if problem.cx is None else problem.cx[number : number + 1]
        x = one.infer(x, problem.hx[number : number + 1], cx).y
    assert np.array_equal(x, expected.y)


@pytest.mark.cores(2)
@pytest.mark.usefixtures("threads_as_before")
@pytest.mark.parametrize("options", SHARED_OUT)
def test_number_of_threads_changes_no_bit(form, options):
    problem = Problem("lstm", dtype="float32", **{"input_size": 64, "seq_len": 30, **options})
    results = []
    for threads in (1, 2):
        numba.set_num_threads(threads)
        plan = rnnkit.prepare(problem.desc, problem.w, precision=form)
        results += [plan.infer(*problem.inputs[1:]) for _ in range(3)]
    for found in results:
        assert_same_results(found, results[0], OUTPUTS)


@inner
def _mark(packed, thread_id):
    scratch = panels_of(packed, 0, 0, 0, 0, thread_id).scratch
    for i in range(scratch.size):
        scratch[i] = thread_id


def test_each_thread_has_scratch_of_its_own(form):
    """Two threads that come at once would otherwise overwrite what the other one multiplies."""
    packed = packed_as(form, np.zeros(4, np.float32), np.full(9, -1, np.float32), 3, np.arange(3))
    for thread_id in range(2):
        for_python(_mark)(packed, thread_id)
    assert packed.scratch.tolist() == [0, 0, 0, 1, 1, 1, -1, -1, -1]


@pytest.mark.cores(2)
@pytest.mark.usefixtures("threads_as_before")
def test_stream_continues_on_more_threads(form):
    net = rnnkit.LSTM(48, 320, num_layers=2, seed=0)
    x = np.random.default_rng(0).standard_normal((6, 12, 48), np.float32)
    expected, stream = net.prepare(precision=form).infer(x).y, net.prepare(precision=form).stream(12)
    for t in range(6):
        numba.set_num_threads(1 if t < 3 else 2)
        assert np.array_equal(stream.step(x[t]), expected[t])


def test_rows_beyond_one_conversion_equal_the_row_alone(form):
    problem = Problem("lstm", dtype="float32", hidden_size=9, batch_size=2 * ROWS_AT_ONCE + 5, seq_len=2)
    plan = rnnkit.prepare(problem.desc, problem.w, precision=form)
    found = plan.infer(*problem.inputs[1:])
    for n in (0, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 4):
        alone = plan.infer(*(array[:, n : n + 1] for array in problem.inputs[1:]))
        assert np.array_equal(alone.y[:, 0], found.y[:, n])


@pytest.mark.parametrize(("name", "form"), [("peephole", "int8"), *(nightly(*case) for case in RARE), *HEADS])
@pytest.mark.parametrize("bidirectional", [False, nightly(True)])
def test_shipped_cells_stay_near_the_unrounded_network(name, form, bidirectional):
    """Near to the same network without rounding, and the same bits step by step."""
    desc = rnnkit.RNNDescriptor(KINDS[name], 6, whole_heads(KINDS[name], 19), 2, bidirectional)
    w, x = rnnkit.init_weights(desc, seed=0), np.random.default_rng(0).standard_normal((5, 4, 6), np.float32)
    plan = rnnkit.prepare(desc, w, precision=form)
    found, expected = plan.infer(x), rnnkit.infer(desc, w, x)
    assert 0 < np.abs(found.y - expected.y).max() < 0.03 * max(1, np.abs(expected.y).max())
    if not bidirectional:
        states = None, None
        for t in range(5):
            y, *states = plan.step(x[t], *states)
            assert np.array_equal(y, found.y[t])


def test_nonfinite_numbers_stay_so_in_their_row(form):
    net = rnnkit.LSTM(5, 17, seed=0)
    x = np.random.default_rng(0).standard_normal((3, 4, 5), np.float32)
    plan = net.prepare(precision=form)
    expected = plan.infer(x).y
    for value in np.nan, np.inf, -np.inf:
        x[1, 2, 3] = value
        y = plan.infer(x).y
        assert np.array_equal(np.delete(y, 2, axis=1), np.delete(expected, 2, axis=1))
        assert np.array_equal(y[0], expected[0])
        if np.isnan(value) or form == "int8":
            assert np.isnan(y[1:, 2]).all()
    net.views["weight_ih_l0"][17, 2] = np.nan  # of the first unit's second gate
    x[1, 2, 3] = 0
    y = net.prepare(precision=form).infer(x).y
    assert np.isnan(y[0, :, 0]).all() and np.isfinite(y[0, :, 1:]).all()


@pytest.mark.parametrize("size", [0.0, 1e-44, 2.0**-101, 1e-30, 1e30, 1e37])
def test_rows_of_any_magnitude_keep_their_digits(form, size):
    """Where all numbers of a row are tiny, they may count as zeros."""
    net = rnnkit.RNN(4, 3, bias=False, nonlinearity="relu", seed=0)
    net.views["weight_ih_l0"][...] = np.abs(net.views["weight_ih_l0"])
    x = np.full((1, 2, 4), size, np.float32)
    found, expected = net.prepare(precision=form).infer(x).y, net.infer(x).y.astype(np.float64)
    assert np.abs(found - expected).max() <= max(0.02 * np.abs(expected).max(), 1e-29)
    if form == "int8" and size < 2.0**-100:
        assert not found.any()
    net.weights[...] = 0
    assert not net.prepare(precision=form).infer(x).y.any()


def test_copied_plans_keep_their_precision(form):
    plan = rnnkit.LSTM(3, 5, seed=0).prepare(precision=form)
    x = np.random.default_rng(0).standard_normal((4, 2, 3), np.float32)
    assert plan.precision == form and repr(plan).endswith(f", precision='{form}'>")
    for other in (copy.copy(plan), copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert other.precision == form and np.array_equal(other.infer(x).y, plan.infer(x).y)
    streams = pickle.loads(pickle.dumps(plan.stream(2)))
    assert streams.plan.precision == form and np.array_equal(streams.step(x[0]), plan.infer(x).y[0])
    assert rnnkit.LSTM(3, 5, seed=0).prepare().precision is None


@refusals(prepare=REFUSED)
def test_precision_that_cannot_be_is_refused(monkeypatch, call, kind, expected):
    monkeypatch.setattr(reduced, "BFLOAT16_DOT", None)
    with pytest.raises(kind, match=expected):
        call()


def test_plan_bytes_are_those_of_the_format():
    net = rnnkit.LSTM(256, 256, seed=0)
    sizes = {form: net.prepare(precision=form).packed.weights.nbytes for form in (None, *FORMS)}
    assert 0.49 < sizes["bfloat16"] / sizes[None] < 0.52 and 0.24 < sizes["int8"] / sizes[None] < 0.27


ELSEWHERE = """
import hashlib, sys
import numpy as np
import rnnkit
from rnnkit_kernels.machine.formats import BFLOAT16_DOT, BYTE_DOT
digest = hashlib.sha256()
x = np.random.default_rng(0).standard_normal((7, 5, 18), np.float32)
for kind in (rnnkit.LSTM, rnnkit.GRU)[: int(sys.argv[2])]:
    for hidden_size in (5, 33):
        net = kind(18, hidden_size, num_layers=2, bidirectional=True, seed=0)
        digest.update(net.prepare(precision=sys.argv[1]).infer(x).y.tobytes())
print(BFLOAT16_DOT is not None, BYTE_DOT is not None, digest.hexdigest())
"""


def elsewhere(form, kinds=1, **environment):
    command = [sys.executable, "-c", ELSEWHERE, form, str(kinds)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    *has, digest = done.stdout.split()
    return has, digest


@pytest.mark.parametrize(("form", "kinds"), [("int8", 1), ("bfloat16", 1), nightly("int8", 2), nightly("bfloat16", 2)])
def test_bits_without_the_dot_product_instructions_are_the_same(form, kinds):
    """With AVX2 alone."""
    lacking, other = elsewhere(form, kinds, NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES="+avx2,+fma")
    assert lacking == ["False", "False"]
    assert other == elsewhere(form, kinds)[1]


@pytest.mark.skipif("avxvnni" not in FEATURES, reason="a CPU without AVX-VNNI")
def test_bits_with_the_dot_product_of_avx_vnni_are_the_same():
    """As on a CPU that has it without AVX-512."""
    has, digest = elsewhere("int8", NUMBA_CPU_NAME="alderlake", NUMBA_CPU_FEATURES="+avx2,+fma,+avxvnni")
    assert has == ["False", "True"]
    assert digest == elsewhere("int8")[1]


@pytest.mark.parametrize(("on", "text"), [(on, text) for dots in DOTS for on, text in dots.items() if on[0] > 16])
def test_assembler_knows_each_dot_product(on, text, monkeypatch):
    """Also those of other x86 CPUs; LLVM has none for ARM's here, and ends the process."""
    size, feature = on
    monkeypatch.setattr(formats, "VECTOR_BYTES", size)
    module, vector = ir.Module(), ir.VectorType(ir.IntType(32), size // 4)
    function = ir.Function(module, ir.FunctionType(vector, [vector] * 3), "dot")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(formats._dot(builder, text, *function.args))
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()
    target = binding.Target.from_triple("x86_64-linux-gnu")
    machine = target.create_target_machine(features=f"+avx2,+{feature}")
    assert machine.emit_object(binding.parse_assembly(str(module)))
    register = {32: "%ymm", 64: "%zmm"}[size]
    wanted = text.replace("$3, $2, $0", f"{register}2, {register}1, {register}0")
    assert wanted in machine.emit_assembly(binding.parse_assembly(str(module))).replace("\t", " ")


def test_kernels_multiply_whole_registers(form):
    """Multiply-adds on whole registers, by the instruction for it where there is one."""
    name = form.replace("-", "")
    text = compiled(tiles._compile.py_func, no_panels(np.dtype(np.float32), name), (0,) * 4, np.zeros(4, np.int64))
    of_int8 = "vpdpbusd" if BYTE_DOT else "vpmaddwd"
    wanted = {"bfloat16": "vfmadd", NATIVE: "vdpbf16ps", "int8": of_int8}[form]
    if VECTOR_BYTES >= 32:
        register = "zmm" if VECTOR_BYTES == 64 else "ymm"
        lines = [line for line in text.splitlines() if wanted in line]
        assert len(lines) > 100 and all(f"%{register}" in line for line in lines)
