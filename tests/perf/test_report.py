"""Reports: what stands in the file, what is read out of it, and what is drawn."""

import os
import sys

import numpy as np
import pytest
from messages import says
from optional import needs

import rnnkit
from perf import compare, report
from perf.cases import Case, flops

TINY = Case("tiny", rnnkit.RNNDescriptor("lstm", 3, 5, 2, True), seq_len=4, batch_size=2)
HEADER = {"commit": "abc", "command": "python -m perf run: with, commas"}


def timed_row(case, seconds, pass_name="train", threads=2, **cells):
    own = {"rnnkit": report.OK, "rounds": 3, "seconds": seconds, "gflops": 1.0, "share_of_peak": 0.5}
    return report.facts(case, pass_name, threads) | own | cells


@pytest.fixture
def written(tmp_path):
    def write(name, rows, header=HEADER):
        path = tmp_path / name
        with path.open("w") as file:
            writer = report.Writer(file, header)
            for row in rows:
                writer.write(row)
        return path

    return write


def cells(line):
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_report_is_read_as_it_was_written(written):
    source = report.read(written("a.csv", [timed_row(TINY, 0.125, torch="not installed")]))
    assert source.header == HEADER
    assert len(source.rows) == 1 and source.rows[0].keys() == set(report.COLUMNS)
    expected = {"name": "tiny/lstm/train", "threads": "2", "dtype": "float32", "seconds": "0.125"}
    expected |= dict(zip("TNIHPLD", "4235522", strict=True)) | {"torch": "not installed", "unfused_seconds": ""}
    assert expected.items() <= source.rows[0].items()
    assert float(source.rows[0]["gflop"]) == pytest.approx(flops(TINY, "train") / 1e9)
    assert source.rows[0]["workspace_bytes"] == str(rnnkit.workspace_nbytes(TINY.desc, 4, 2))


def test_header_has_command_commit_machine_and_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith(report._VARIABLES)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("NUMBA_CPU_NAME", "haswell")
    monkeypatch.setattr(sys, "argv", ["perf", "run", "--threads", "2"])
    header = report.machine()
    assert header["command"] == "python -m perf run --threads 2" and header["commit"]
    assert header["numpy"] == np.__version__ and f"{os.cpu_count()} processors" in header["machine"]
    assert header["environment"] == "NUMBA_CPU_NAME=haswell OMP_NUM_THREADS=3"


def test_compare_divides_old_seconds_by_new_seconds(written):
    other = TINY._replace(family="other")
    # Another number of threads is another row; so is one that only one report has.
    old = written("a.csv", [timed_row(TINY, 2.0), timed_row(other, 1.0), timed_row(TINY, 9.0, threads=1)])
    new = written("b.csv", [timed_row(TINY, 1.0, share_of_peak=0.75), timed_row(other, 8.0)])
    lines = compare.compare(old, new).splitlines()
    assert cells(lines[0]) == ["case", "threads", "share before", "share after", "times as fast"]
    assert [cells(line) for line in lines[2:-1]] == [
        ["tiny/lstm/train", "2", "0.500", "0.750", "2.000"],
        ["other/lstm/train", "2", "0.500", "0.500", "0.125"],
    ]
    assert lines[-1] == "geometric mean of 2 rows: 0.500 times as fast"


def test_compare_lists_differences_of_the_headers_and_needs_a_common_row(written, tmp_path):
    old = {"commit": "abc", "date": "1", "command": "a", "numpy": "2.0", "torch": "2.9"}
    new = {"commit": "def", "date": "2", "command": "b", "numpy": "2.0", "gpu": "H100"}
    text = compare.compare(*(written(f"{h['date']}.csv", [timed_row(TINY, 1.0)], h) for h in (old, new)))
    told = [line for line in text.splitlines() if " -> " in line]
    assert told == ["commit: abc -> def", "gpu: not given -> H100", "torch: 2.9 -> not given"]
    other = written("other.csv", [timed_row(TINY, 1.0, threads=1)])
    with pytest.raises(report.ReportError, match=says(other, tmp_path / "1.csv", "timed row")):
        compare.compare(other, tmp_path / "1.csv")


def test_tables_show_milliseconds_and_shares(written):
    by_hand = {"by-hand_seconds": 0.3, "by-hand_ratio_median": 1.2}
    first = timed_row(TINY, 0.25, "infer", share_of_limit=0.875, torch_ratio_median=1.5, **by_hand)
    second = timed_row(TINY, 0.5, unfused_seconds=1.0, unfused_ratio_median=2.0)
    last = report.facts(TINY, "train", 1) | {"rnnkit": "wrong: y deviates by 1"}
    lines = compare.tables(written("a.csv", [first, second, last])).splitlines()
    assert lines[:2] == ["- commit: abc", "- command: python -m perf run: with, commas"]
    *table, headings, _, fused = [cells(line) for line in lines if line.startswith("|")]
    competitors = "against torch", "against onnxruntime", "against openvino", "against by-hand"
    assert table[0] == ["case", "threads", "ms", "of FMA peak", "of limit", *competitors]
    assert table[2:] == [  # a row that is not timed has no figures
        ["tiny/lstm/infer", "2", "250.000", "0.50", "0.88", "1.50x", "", "", "1.20x"],
        ["tiny/lstm/train", "2", "500.000", "0.50", "", "", "", "", ""],
    ]
    assert headings == ["case", "threads", "fused, samples/s", "non-fused, samples/s", "ratio"]
    assert fused == ["tiny/lstm/train", "2", "4.0", "2.0", "2.0"]


def test_report_without_a_row_to_draw_is_refused(written, tmp_path):
    needs("matplotlib")
    from perf.plot import plot

    for rows in ([], [timed_row(TINY, 1.0, "step")]):
        with pytest.raises(report.ReportError, match=says(tmp_path / "b.csv", "timed row", "infer, train")):
            plot(written("b.csv", rows), tmp_path / "b.png")
    assert not (tmp_path / "b.png").exists()
