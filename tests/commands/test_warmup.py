"""Compiling ahead: what a network needs is there afterwards, and a first call says what it is waiting for."""

import fcntl
import logging
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
from messages import one_line_says

from rnnkit.commands import command_line, warmup
from rnnkit.common import console

# What is compiled, or found on disk, from then on was not there: of one mode, in a process of its own.
NOTHING_LEFT = """
import numpy as np
import rnnkit
from rnnkit import training
from rnnkit.commands import warmup
from rnnkit_kernels.machine import jit

known, compile_signature = set(), jit._Kernel.compile

def compile(kernel, signature):
    assert warming or (kernel, signature) in known, f"{kernel} for {signature}"
    known.add((kernel, signature))
    return compile_signature(kernel, signature)

jit._Kernel.compile, warming = compile, True
for desc in warmup.networks(["rnn_tanh"], ["float32"]):
    warmup.compile_kernels(desc)
warmup.compile_kernels(rnnkit.RNNDescriptor("lstm", 1, 1), ["int8"])
warming = False
for options in ({}, {"num_layers": 3, "dropout": 0.5}, {"num_layers": 2, "bidirectional": True}):
    desc = rnnkit.RNNDescriptor("rnn_tanh", 3, 5, **options)
    w, x = rnnkit.init_weights(desc, seed=0), np.ones((4, 2, 3), np.float32)
    result = rnnkit.forward(desc, w, x, lengths=[4, 2])
    dw = rnnkit.backward(desc, w, result.workspace, result.y).dw
    training.clip_gradient_norm(dw, 1.0)
    for optimizer in (training.Adam(w), training.SGD(w), training.SGD(w, momentum=0.9, nesterov=True)):
        optimizer.step(dw, 0.01)
    plan = rnnkit.prepare(desc, w)
    plan.infer(x)
    if not desc.bidirectional:
        plan.step(x[0], result.hy)
plan = rnnkit.LSTM(3, 5, num_layers=2).prepare(precision="int8")
plan.infer(x, lengths=[4, 2])
plan.stream(3).step(x[0], rows=[2, 0])
assert len(known) > 5
"""
# What takes the least to compile.
COLD = """
import logging
import numpy as np
import sys
from rnnkit import training

if LISTENS:
    logging.getLogger("rnnkit").addHandler(logging.StreamHandler(sys.stdout))
    logging.getLogger("rnnkit").setLevel(logging.INFO)
training.clip_gradient_norm(np.ones(3, np.float32), 1.0)
"""
COMMAND = """
import numpy as np
from rnnkit import training
from rnnkit.commands import command_line, warmup
warmup.compile_kernels = lambda desc, precisions: training.clip_gradient_norm(np.ones(3, desc.dtype), 1.0)
command_line.main(["warmup", "--mode", "rnn_tanh", "--quiet"])
"""


def run(program, **environment):
    environment = os.environ | environment
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)


def test_warm_networks_compile_nothing():
    done = run(NOTHING_LEFT)
    assert done.returncode == 0, done.stderr


def test_command_reports_compiling_and_the_cache(tmp_path):
    done = run(COMMAND, NUMBA_CACHE_DIR=str(tmp_path))
    assert done.stderr.count("rnnkit: compiling kernels for this machine") == 1
    assert done.stdout.startswith(f"kernels   {tmp_path}/rnnkit/") and done.stdout.endswith(" MB\n")


def test_cold_first_call_is_logged_for_listeners_alone(tmp_path):
    for listens, said in ((False, ""), (True, "compiling kernels for this machine")):
        done = run(f"LISTENS = {listens}\n{COLD}", NUMBA_CACHE_DIR=str(tmp_path / str(listens)))
        assert (done.returncode, done.stdout[: len(said)], done.stderr) == (0, said, "")
        assert ("except for cells of your own\n" in done.stdout) == listens == bool(done.stdout)


def test_warmup_compiles_every_mode_formula_and_dtype(monkeypatch, capsys):
    seen, kinds = [], set()

    def compile_kernels(desc, precisions):
        seen.append(desc)
        kinds.update((desc.dtype, kind) for kind in precisions)

    monkeypatch.setattr(warmup, "compile_kernels", compile_kernels)
    assert command_line.main(["warmup"]) == 0
    cells = {(type(desc.cell).__name__, desc.dtype, desc.num_layers) for desc in seen}
    names = ("ReLU", "Tanh", "LSTM", "ResetAfterGRU", "ResetBeforeGRU")
    assert cells == {(name, dtype, layers) for name in names for dtype in ("float32", "float64") for layers in (1, 2)}
    assert not kinds
    seen.clear()
    assert command_line.main(["warmup", "--mode", "gru", "--mode", "lstm", "--dtype", "float64", "--quiet"]) == 0
    assert {(desc.mode, desc.dtype) for desc in seen} == {("gru", "float64"), ("lstm", "float64")}
    assert command_line.main(["warmup", "--precision", "int8", "--precision", "bfloat16"]) == 0
    assert kinds == {("float32", "int8"), ("float32", "bfloat16")}


def test_precision_needs_float32_and_help_excludes_cells(capsys):
    assert command_line.main(["warmup", "--precision", "int8", "--dtype", "float64"]) == 2
    assert one_line_says(capsys.readouterr().err, "rnnkit: warmup: --precision", "--dtype float32", "float64")
    with pytest.raises(SystemExit):
        command_line.main(["warmup", "--help"])
    assert "rnnkit.cells are not included" in " ".join(capsys.readouterr().out.split())


def test_logged_lines_are_shown_once(capsys):
    logger = logging.getLogger("rnnkit")
    before = list(logger.handlers), logger.level
    logger.handlers.clear()
    console.log_to_stderr()
    console.log_to_stderr()
    logger.info("something takes a while")
    logger.handlers[:], logger.level = before
    assert capsys.readouterr().err == "rnnkit: something takes a while\n"


WATCHED = """
import logging
from rnnkit.commands import command_line, warmup
warmup.compile_kernels = lambda desc, precisions: logging.getLogger("rnnkit").info("something takes a while")
command_line.main(["warmup", "--mode", "rnn_tanh", "--dtype", "float32"])
"""


def test_logged_lines_stand_above_the_progress_bar():
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    subprocess.run([sys.executable, "-c", WATCHED], stdout=subprocess.DEVNULL, stderr=its, check=True)
    found = os.read(ours, 1 << 16).decode()
    os.close(ours)
    os.close(its)
    seen = [line.split("\r")[-1] for line in found.replace("\r\n", "\n").split("\n")]  # what a terminal leaves
    assert seen.count("rnnkit: something takes a while") == 2
    assert "100%" in seen[-2] and seen[-1] == ""
