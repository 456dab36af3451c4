"""The command line of the harness: what each command prints and writes, and its exit status."""

import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
from messages import one_line_says
from optional import needs
from perf_runs import report_of_run
from repository import ROOT

import rnnkit
from perf import __main__, baselines, cases, report, run, startup
from perf.cases import Case

LSTM = rnnkit.RNNDescriptor("lstm", 3, 5, 2, True)
TINY = (
    Case("ds2", LSTM, seq_len=4, batch_size=2),  # a family that every engine takes part in
    Case("step-tiny", rnnkit.RNNDescriptor("lstm", 3, 5), 1, 2, passes=("step",)),
    Case("sweep-T4", rnnkit.RNNDescriptor("lstm", 3, 5), 4, 2, passes=("infer",), alone=True),
    Case("serve-tiny", rnnkit.RNNDescriptor("gru", 3, 5), 4, 2, passes=("serve",), num_streams=6),
)
RUNS = [(case, pass_name) for case in TINY for pass_name in case.passes]
NAMES = [cases.row_name(*run) for run in RUNS]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return report_of_run(tmp_path_factory, cases, TINY, "--threads", "1")


def test_run_times_every_engine_with_right_results(measured):
    status, path = measured
    source = report.read(path)
    assert (status, [row["name"] for row in source.rows]) == (0, NAMES)
    for (case, pass_name), row in zip(RUNS, source.rows, strict=True):
        assert row["rnnkit"] == report.OK
        assert float(row["seconds"]) > 0 and 0 < float(row["share_of_peak"]) < 1 and int(row["rounds"]) >= 3
        assert float(row["gflops"]) == pytest.approx(float(row["gflop"]) / float(row["seconds"]), rel=1e-4)
        for engine in baselines.COMPETITORS:
            assert row[engine] == (baselines.refusal(engine, case, pass_name) or report.OK)
            figures = [row[f"{engine}_{name}"] for name in ("ratio_min", "ratio_median", "ratio_max", "seconds")]
            if row[engine] == report.OK:
                least, middle, most, _ = map(float, figures)
                assert 0 < least <= middle <= most
            else:
                assert figures == [""] * 4
    assert [bool(row["share_of_limit"]) for row in source.rows] == [False, False, True, False, False]
    assert float(source.header["fma_peak_float32_1_threads"].split()[0]) > 1


def test_table_compare_and_plot_read_a_report(measured, tmp_path, capsys):
    path = measured[1]
    assert __main__.main(["table", str(path)]) == 0
    header, shares, fused = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert header.startswith("- date: ") and "- fma_peak_float32_1_threads: " in header
    assert re.findall(r"^\| (\S+/\S+) ", shares, re.M) == NAMES
    assert re.findall(r"^\| (\S+/\S+) ", fused, re.M) == NAMES[:2]
    assert __main__.main(["compare", str(path), str(path)]) == 0
    *rows, last = capsys.readouterr().out.splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == NAMES
    assert last == "geometric mean of 5 rows: 1.000 times as fast"
    needs("matplotlib")
    for options in ([], ["--out", str(tmp_path / "b.png")]):
        assert __main__.main(["plot", str(path), *options]) == 0
    assert path.with_suffix(".png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_unknown_case_is_refused_by_a_process():
    command = [sys.executable, "-m", "perf", "run", "--cases", "nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line_says(done.stderr, "perf: --cases", "ds2/lstm/infer", "'nothing'")


def test_options_reach_the_run_and_wrong_results_its_status(monkeypatch):
    asked, verdicts = [], [report.OK, report.OK]

    def noted(*arguments):
        asked.extend(arguments)
        return [{"rnnkit": verdict} for verdict in verdicts]

    monkeypatch.setattr(run, "run", noted)
    given = ["--against", "torch,unfused", "--passes", "train", "--threads", "3,1", "--seconds", "2", "--out", "a.csv"]
    assert __main__.main(["run", "--cases", "lm/*,small/gru/*", *given]) == 0
    names = [cases.row_name(*pair) for pair in asked.pop(0)]
    assert names == [f"lm/{mode}/train" for mode in ("rnn_relu", "rnn_tanh", "lstm", "gru")] + ["small/gru/train"]
    assert asked == [["torch", "unfused"], [3, 1], 2.0, "a.csv", "cpu"]
    verdicts.append("wrong: y deviates by 1")
    assert __main__.main(["run"]) == 1


def test_unreadable_report_is_refused(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("name,seconds\na,1\n")
    for name, fact in (("no.csv", "No such file or directory"), ("a.csv", "column D, H, I, L, N, P, T, ")):
        assert __main__.main(["table", str(tmp_path / name)]) == 2
        out, error = capsys.readouterr()
        assert out == "" and one_line_says(error, f"perf: {tmp_path / name}", fact)


def test_startup_times_first_calls_in_fresh_processes(monkeypatch, capsys):
    fresh = lru_cache(startup._fresh_process)
    # Kernels come from the tests' own cache and each program runs once: to compile them takes half a minute.
    monkeypatch.setattr(startup, "_fresh_process", lambda program, *arguments, cache=None: fresh(program, *arguments))
    monkeypatch.chdir(ROOT)
    assert __main__.main(["startup", "--modes", "rnn_tanh"]) == 0
    seconds = [float(number) for number in re.findall(r"\d+\.\d+", capsys.readouterr().out)]
    assert len(seconds) == 2 + 4 + 4 and min(seconds) > 0


def test_startup_figures_have_caches_of_their_own_cold_once(monkeypatch, capsys):
    seconds = {"infer": iter([8.0, 1.0, 9.0, 2.0, 3.0, 5.0]), "train": iter([16.0, 4.0, 4.0, 6.0, 7.0, 1.0])}
    seconds[None], folders = iter([0.5, 0.1, 0.2, 0.4, 0.3]), {}

    def fresh_process(program, mode=None, pass_name=None, cache=None):
        if mode is not None:
            filled = Path(cache, "kernel")
            assert filled.exists() == (cache in folders)  # empty the first time, and then kept
            filled.touch()
            folders.setdefault(cache, set()).add(pass_name)
        wall = next(seconds[pass_name])
        return startup.Cost(wall, 10 - wall)

    monkeypatch.setattr(startup, "_fresh_process", fresh_process)
    startup.startup(["gru"])
    assert capsys.readouterr().out.splitlines() == [
        "import rnnkit, beyond numpy: 0.30 s (9.70 s CPU)",
        "first call, gru/infer: cold cache 8.00 s (2.00 s CPU), warm cache 3.00 s (7.00 s CPU)",
        "first call, gru/train: cold cache 16.00 s (-6.00 s CPU), warm cache 4.00 s (6.00 s CPU)",
    ]
    assert sorted(folders.values(), key=sorted) == [{"infer"}, {"train"}]
    assert not any(Path(folder).exists() for folder in folders)


def test_fresh_process_has_its_cache_and_arguments(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "elsewhere")
    program = "import os, sys; print(0.5 if [os.environ['NUMBA_CACHE_DIR'], *sys.argv[1:]] == {} else 2, 0.25)"
    assert startup._fresh_process(program.format(["elsewhere"])) == (0.5, 0.25)
    found = startup._fresh_process(program.format([str(tmp_path), "a", "b"]), "a", "b", cache=str(tmp_path))
    assert found == (0.5, 0.25)
    with pytest.raises(subprocess.CalledProcessError):  # a failed process gives no figure
        startup._fresh_process("print(1); raise SystemExit(3)")
