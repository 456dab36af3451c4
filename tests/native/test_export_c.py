"""Networks as C: the same bits by every compiler, and what is refused."""

import ctypes
import shutil
import subprocess
from typing import NamedTuple

import numpy as np
import pytest
from combinations import nightly, weekly
from exported import WARNINGS, assert_same_bits, compiled, network
from installed import needs_installed
from messages import raises
from other_cells import KINDS, OWN, whole_heads

import rnnkit
from rnnkit.cells import CoRNN, Gate, LayerNormLSTM, Sigmoid, Softplus, cell, fma, forward, sigmoid, tanh
from rnnkit.commands import command_line
from rnnkit.equations import c_functions as functions
from rnnkit.equations.c_text import literal
from rnnkit.native import check


@pytest.fixture(autouse=True)
def _compiler():
    needs_installed("cc")


MODES = "lstm", "gru", "rnn_tanh", "rnn_relu"
OPTIONS = [
    ("lstm", {"hidden_size": 1, "input_size": 1}),
    nightly("lstm", {"hidden_size": 300}),
    ("lstm", {"proj_size": 5, "num_layers": 2}),
    ("lstm", {"bidirectional": True, "num_layers": 3}),
    nightly("lstm", {"bidirectional": True, "proj_size": 3}),
    nightly("gru", {"bidirectional": True, "dtype": "float64", "learned_initial_state": True}),
    nightly("lstm", {"cell_clip": (-0.1, 0.2)}),
    ("gru", {"reset_after": False, "num_layers": 2}),
    nightly("lstm", {"input_mode": "skip", "input_size": 20}),
    nightly("gru", {"input_mode": "skip", "input_size": 20}),
    *(nightly("gru", {"bias": bias}) for bias in ("none", "input", "recurrent")),
    nightly("lstm", {"dtype": "float64", "num_layers": 2}),
    ("lstm", {"learned_initial_state": True, "num_layers": 2}),
    nightly("rnn_tanh", {"hidden_size": 256, "input_size": 64}),
]
BUILDS = [
    ("cc", "-O3", "-march=native"), ("cc", "-O0"), ("cc", "-O2", "-DRK_SOFT_FMA"), ("cc", "-O3", "-march=haswell"),
    ("clang", "-O3", "-march=native"), ("clang", "-O2"), ("clang", "-O2", "-DRK_SOFT_FMA"),
]  # fmt: skip


OF_CELLS = [*((name, None) for name in (*MODES, "layer-norm", "own-numbers")), ("lstm", "int8"), ("gru", "int8")]
OF_CELLS += [nightly(name, None) for name in KINDS | OWN if name != "own-numbers"]
OF_CELLS += [nightly(name, "int8") for name in ("layer-norm", *KINDS)]


@pytest.mark.parametrize(("name", "precision"), OF_CELLS)
def test_cells_have_the_same_bits(name, precision, tmp_path):
    kind = LayerNormLSTM() if name == "layer-norm" else name if name in MODES else (KINDS | OWN)[name]
    units = 20 if isinstance(kind, str) else whole_heads(kind, 20)
    assert_same_bits(network(kind, units), tmp_path, "-O1", precision=precision)


@pytest.mark.parametrize(("mode", "options"), OPTIONS)
@pytest.mark.parametrize("precision", [None, nightly("int8")])
def test_options_have_the_same_bits(mode, options, precision, tmp_path):
    if precision and options.get("dtype") == "float64":
        pytest.skip("quantizes float32 alone")
    assert_same_bits(network(mode, **options), tmp_path, "-O1", precision=precision)


IN_FILE = [
    ("lstm", {"num_layers": 2}, None), nightly("lstm", {"proj_size": 3}, "int8"),
    nightly("gru", {"bidirectional": True, "learned_initial_state": True}, "int8"),
    nightly("gru", {"bidirectional": True, "learned_initial_state": True, "dtype": "float64"}, None),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "options", "precision"), IN_FILE)
def test_weights_in_a_file_have_the_same_bits(mode, options, precision, tmp_path):
    net = network(mode, **options)
    assert_same_bits(net, tmp_path, "-O1", precision=precision, weights="binary")
    width = net.desc.num_directions * net.desc.output_size
    readout = np.random.default_rng(0).standard_normal(3 * (width + 1)).astype(net.desc.dtype)
    arguments = {"precision": precision, "weights": "binary", "readout": readout, "activation": Sigmoid()}
    assert_same_bits(net, tmp_path, "-O1", **arguments)


def test_file_of_another_network_is_refused(tmp_path):
    net = network("gru")
    *_, path = net.export_c(tmp_path, weights="binary", check=True)
    assert path.name == "model.bin" and abs(path.stat().st_size - 4 * net.weights.size) < 1000
    data = path.read_bytes()
    net.weights[3] += 1
    net.export_c(tmp_path, weights="binary", check=True)
    path.write_bytes(data)
    with raises(RuntimeError, "export_c: model.c | model.bin is of another network"):
        check.check(tmp_path, "model")
    path.write_bytes(data[:-1])
    with raises(RuntimeError, "export_c: model.c | model.bin cannot be read"):
        check.check(tmp_path, "model")


def test_int8_takes_a_quarter_and_balances_features(tmp_path):
    net, sizes = network("gru", 64, input_size=64), []
    net.views["weight_ih_l0"][:, 3] /= 1e4
    for precision in (None, "int8"):
        assert_same_bits(net, tmp_path, "-O1", precision=precision)
        subprocess.run("cc -std=c99 -Os -c model.c -o model.o".split(), cwd=tmp_path, check=True)
        sizes.append((tmp_path / "model.o").stat().st_size)
    assert sizes[1] < 0.4 * sizes[0]


@pytest.mark.parametrize("activation", [None, Sigmoid(), nightly(Softplus())])
@pytest.mark.parametrize(
    "options", [{}, nightly({"bidirectional": True}), nightly({"bidirectional": True, "num_layers": 2})]
)
def test_readout_has_the_same_bits(activation, options, tmp_path):
    net = network("gru", **options)
    width = net.desc.num_directions * 20
    net.arrays["scores"] = np.random.default_rng(0).standard_normal(3 * (width + 1)).astype(np.float32)
    assert_same_bits(net, tmp_path, "-O1", readout="scores", activation=activation)
    assert_same_bits(net, tmp_path, "-O1", readout=net.arrays["scores"], activation=activation)


@pytest.mark.parametrize("mode", ["lstm", nightly(CoRNN()), nightly(LayerNormLSTM())])
@pytest.mark.parametrize("build", [BUILDS[0], *map(weekly, BUILDS[1:])], ids=" ".join)
def test_compilers_and_flags_change_no_bit(mode, build, tmp_path):
    """gcc contracts products and sums by default; where the CPU has no fused multiply-add, it is emulated."""
    compiler, *options = build
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    assert_same_bits(network(mode, 33), tmp_path, *options, compiler=compiler)


SOFT_FMA = """
#include <stdio.h>
#include <stdlib.h>
static uint64_t state = 1;
static uint32_t draw(void) { state ^= state << 13, state ^= state >> 7, state ^= state << 17; return state >> 32; }
static float number(uint32_t n) { union { uint32_t n; float x; } both; both.n = n; return both.x; }
static uint32_t bits(float x) { union { float x; uint32_t n; } both; both.x = x; return both.n; }
int main(int count, char **arguments) {
  long wrong = 0, number_of = count > 1 ? atol(arguments[1]) : 0;
  for (long i = 0; i < number_of; i++) {
    float a = number(draw()), b = number(draw()), c = number(draw());
    if (i & 1) { /* of about the size of the product */
      c = number((bits(a * b) + (draw() & 0x3ffffffu) - 0x2000000u) ^ (draw() & 0x80000000u));
    } else if (i & 2) { /* a product of nearly half of the last place of c: the sum in double is a tie */
      const float part = ldexpf(1.0f, -13 - (int)(draw() % 11));
      c = number((draw() & 0xbfffffffu) | 0x20000000u);
      a = ldexpf(1.0f + part, ilogbf(c) - 24), b = draw() & 1 ? 1.0f - part : part - 1.0f;
    }
    const float found = rk_soft_fma(a, b, c), wanted = fmaf(a, b, c);
    wrong += bits(found) != bits(wanted) && !(found != found && wanted != wanted);
  }
  printf("%ld\\n", wrong);
  return 0;
}
"""


@pytest.mark.parametrize("count", [10**6, weekly(2 * 10**7)])
def test_emulated_fma_is_exact(count, tmp_path):
    (tmp_path / "model.h").write_text("#include <math.h>\n")
    (tmp_path / "model.c").write_text(functions.head("model", np.float32, 32) + SOFT_FMA)
    program = compiled(tmp_path, "-O2", "-DRK_SOFT_FMA", sources=["model.c"])
    assert subprocess.check_output([program, str(count)], text=True) == "0\n"


EMULATED = {  # compiler -> emulator, and flags
    "aarch64-linux-gnu-gcc": ("qemu-aarch64-static", ()),
    "riscv64-linux-gnu-gcc": ("qemu-riscv64-static", ()),
    "arm-linux-gnueabihf-gcc": ("qemu-arm-static", ("-mfpu=neon-vfpv4",)),  # ARMv7 with a fused multiply-add
    "powerpc64le-linux-gnu-gcc": ("qemu-ppc64le-static", ()),
    "powerpc-linux-gnu-gcc": ("qemu-ppc-static", ()),  # of 32 bits, the highest byte first
}


@pytest.mark.weekly
@pytest.mark.parametrize("precision", [None, "int8"])
@pytest.mark.parametrize("mode", ["gru", CoRNN(), LayerNormLSTM()])
@pytest.mark.parametrize("compiler", EMULATED)
def test_other_cpus_have_the_same_bits(compiler, mode, precision, tmp_path):
    emulator, flags = EMULATED[compiler]
    if shutil.which(compiler) is None or shutil.which(emulator) is None:
        pytest.skip(f"needs {compiler} and {emulator}")
    network(mode, 33).export_c(tmp_path, precision=precision)
    program = compiled(tmp_path, "-O3", "-static", *flags, compiler=compiler)
    done = subprocess.run([emulator, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.weekly
@pytest.mark.skipif(shutil.which("arm-none-eabi-gcc") is None, reason="needs arm-none-eabi-gcc")
@pytest.mark.parametrize(("precision", "flash"), [(None, 6000), ("int8", 3704)])
def test_microcontroller_needs_flash_alone(precision, flash, tmp_path):
    """No memory but the state and the stack, and no library but what every compiler brings. An LSTM of 16 units with a
    readout, as in the guide, with a tenth of room for other compilers."""
    net, readout = rnnkit.LSTM(1, 16, seed=0), np.ones(17, np.float32)
    net.export_c(tmp_path, precision=precision, readout=readout)
    flags = "-mcpu=cortex-m4 -mfpu=fpv4-sp-d16 -mfloat-abi=hard -mthumb -O2 -std=c99 -ffp-contract=off".split()
    flags += "-fno-math-errno -fno-trapping-math -c model.c -o model.o".split()
    subprocess.run(["arm-none-eabi-gcc", *flags], cwd=tmp_path, check=True)
    found = subprocess.check_output(["arm-none-eabi-size", "model.o"], cwd=tmp_path, text=True).splitlines()[1].split()
    code, data, zeros = map(int, found[:3])
    assert data == zeros == 0 and code <= 1.1 * flash
    needed = subprocess.check_output(["arm-none-eabi-nm", "-u", "model.o"], cwd=tmp_path, text=True).split()
    assert {*needed} <= {"U", "memcpy", "memset", "memmove"}


RUN = """
const fs = require("fs"), [, , wasm, x, steps, outputs] = process.argv;
WebAssembly.instantiate(fs.readFileSync(wasm)).then(({instance: {exports}}) => {
  const memory = new Uint8Array(exports.memory.buffer), input = fs.readFileSync(x), start = exports.__heap_base.value;
  const y = start + 4096, at = y + 4 * steps * outputs;
  memory.set(input, at);
  exports.model_init(start);
  exports.model_run(start, at, Number(steps), y, 0);
  process.stdout.write(memory.slice(y, at));
});
"""


@pytest.mark.weekly
@pytest.mark.skipif(shutil.which("clang") is None or shutil.which("wasm-ld") is None, reason="needs clang and lld")
@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize("precision", [None, "int8"])
@pytest.mark.parametrize("mode", ["lstm", "gru", CoRNN(), LayerNormLSTM()])
def test_web_assembly_has_the_same_bits(mode, precision, tmp_path):
    net = network(mode, 33)
    net.export_c(tmp_path, precision=precision)
    flags = "-O2", "-msimd128", "-ffp-contract=off", "-DRK_SOFT_FMA", "-ffreestanding", "-nostdlib"
    link = "-Wl,--no-entry", "-Wl,--export-all"
    command = ["clang", "--target=wasm32", *flags, *link, "model.c", "-o", "model.wasm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    x = np.random.default_rng(0).standard_normal((30, 7)).astype(np.float32)
    (tmp_path / "x").write_bytes(x.tobytes())
    (tmp_path / "run.js").write_text(RUN)
    found = subprocess.check_output(["node", "run.js", "model.wasm", "x", "30", "33"], cwd=tmp_path)
    expected = net.prepare(precision=precision).infer(x[:, None]).y[:, 0]
    np.testing.assert_array_equal(np.frombuffer(found, np.float32).reshape(30, 33), expected)


class Library:
    """A network in C, called from here."""

    def __init__(self, net, folder):
        net.export_c(folder)
        compiled(folder, "-O2", "-march=native", "-shared", "-fPIC", sources=["model.c"])
        self.library, self.desc, dtype = ctypes.CDLL(str(folder / "program")), net.desc, net.desc.np_dtype
        self.h = np.full((net.desc.num_layers, net.desc.output_size), 9, dtype)
        self.state = np.full(self.h.size + net.desc.num_layers * net.desc.states_size, 9, dtype)
        self.library.model_init(self.address(self.state))

    @staticmethod
    def address(array):
        return ctypes.c_void_p(array.ctypes.data)

    def run(self, x):
        y = np.empty((len(x), self.desc.output_size), self.desc.np_dtype)
        arguments = self.address(x), ctypes.c_size_t(len(x)), self.address(y), None
        self.library.model_run(self.address(self.state), *arguments)
        return y


def test_thousand_steps_and_the_last_states_have_the_same_bits(tmp_path):
    """In calls of any length, and from a state that is not the initial one."""
    net = network("lstm", num_layers=2)
    library, plan = Library(net, tmp_path), net.prepare()
    x = np.random.default_rng(0).standard_normal((1000, 7)).astype(np.float32)
    y = np.concatenate([library.run(part) for part in np.split(x, (1, 8, 8, 308))])
    expected = plan.infer(x[:, None])
    np.testing.assert_array_equal(y, expected.y[:, 0])
    np.testing.assert_array_equal(library.state, np.concatenate([expected.hy.ravel(), expected.cy.ravel()]))


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh", nightly(LayerNormLSTM()), nightly(KINDS["slstm"])])
def test_numbers_of_any_size_have_the_same_bits(mode, tmp_path):
    """States that decay until they are 0, inputs up to the largest, and then infinity and NaN."""
    net = network(mode, bias=False)
    library, rng = Library(net, tmp_path), np.random.default_rng(0)
    x = np.ldexp(rng.uniform(-1, 1, (700, 7)), rng.integers(-148, 128, (700, 7))).astype(np.float32)
    x[200:], x[-2, 2], x[-1, 3] = 0, np.inf, np.nan
    expected = net.infer(x[:, None]).y[:, 0]
    np.testing.assert_array_equal(library.run(x), expected)
    assert np.isfinite(expected[:-2]).all() and np.isnan(expected[-1]).all()


def other(x):
    return x if x > 0.25 else -x


@cell(gates=["int", Gate("x", apart="h_x"), "ä"], states="s")
class Awkward(NamedTuple):
    """Names that C has, or that a layer calls its own, and equations of any form."""

    double: float = 0.5
    flag: bool = True

    @forward("s h")
    def step(self, int, x, ä, h_x, s_prev, h_prev):
        u = fma(sigmoid(int), s_prev, tanh(x) * sigmoid(h_x))
        real = other(u) ** 3 + ä**2 if self.flag and (u > 0 or not u < -1) else abs(u) / (1 + u * u)
        rk_t = min(max(real, -self.double), 2.0)
        return u, rk_t + h_prev * 0.25


def test_names_and_equations_of_any_form(tmp_path):
    for flag in (True, False):
        assert_same_bits(network(Awkward(flag=flag)), tmp_path, "-O1")


def test_header_is_c_plus_plus_too(tmp_path):
    network("lstm").export_c(tmp_path, "amp2")
    program = '#include "amp2.h"\nint main() { amp2_state state; amp2_init(&state); return state.h[0][0] != 0; }\n'
    (tmp_path / "main.cpp").write_text(program)
    c_plus_plus = "c++", *WARNINGS, "main.cpp", "amp2.o", "-o", "main", "-lm"
    for command in "cc -std=c99 -c amp2.c -o amp2.o".split(), c_plus_plus, ["./main"]:
        subprocess.run(command, cwd=tmp_path, check=True)


def test_object_needs_no_library_and_has_no_globals(tmp_path):
    """But for what compilers always may call: memcpy and the like."""
    network(LayerNormLSTM(), num_layers=2).export_c(tmp_path)
    command = "cc -std=c99 -O3 -march=haswell -fno-math-errno -c model.c -o model.o"
    subprocess.run(command.split(), cwd=tmp_path, check=True)
    symbols = subprocess.check_output(["nm", "model.o"], cwd=tmp_path, text=True).splitlines()
    undefined = {line[19:] for line in symbols if line[17:18] == "U"}
    assert undefined <= {"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}
    assert not {*"DdBb"} & {line[17:18] for line in symbols}


@pytest.mark.parametrize("flag", ["-ffast-math", "-mfpmath=387"])
def test_arithmetic_that_changes_bits_does_not_compile(flag, tmp_path):
    network("gru").export_c(tmp_path)
    command = ["cc", "-std=c99", flag, "-fsyntax-only", tmp_path / "model.c"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode and "IEEE arithmetic" in done.stderr


def test_check_compiles_and_finds_a_wrong_bit(tmp_path, monkeypatch):
    net = network("gru")
    net.export_c(tmp_path, check=True)
    text = (tmp_path / "model.c").read_text()
    weight = literal(net.weights[5], np.float32)
    assert text.count(weight) == 1
    (tmp_path / "model.c").write_text(text.replace(weight, literal(net.weights[5] * 1.0001, np.float32)))
    with raises(RuntimeError, "export_c: model.c | have the bits of rnnkit | model_run: output"):
        check.check(tmp_path, "model")
    (tmp_path / "model.c").write_text("int")
    with raises(RuntimeError, "export_c: model.c | compile | error"):
        check.check(tmp_path, "model")
    monkeypatch.setenv("CC", "no-such-compiler")
    with raises(RuntimeError, "export_c: check | a C compiler | no-such-compiler"):
        net.export_c(tmp_path, check=True)


@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_literals_round_to_the_number(real):
    rng = np.random.default_rng(0)
    numbers = np.ldexp(rng.uniform(-2, 2, 500), rng.integers(-140, 120, 500)).astype(real)
    for number in (*numbers, real(0), real(1), real(-3), real(1e30)):
        assert real(literal(number, real).removesuffix("f")) == number
    assert literal(real("inf"), real) == "RK_INFINITY" and literal(real("nan"), real) == "RK_NAN"


def test_command_writes_and_checks(tmp_path, capsys):
    net, path = network("gru"), tmp_path / "net.npz"
    net.save(path, out=np.zeros(2 * 21, np.float32))
    arguments = ["--name", "amp", "--readout", "out", "--activation", "sigmoid", "--precision", "int8", "--check"]
    assert command_line.main(["export", str(path), str(tmp_path / "c"), *arguments]) == 0
    *files, last = capsys.readouterr().out.splitlines()
    assert files == [str(tmp_path / "c" / name) for name in ("amp.c", "amp.h", "amp_test.c")] and "bits" in last
