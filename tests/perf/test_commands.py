"""The command line of the harness: what each command prints and writes, and its exit status."""

import re
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from messages import one_line_says, says
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
ONNX_ENGINES = "onnxruntime", "openvino"
NAMES = ["ds2/lstm/infer", "ds2/lstm/train", "step-tiny/lstm/step", "sweep-T4/lstm/infer", "serve-tiny/gru/serve"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return report_of_run(tmp_path_factory, cases, TINY, "--threads", "1")


def test_run_times_every_engine_with_right_results(measured):
    status, path = measured
    source = report.read(path)
    assert (status, [row["name"] for row in source.rows]) == (0, NAMES)
    verdicts = {
        "rnnkit": [report.OK] * 5,
        "torch": [report.OK] * 3 + ["not asked", report.OK],
        **dict.fromkeys(ONNX_ENGINES, [report.OK, "has no train", report.OK, "not asked", report.OK]),
        "by-hand": ["only of streams"] * 3 + ["not asked", report.OK],
        "unfused": [report.OK, report.OK, "only in the tables", "not asked", "only in the tables"],
        **dict.fromkeys(baselines.CELL_LOOPS, ["only of cells"] * 5),
    }
    for engine, modules in {"torch": ["torch"], **{name: ["onnx", name] for name in ONNX_ENGINES}}.items():
        if not all(map(find_spec, modules)):
            verdicts[engine] = ["not installed"] * 5
    for engine, expected in verdicts.items():
        assert [row[engine] for row in source.rows] == expected
    for row in source.rows:
        assert float(row["seconds"]) > 0 and 0 < float(row["share_of_peak"]) < 1 and int(row["rounds"]) >= 3
        assert float(row["gflops"]) == pytest.approx(float(row["gflop"]) / float(row["seconds"]), rel=1e-4)
        for engine in ("torch", *ONNX_ENGINES, "by-hand", "unfused"):
            figures = [row[f"{engine}_{name}"] for name in ("ratio_min", "ratio_median", "ratio_max", "seconds")]
            if row[engine] == report.OK:
                least, middle, most, _ = map(float, figures)
                assert 0 < least <= middle <= most
            else:
                assert figures == [""] * 4
    assert [bool(row["share_of_limit"]) for row in source.rows] == [False, False, True, False, False]
    assert float(source.header["fma_peak_float32_1_threads"].split()[0]) > 1


def perf_process(*arguments):
    return subprocess.run([sys.executable, "-m", "perf", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_table_is_printed_by_a_process(measured):
    done = perf_process("table", measured[1])
    assert (done.returncode, done.stderr) == (0, "")
    header, shares, fused = done.stdout.rstrip("\n").split("\n\n")
    assert header.startswith("- date: ") and "- fma_peak_float32_1_threads: " in header
    assert re.findall(r"^\| (\S+/\S+) ", shares, re.M) == NAMES
    assert re.findall(r"^\| (\S+/\S+) ", fused, re.M) == NAMES[:2]


def test_report_is_as_fast_as_itself(measured, capsys):
    path = str(measured[1])
    assert __main__.main(["compare", path, path]) == 0
    *rows, last = capsys.readouterr().out.splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == NAMES
    assert last == "geometric mean of 5 rows: 1.000 times as fast"


def test_plot_is_written_beside_its_report_or_to_out(measured, tmp_path):
    needs("matplotlib")
    path = measured[1]
    assert __main__.main(["plot", str(path)]) == 0
    assert __main__.main(["plot", str(path), "--out", str(tmp_path / "b.png")]) == 0
    assert path.with_suffix(".png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_unknown_case_is_refused():
    done = perf_process("run", "--cases", "nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line_says(done.stderr, "perf: --cases", "ds2/lstm/infer", "'nothing'")


@pytest.fixture
def asked(monkeypatch):
    """What a run is asked to do; its rows have these verdicts."""
    found = {"verdicts": [report.OK]}

    def noted(pairs, against, threads, seconds, out, device):
        found.update(pairs=pairs, against=against, threads=threads, seconds=seconds, out=out, device=device)
        return [{"rnnkit": verdict} for verdict in found["verdicts"]]

    monkeypatch.setattr(run, "run", noted)
    monkeypatch.setattr(__main__, "_gpu", lambda: True)
    return found


def test_options_reach_the_run(asked):
    given = ["--against", "torch,unfused", "--passes", "train", "--threads", "3,1", "--seconds", "2", "--out", "a.csv"]
    assert __main__.main(["run", "--cases", "lm/*,small/gru/*", *given]) == 0
    names = [cases.row_name(*pair) for pair in asked.pop("pairs")]
    assert names == [f"lm/{mode}/train" for mode in ("rnn_relu", "rnn_tanh", "lstm", "gru")] + ["small/gru/train"]
    expected = {"against": ["torch", "unfused"], "threads": [3, 1], "seconds": 2.0, "out": "a.csv", "device": "cpu"}
    assert asked == expected | {"verdicts": [report.OK]}


def test_run_on_a_gpu_has_one_thread_count_and_its_own_cases(asked):
    assert __main__.main(["run", "--device", "cuda", "--threads", "3,1", "--tf32"]) == 0
    assert (asked["threads"], asked["device"]) == ([3], "cuda")
    assert {case.desc.dtype for case, _ in asked["pairs"]} == {"float32"}
    assert all(case.desc.allow_tf32 for case, _ in asked["pairs"])
    assert "tiny" in {case.family for case, _ in asked["pairs"]}


@pytest.mark.parametrize("verdict", ["wrong: y deviates by 1", "failed: rnnkit: its process ended with -9"])
def test_run_with_a_wrong_result_has_status_1(asked, verdict):
    asked["verdicts"] = [report.OK, verdict, report.OK]
    assert __main__.main(["run"]) == 1


@pytest.mark.parametrize(
    ("arguments", "where", "fact"),
    [
        ("table {0}/no.csv", "perf: {0}/no.csv:", "No such file or directory"),
        ("compare {0}/a.csv {0}/a.csv", "perf: {0}/a.csv", "column D, H, I, L, N, P, T, "),
    ],
)
def test_unreadable_report_is_refused(arguments, where, fact, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("name,seconds\na,1\n")
    assert __main__.main([part.format(tmp_path) for part in arguments.split()]) == 2
    out, error = capsys.readouterr()
    assert out == "" and one_line_says(error, where.format(tmp_path), fact)


@pytest.mark.parametrize(
    ("arguments", "option", "facts"),
    [
        ("run --threads 2,0", "--threads", [1, "2,0"]),
        ("run --against jax", "--against", [", ".join(baselines.COMPETITORS), "jax"]),
        ("startup --modes gru,no", "--modes", ["rnn_relu, rnn_tanh, lstm, gru", "no"]),
    ],
)
def test_wrong_option_values_are_refused(arguments, option, facts, capsys):
    with pytest.raises(SystemExit, match="2"):
        __main__.main(arguments.split())
    message = capsys.readouterr().err.splitlines()[-1]
    assert re.search(says(f"argument {option}:", *facts), message.partition("error: ")[2]), message


def test_startup_times_first_calls_in_fresh_processes(monkeypatch, capsys):
    fresh = lru_cache(startup._fresh_process)
    # Kernels come from the tests' own cache and each program runs once: to compile them takes half a minute.
    monkeypatch.setattr(startup, "_fresh_process", lambda program, *arguments, cache=None: fresh(program, *arguments))
    monkeypatch.chdir(ROOT)
    assert __main__.main(["startup", "--modes", "rnn_tanh"]) == 0
    out = capsys.readouterr().out
    assert [re.sub(r"\d+\.\d+", "#", line) for line in out.splitlines()] == [
        "import rnnkit, beyond numpy: # s (# s CPU)",
        "first call, rnn_tanh/infer: cold cache # s (# s CPU), warm cache # s (# s CPU)",
        "first call, rnn_tanh/train: cold cache # s (# s CPU), warm cache # s (# s CPU)",
    ]
    assert all(float(seconds) > 0 for seconds in re.findall(r"\d+\.\d+", out))


def test_startup_figures_have_caches_of_their_own_cold_once(monkeypatch, capsys):
    seconds = {"infer": iter([8.0, 1.0, 9.0, 2.0, 3.0, 5.0]), "train": iter([16.0, 4.0, 4.0, 6.0, 7.0, 1.0])}
    imports, folders = iter([0.5, 0.1, 0.2, 0.4, 0.3]), {}

    def fresh_process(program, mode=None, pass_name=None, cache=None):
        if mode is None:
            assert "import rnnkit" in program and cache is None
            return cost(next(imports))
        assert mode == "gru"
        filled = Path(cache, "kernel")
        assert filled.exists() == (cache in folders)  # empty the first time, and then kept
        filled.touch()
        folders.setdefault(cache, set()).add(pass_name)
        return cost(next(seconds[pass_name]))

    def cost(seconds):
        return startup.Cost(seconds, 10 - seconds)

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


def test_idle_time_is_no_cpu_time(monkeypatch, tmp_path):
    (tmp_path / "rnnkit.py").write_text("import threading\nthreading.Event().wait(0.5)\n")
    monkeypatch.chdir(tmp_path)
    found = startup._fresh_process(startup._IMPORT)
    assert found.cpu < 0.25 and found.wall > 0.45


def test_failed_process_gives_no_figure():
    with pytest.raises(subprocess.CalledProcessError):
        startup._fresh_process("print(1); raise SystemExit(3)")
