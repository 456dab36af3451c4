"""The suite of cells that are no modes: its loops compute what the engine does, and are timed where they can be."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from combinations import nightly, weekly
from perf_runs import report_of_run, second_results

import rnnkit
from perf import baselines, cases, cell_suite, check, compare, report
from perf.cases import Case
from perf.own_lstm import OwnLSTM
from rnnkit import cells

pytestmark = pytest.mark.usefixtures("torch_threads_as_before")


def tiny(cell, **options):
    return Case("tiny", rnnkit.RNNDescriptor(cell, 3, 5, **options), seq_len=6, batch_size=4, device="cpu")


# Two have between them several states, vectors and gates without R; kernels of each take 8 s to compile.
BY_DEFAULT = cells.SLSTM, cells.IndRNN
COMPARED = [cell for cell in cell_suite.CELLS if cell not in (cells.LiGRU, cells.UGRNN, cells.STAR)]  # like JANET, RAN


@pytest.fixture(params=[(pytest.param if c in BY_DEFAULT else weekly)(c, id=c.__name__) for c in COMPARED])
def case(request):
    return tiny(request.param)


def results_of(engine, case, pass_name):
    return second_results(baselines.prepare(engine, case, pass_name, 1))


def not_alike(gates):
    """Whether a cell has other gates than those with rows of both W and R, in one head, and others of W alone around
    them; R multiplies h, but for a second gate of two."""
    odd = any(gate.apart or gate.heads > 1 or not gate.input for gate in gates)
    of_r = [gate.multiplies for gate in gates if gate.multiplies is not None]
    return odd or len(set(of_r[1:])) > 1 or (len(of_r) < len(gates) and {*of_r} - {"h"} != set())


def test_every_shipped_cell_is_timed_as_the_lstm_is():
    shipped = {cell for cell in (getattr(cells, name) for name in cells.__all__) if hasattr(cell, "declaration")}
    untimed = {cell for cell in shipped if not_alike(cell.declaration.gates)}
    untimed |= {cells.ActivatedLSTM, cells.FastGRNN}  # the LSTM with other functions; scalars
    untimed |= {cells.RegularizedLSTM, cells.VariationalLSTM}  # the suite of norms has them
    assert shipped - untimed == {*cell_suite.CELLS} - {OwnLSTM}
    lstms = {case.family: case for case in cases.CASES if case.desc.mode == "lstm"}
    names = [f"{family}/{cell.__name__}" for family in ("lm", "small") for cell in cell_suite.CELLS]
    assert [case.name for case in cell_suite.CASES] == names
    for case in cell_suite.CASES:
        lstm = lstms[case.family]
        assert case._replace(desc=replace(case.desc, mode="lstm"), device=None) == lstm


RUNS = [("rnnkit", "infer"), ("rnnkit", "train"), ("torch-loop", "infer"), ("torch-loop", "train"), ("numba", "infer")]


@pytest.mark.parametrize(("engine", "pass_name"), RUNS)
def test_engines_have_the_results_of_the_reference(case, engine, pass_name):
    expected, found = second_results(baselines.reference(case, pass_name)), results_of(engine, case, pass_name)
    for results, dtype in ((expected, np.float64), (found, np.float32)):
        assert {array.dtype for array in results.values()} == {np.dtype(dtype)}
    assert check.deviation(found, expected, case.desc) is None
    assert sum(name[0] != "d" for name in found) == 2 + len(case.desc.cell.declaration.states)  # y, hy, other states


@pytest.mark.parametrize("pass_name", ["infer", nightly("train")])
def test_own_lstm_is_bit_identical_to_the_built_in(pass_name, monkeypatch):
    own, built_in = (results_of(engine, tiny(OwnLSTM), pass_name) for engine in ("rnnkit", "built-in"))
    assert set(own) == set(built_in)
    for name, array in own.items():
        np.testing.assert_array_equal(built_in[name], array)
    asked = []
    monkeypatch.setattr(rnnkit, "prepare", lambda desc, w, precision: asked.append(desc.mode))
    baselines.prepare("built-in", tiny(OwnLSTM), "infer", 1)
    assert asked == ["lstm"]


def test_only_the_compiled_loop_is_compiled(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda forward: compiled.append(forward) or forward)
    for engine in ("torch-loop", "torch-compiled"):
        baselines.prepare(engine, tiny(OwnLSTM), "infer", 3).run()
        assert len(compiled) == (engine == "torch-compiled") and torch.get_num_threads() == 3


def test_gates_without_r_have_no_recurrent_work():
    assert [cases.recurrent_flops(tiny(cell)) for cell in (cells.MinGRU, cells.IndRNN)] == [0, 0]
    assert cases.recurrent_flops(tiny(cells.MinimalGatedUnit)) == 2 * 6 * 4 * (2 * 5) * 5
    assert cases.flops(tiny(cells.MinGRU), "train") == 3 * 2 * 6 * 4 * (2 * 5) * 3
    assert cases.streamed_bytes(tiny(cells.MinGRU), "infer") == 0
    assert cases.streamed_bytes(tiny(OwnLSTM), "infer") == 4 * 5 * 5 * 4


@pytest.mark.nightly
def test_run_times_every_loop_with_right_results(tmp_path_factory):
    cases = (tiny(OwnLSTM)._replace(seq_len=2, passes=("infer",)),)
    status, path = report_of_run(tmp_path_factory, cell_suite, cases, "--suite", "cells", "--threads", "1")
    (row,) = report.read(path).rows
    assert (status, row["name"]) == (0, "tiny/OwnLSTM/infer")
    verdicts = {name: baselines.refusal(name, cases[0], "infer") or report.OK for name in baselines.COMPETITORS}
    if shutil.which("g++") is None:  # which PyTorch's compiler calls
        assert row["torch-compiled"].startswith("failed: ") and row["torch-compiled_seconds"] == ""
        verdicts["torch-compiled"] = row["torch-compiled"]
    assert {name: row[name] for name in ("rnnkit", *verdicts)} == {"rnnkit": report.OK} | verdicts
    for engine in (engine for engine, verdict in verdicts.items() if verdict == report.OK):
        assert 0 < float(row[f"{engine}_ratio_min"]) <= float(row[f"{engine}_ratio_max"])
    headings = next(line for line in compare.tables(path).splitlines() if line.startswith("| case"))
    competitors = [heading.strip() for heading in headings.split("|") if "against" in heading]
    assert competitors == [f"against {engine}" for engine in baselines.CELL_LOOPS]
