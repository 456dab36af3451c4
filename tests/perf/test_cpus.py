"""Speedups by kind of CPU: the row that a report becomes, the file of rows, and the page that is made from it."""

import re

import pytest
from messages import one_line_says

from perf import cpu_page, cpus, report
from perf.__main__ import main

EMERALD = "Intel(R) Xeon(R) Processor (family 6, model 207), 2 processors, Linux"
HEADER = {
    "date": "2026-11-28T13:58:05+00:00",
    "command": "python -m perf run --threads 2,1 --out /folder/report.csv --seconds 1",
    "commit": "0123456789ab-dirty",
    "machine": EMERALD,
    "rnnkit": "1.0.0",
    "torch": "2.13.0+cpu",
    "onnxruntime": "1.32.0",
    "fma_peak_float32_2_threads": "400.5 GF/s",
}
# Name, threads, ratio to PyTorch, to ONNX Runtime
TIMED = (
    ("ds2/lstm/infer", 2, 1.0, 2.0),
    ("lm/lstm/infer", 2, 4.0, 0.5),
    ("lm/lstm/train", 2, 0.994, None),
    ("small/lstm/infer", 2, 0.996, 3.0),
    ("small/gru/train", 2, 9.0, None),
    ("small/rnn_tanh/train", 2, 4.0, None),
    ("varlen/gru/infer", 2, 3.0, None),
    ("proj/lstm/infer", 2, 5.0, None),
    ("f64/gru/infer", 2, 5.0, None),
    ("step-n1-h32/gru/step", 2, 7.0, 3.0),
    ("lm/lstm/infer", 1, 1.5, None),
)
# Not counted: of other suites, without a competitor, without a right result.
OTHERS = (
    ("lm-int8/lstm/infer", 2, 0.1, 0.1),
    ("serve-n1-h128/lstm/serve", 2, 0.1, 0.1),
    ("odd/lstm/infer", 2, None, None),
)


def a_report(path, timed=TIMED + OTHERS, **header):
    with path.open("w") as file:
        writer = report.Writer(file, {key: text for key, text in (HEADER | header).items() if text is not None})
        for name, threads, *ratios in timed:
            row = {"name": name, "threads": threads, "seconds": 1.0, "rnnkit": report.OK}
            medians = dict(zip(("torch_ratio_median", "onnxruntime_ratio_median"), ratios, strict=True))
            writer.write(row | {column: ratio for column, ratio in medians.items() if ratio})
        writer.write({"name": "ds2/lstm/train", "threads": 2, "rnnkit": "wrong: y deviates by 1"})
    return path


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """The file of CPUs, not there yet, and the page, with marks and nothing between them."""
    monkeypatch.setattr(cpu_page, "DATA", tmp_path / "perf-cpus.csv")
    monkeypatch.setattr(cpu_page, "PAGE", tmp_path / "page.md")
    cpu_page.PAGE.write_text(f"# Before\n\n{cpu_page.START}\n{cpu_page.STOP}\n\nAfter\n")
    return tmp_path


def test_kind_follows_from_family_and_model():
    found = [(family, model, kind) for kind, (family, models) in cpus.KINDS.items() for model in models]
    assert {(6, 207, "Intel Emerald Rapids"), (25, 1, "AMD Zen 3"), (25, 0x61, "AMD Zen 4")} <= {*found}
    for family, model, kind in found:  # no two kinds have a model
        assert cpus.kind_of(f"a name (family {family}, model {model}), 2 processors") == kind


def test_report_becomes_a_row_for_each_number_of_threads(tmp_path):
    one, two = cpus.rows_of(a_report(tmp_path / "a.csv"), note="busy")
    facts = {"cpu": "Intel Emerald Rapids", "date": "2026-11-28", "rnnkit": "1.0.0", "commit": "0123456-dirty"}
    facts |= {"torch": "2.13.0", "onnxruntime": "1.32.0", "note": "busy"}
    facts["command"] = "python -m perf run --threads 2,1 --seconds 1"  # without a path of the machine
    assert facts.items() <= one.items() and facts.items() <= two.items()
    assert [(row["threads"], row["peak_float32"]) for row in (one, two)] == [("1", ""), ("2", "400.5")]
    means = {key: text for key, text in two.items() if key.startswith(tuple(cpus.GROUPS)) and text}
    assert means == {
        "large_lstm_cases": "2",
        "large_lstm_torch_infer": "2.00",
        "large_lstm_onnxruntime_infer": "1.00",
        "large_lstm_torch_train": "0.99",
        "few_lstm_cases": "1",
        "few_lstm_torch_infer": "1.00",
        "few_lstm_onnxruntime_infer": "3.00",
        "gru_vanilla_cases": "2",
        "gru_vanilla_torch_train": "6.00",
        "unequal_lengths_cases": "1",
        "unequal_lengths_torch_infer": "3.00",
        "projection_float64_cases": "2",
        "projection_float64_torch_infer": "5.00",
        "single_steps_cases": "1",
        "single_steps_torch_infer": "7.00",
        "single_steps_onnxruntime_infer": "3.00",
    }
    assert (one["large_lstm_torch_infer"], one["large_lstm_cases"], one["few_lstm_cases"]) == ("1.50", "1", "")


def test_row_names_the_slowest_cases(tmp_path):
    one, two = cpus.rows_of(a_report(tmp_path / "a.csv"))
    assert two["slower"] == "lm/lstm/infer onnxruntime 0.50; lm/lstm/train torch 0.99"  # 0.996 is level
    assert [two[name] for name in cpus.WORST] == ["lm/lstm/train", "0.99", "lm/lstm/infer", "0.50"]
    assert [one[name] for name in ("slower", *cpus.WORST)] == ["", "lm/lstm/infer", "1.50", "", ""]


def test_command_adds_or_replaces_rows_and_writes_the_page(docs, capsys):
    assert main(["cpu", str(a_report(docs / "a.csv")), "--note", "busy"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "perf-cpus.csv: 2 added, 0 replaced, 2 in all"
    page = cpu_page.PAGE.read_text()
    assert page.startswith(f"# Before\n\n{cpu_page.START}\n\n## Intel Emerald Rapids\n\nOne thread: rnnkit 1.0.0 at ")
    assert page.endswith(f"|\n\n{cpu_page.STOP}\n\nAfter\n") and page.count("## ") == 1
    table = [line for line in page.splitlines() if line.startswith("|")]
    columns = "| inference: vs PyTorch | inference: vs ONNX Runtime | training: vs PyTorch |"
    assert table[0] == f"| cases | threads {columns}"
    assert table[2:6] == [  # what is slower than a peer stands first
        "| gains least: lm lstm | 1 | 1.50x | | |",
        "| **slower**: lm lstm | 2 | | 0.50x | |",
        "| **slower**: lm lstm | 2 | | | 0.99x |",
        "| large LSTM (H from 200, N from 8): 1 case | 1 | 1.50x | | |",
    ]
    assert "| large LSTM (H from 200, N from 8): 2 cases | 2 | 2.00x | 1.00x | 0.99x |" in table
    assert len(table) == 2 + 3 + 1 + len(cpus.GROUPS)
    assert main(["cpu", str(a_report(docs / "a.csv", TIMED[-1:])), "--note", "idle *"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "perf-cpus.csv: 0 added, 1 replaced, 2 in all"
    assert "; idle \\*." in cpu_page.PAGE.read_text()


def test_report_that_makes_no_row_is_refused(docs, capsys):
    unknown = {"machine": "a CPU (family 6, model 1)"}, ("family 6, model 1", "KINDS", "--kind")
    for timed, header, facts in ((TIMED, *unknown), (OTHERS, {}, ("PyTorch or ONNX Runtime",))):
        assert main(["cpu", str(a_report(docs / "a.csv", timed, **header))]) == 2
        out, error = capsys.readouterr()
        assert out == "" and one_line_says(error, "perf:", *facts)
    assert not cpu_page.DATA.exists()


def test_page_has_the_tables_of_its_file():
    rows, page = cpus.read(cpu_page.DATA), cpu_page.PAGE.read_text(encoding="utf-8")
    assert cpu_page.with_tables(page, rows) == page, "python -m perf cpu writes the page anew"


def test_kept_file_is_as_the_command_writes_it(tmp_path):
    rows = cpus.read(cpu_page.DATA)
    cpus.write(tmp_path / "a.csv", reversed(rows))
    assert (tmp_path / "a.csv").read_bytes() == cpu_page.DATA.read_bytes()
    assert cpus.with_rows(rows, rows) == rows


def test_row_of_the_kept_report_has_its_figures():
    (own,) = cpus.rows_of(cpu_page.DATA.parent / "perf-engines.csv")
    (kept,) = (row for row in cpus.read(cpu_page.DATA) if row["commit"] == own["commit"])
    assert {**kept, "note": ""} == {**own, "note": ""}


def test_row_of_zen_3_has_the_figures_of_the_published_table():
    page = cpu_page.PAGE.read_text(encoding="utf-8").partition("## A CPU without AVX-512")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (\S+) (\S+) \| (\S+)x \| (\S+?)x? ", page, re.M)
    slower = {f"{family}/{mode}/infer onnxruntime {ratio}" for family, mode, _, ratio in found if ratio < "1"}
    (kept,) = (row for row in cpus.read(cpu_page.DATA) if row["cpu"] == "AMD Zen 3")
    assert len(found) == 21 and set(kept["slower"].split("; ")) == slower
