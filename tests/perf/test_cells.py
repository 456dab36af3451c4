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


@pytest.mark.parametrize("pass_name", ["infer", "train"])
def test_engine_has_the_results_of_the_reference(case, pass_name):
    expected = second_results(baselines.reference(case, pass_name))
    assert {array.dtype for array in expected.values()} == {np.dtype(np.float64)}
    assert check.deviation(results_of("rnnkit", case, pass_name), expected, case.desc) is None


LOOPS = [("torch-loop", "infer"), ("torch-loop", "train"), ("numba", "infer")]


@pytest.mark.parametrize(("engine", "pass_name"), LOOPS)
def test_loops_have_the_results_of_the_engine(case, engine, pass_name):
    found = results_of(engine, case, pass_name)
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}
    assert check.deviation(found, results_of("rnnkit", case, pass_name), case.desc) is None


def test_every_state_is_compared():
    case = tiny(cells.SLSTM)
    expected = results_of("torch-loop", case, "infer")
    assert set(expected) == {"y", "hy", "cy[0]", "cy[1]", "cy[2]"}
    found = results_of("numba", case, "infer")
    found["cy[2]"] = found["cy[2]"] * np.float32(1.001)
    assert check.deviation(found, expected, case.desc) == "wrong: cy[2] deviates by 1.0e-03, more than 3e-05"


@pytest.mark.parametrize("pass_name", ["infer", nightly("train")])
def test_own_lstm_is_bit_identical_to_the_built_in(pass_name):
    own, built_in = (results_of(engine, tiny(OwnLSTM), pass_name) for engine in ("rnnkit", "built-in"))
    assert set(own) == set(built_in)
    for name, array in own.items():
        np.testing.assert_array_equal(built_in[name], array)


def test_built_in_lstm_runs_as_a_mode(monkeypatch):
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


@pytest.mark.parametrize(
    ("engine", "mode", "pass_name", "why"),
    [
        ("torch-loop", cells.SLSTM, "train", None),
        ("torch-compiled", cells.MinGRU, "train", None),
        ("numba", cells.IndRNN, "infer", None),
        ("numba", cells.IndRNN, "train", "has no train"),
        ("built-in", OwnLSTM, "train", None),
        ("built-in", cells.PeepholeLSTM, "train", "only of an LSTM"),
    ],
)
def test_competitors_refuse_what_they_lack(engine, mode, pass_name, why):
    assert baselines.refusal(engine, tiny(mode), pass_name) == why


def test_gates_without_r_have_no_recurrent_work():
    assert [cases.recurrent_flops(tiny(cell)) for cell in (cells.MinGRU, cells.IndRNN)] == [0, 0]
    assert cases.recurrent_flops(tiny(cells.MinimalGatedUnit)) == 2 * 6 * 4 * (2 * 5) * 5
    assert cases.flops(tiny(cells.MinGRU), "train") == 3 * 2 * 6 * 4 * (2 * 5) * 3
    assert cases.streamed_bytes(tiny(cells.MinGRU), "infer") == 0
    assert cases.streamed_bytes(tiny(OwnLSTM), "infer") == 4 * 5 * 5 * 4


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    cases = (tiny(OwnLSTM)._replace(seq_len=2, passes=("infer",)),)
    return report_of_run(tmp_path_factory, cell_suite, cases, "--suite", "cells", "--threads", "1")


@pytest.mark.nightly
def test_run_times_every_loop_with_right_results(measured):
    status, path = measured
    (row,) = report.read(path).rows
    assert (status, row["name"]) == (0, "tiny/OwnLSTM/infer")
    verdicts = {engine: row[engine] for engine in ("rnnkit", *baselines.COMPETITORS)}
    if shutil.which("g++") is None:  # which PyTorch's compiler calls
        assert verdicts.pop("torch-compiled").startswith("failed: ") and row["torch-compiled_seconds"] == ""
    others = dict.fromkeys(("torch", "onnxruntime", "openvino", "by-hand", "unfused"), "only of modes")
    others["float32"] = "only of quantized weights"
    assert verdicts == dict.fromkeys(verdicts, report.OK) | others
    for engine in set(verdicts) - set(others) - {"rnnkit"}:
        assert 0 < float(row[f"{engine}_ratio_min"]) <= float(row[f"{engine}_ratio_max"])


@pytest.mark.nightly
def test_table_of_cells_has_columns_for_loops_alone(measured):
    headings = next(line for line in compare.tables(measured[1]).splitlines() if line.startswith("| case"))
    competitors = [heading.strip() for heading in headings.split("|") if "against" in heading]
    assert competitors == [f"against {engine}" for engine in baselines.CELL_LOOPS]
