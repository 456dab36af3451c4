"""The suite of cells that are no modes: its loops compute what the engine does, and are timed where they can be."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from combinations import nightly
from messages import one_line_says

import rnnkit
from perf import __main__, baselines, cases, cell_suite, check, compare, report, run
from perf.cases import Case
from perf.own_lstm import OwnLSTM
from rnnkit import cells

if os.environ.get("CI") == "true":
    import torch  # in continuous integration these tests may not be skipped
else:
    torch = pytest.importorskip("torch")


def tiny(cell, **options):
    return Case("tiny", rnnkit.RNNDescriptor(cell, 3, 5, **options), seq_len=6, batch_size=4, device="cpu")


# Two have between them several states, vectors and gates without R; kernels of each take 8 s to compile.
BY_DEFAULT = cells.SLSTM, cells.IndRNN


@pytest.fixture(params=[
    (pytest.param if cell in BY_DEFAULT else nightly)(cell, id=cell.__name__) for cell in cell_suite.CELLS
    if cell not in (cells.LiGRU, cells.UGRNN, cells.STAR)  # like JANET, and RAN
])  # fmt: skip
def case(request):
    return tiny(request.param)


@pytest.fixture(autouse=True)
def _threads():
    """Other tests have the number of threads that there was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def second_results(engine, case, pass_name):
    """What is left by a second call, which has memory of the first."""
    subject = baselines.prepare(engine, case, pass_name, 1)
    subject.run()
    return subject.results(subject.run())


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


def without_none(arrays):
    return {name: array for name, array in arrays.items() if array is not None}


@pytest.mark.parametrize("pass_name", ["infer", "train"])
def test_the_engine_has_the_results_of_the_reference(case, pass_name):
    subject = baselines.reference(case, pass_name)
    expected = without_none(subject.results(subject.run()))
    assert {array.dtype for array in expected.values()} == {np.dtype(np.float64)}
    assert check.deviation(second_results("rnnkit", case, pass_name), expected, case.desc) is None


@pytest.mark.parametrize(
    ("engine", "pass_name"), [("torch-loop", "infer"), ("torch-loop", "train"), ("numba", "infer")]
)
def test_a_loop_has_the_results_of_the_engine(case, engine, pass_name):
    found = second_results(engine, case, pass_name)
    assert {array.dtype for array in without_none(found).values()} == {np.dtype(np.float32)}
    expected = without_none(second_results("rnnkit", case, pass_name))
    assert check.deviation(found, expected, case.desc) is None


def test_every_state_is_compared():
    case = tiny(cells.SLSTM)
    expected = without_none(second_results("torch-loop", case, "infer"))
    assert set(expected) == {"y", "hy", "cy[0]", "cy[1]", "cy[2]"}
    found = second_results("numba", case, "infer")
    found["cy[2]"] = found["cy[2]"] * np.float32(1.001)
    assert check.deviation(found, expected, case.desc) == "wrong: cy[2] deviates by 1.0e-03, more than 3e-05"


@pytest.mark.parametrize("pass_name", ["infer", nightly("train")])
def test_an_lstm_of_ones_own_has_the_bits_of_the_built_in_one(pass_name):
    own, built_in = (second_results(engine, tiny(OwnLSTM), pass_name) for engine in ("rnnkit", "built-in"))
    assert set(own) == set(built_in)
    for name, array in own.items():
        np.testing.assert_array_equal(built_in[name], array)


def test_the_built_in_one_is_not_its_own(monkeypatch):
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


@pytest.mark.parametrize(("engine", "mode", "pass_name", "why"), [
    ("torch-loop", cells.SLSTM, "train", None), ("torch-compiled", cells.MinGRU, "train", None),
    ("numba", cells.IndRNN, "infer", None), ("numba", cells.IndRNN, "train", "has no train"),
    ("built-in", OwnLSTM, "train", None), ("built-in", cells.PeepholeLSTM, "train", "only of an LSTM"),
    ("torch", OwnLSTM, "infer", "only of modes"), ("onnxruntime", OwnLSTM, "infer", "only of modes"),
    ("openvino", OwnLSTM, "infer", "only of modes"), ("by-hand", OwnLSTM, "infer", "only of modes"),
    ("unfused", OwnLSTM, "infer", "only of modes"),
    *((engine, "lstm", "infer", "only of cells") for engine in ("torch-loop", "torch-compiled", "numba", "built-in")),
])  # fmt: skip
def test_who_takes_part(engine, mode, pass_name, why):
    assert baselines.refusal(engine, tiny(mode), pass_name) == why


def test_the_work_of_gates_without_r():
    assert [cases.recurrent_flops(tiny(cell)) for cell in (cells.MinGRU, cells.IndRNN)] == [0, 0]
    assert cases.recurrent_flops(tiny(cells.MinimalGatedUnit)) == 2 * 6 * 4 * (2 * 5) * 5
    assert cases.flops(tiny(cells.MinGRU), "train") == 3 * 2 * 6 * 4 * (2 * 5) * 3
    assert cases.streamed_bytes(tiny(cells.MinGRU), "infer") == 0
    assert cases.streamed_bytes(tiny(OwnLSTM), "infer") == 4 * 5 * 5 * 4


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The report of a run of a tiny cell beside everything, each in its process, and its exit status."""
    path = tmp_path_factory.mktemp("perf") / "a.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell_suite, "CASES", (tiny(OwnLSTM)._replace(seq_len=2, passes=("infer",)),))
        arguments = ["run", "--suite", "cells", "--threads", "1", "--seconds", "0.01", "--out", str(path)]
        return __main__.main(arguments), path


def test_a_run_times_every_loop_with_right_results(measured):
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


def test_a_table_of_cells_has_columns_for_loops_alone(measured):
    headings = next(line for line in compare.tables(measured[1]).splitlines() if line.startswith("| case"))
    competitors = [heading.strip() for heading in headings.split("|") if "against" in heading]
    assert competitors == [f"against {engine}" for engine in baselines.CELL_LOOPS]


def test_a_suite_has_its_own_cases(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(run, "run", lambda pairs, *others: asked.extend(cases.row_name(*pair) for pair in pairs) or [])
    assert __main__.main(["run", "--suite", "cells", "--cases", "small/*GRU/*", "--passes", "train"]) == 0
    assert asked == ["small/MinGRU/train", "small/LiGRU/train"]
    assert __main__.main(["run", "--suite", "cells", "--cases", "small/gru/*"]) == 2
    assert one_line_says(capsys.readouterr().err, "perf: --cases", "lm/OwnLSTM/infer", "'small/gru/*'")
    monkeypatch.setattr(__main__, "find_spec", lambda name: None)
    assert __main__.main(["run", "--suite", "cells"]) == 2
    assert one_line_says(capsys.readouterr().err, "perf: --suite cells", "PyTorch", "pip install 'rnnkit[torch]'")
