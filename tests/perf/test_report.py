"""Reports: what stands in the file, what is read out of it, and what is drawn."""

import os
import re
import subprocess
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


def test_report_may_be_older_than_a_competitor(written, monkeypatch):
    columns = [name for name in report.COLUMNS if not name.startswith("by-hand")]
    with monkeypatch.context() as patch:
        patch.setattr(report, "COLUMNS", tuple(columns))
        old = written("old.csv", [timed_row(TINY, 1.0)])
    new = written("new.csv", [timed_row(TINY, 0.5)])
    assert "by-hand" not in old.read_text() and "by-hand" in new.read_text()
    assert report.read(old).rows[0].keys() == set(report.COLUMNS)
    assert "geometric mean of 1 rows: 2.000 times as fast" in compare.compare(old, new)
    assert "tiny/lstm/train" in compare.tables(old)
    old.write_text(old.read_text().replace("torch_ratio_max", "torch_else"))
    with pytest.raises(report.ReportError, match=says(old, "torch_ratio_max")):
        report.read(old)


def test_rows_are_flushed_when_written(tmp_path):
    with (tmp_path / "a.csv").open("w") as file:
        writer = report.Writer(file, HEADER)
        for count in (1, 2):
            writer.write(timed_row(TINY, 1.0))
            assert len(report.read(tmp_path / "a.csv").rows) == count  # an interrupted run leaves what it has


def test_header_has_command_commit_machine_and_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith(report._VARIABLES)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["perf", "run", "--threads", "2"])
    monkeypatch.setattr(report, "_commit", lambda: "abc-dirty")
    header = report.machine()
    assert (header["command"], header["commit"]) == ("python -m perf run --threads 2", "abc-dirty")
    assert header["numpy"] == np.__version__ and header["environment"] == "nothing set"
    assert f"{os.cpu_count()} processors" in header["machine"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("NUMBA_CPU_NAME", "haswell")
    assert report.machine()["environment"] == "NUMBA_CPU_NAME=haswell OMP_NUM_THREADS=3"


def test_commit_with_changes_on_top_is_dirty(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(report, "__file__", str(tmp_path / "report.py"))
    assert report._commit() == "unknown"
    (tmp_path / "report.py").write_text("clean")
    author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    clean = report._commit()
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (tmp_path / "report.py").write_text("changed")
    assert report._commit() == f"{clean}-dirty"


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


def test_compare_lists_differences_of_the_headers(written):
    old = {"commit": "abc", "date": "1", "command": "a", "numpy": "2.0", "torch": "2.9"}
    new = {"commit": "def", "date": "2", "command": "b", "numpy": "2.0", "gpu": "H100"}
    text = compare.compare(*(written(f"{h['date']}.csv", [timed_row(TINY, 1.0)], h) for h in (old, new)))
    told = [line for line in text.splitlines() if " -> " in line]
    assert told == ["commit: abc -> def", "gpu: not given -> H100", "torch: 2.9 -> not given"]


def test_compare_refuses_reports_without_a_common_row(written):
    old, new = written("a.csv", [timed_row(TINY, 1.0, threads=1)]), written("b.csv", [timed_row(TINY, 1.0)])
    with pytest.raises(report.ReportError, match=says(old, new, "timed row")):
        compare.compare(old, new)


def test_tables_show_milliseconds_and_shares(written):
    first = timed_row(TINY, 0.25, "infer", share_of_limit=0.875, torch_ratio_median=1.5)
    last = report.facts(TINY, "train", 1) | {"rnnkit": "wrong: y deviates by 1"}
    lines = compare.tables(written("a.csv", [first, timed_row(TINY, 0.5), last])).splitlines()
    assert lines[:2] == ["- commit: abc", "- command: python -m perf run: with, commas"]
    table = [cells(line) for line in lines if line.startswith("|")]
    headings = ["case", "threads", "ms", "of FMA peak", "of limit"]
    assert table[0] == [*headings, "against torch", "against onnxruntime", "against openvino"]
    assert table[2:] == [  # a row that is not timed has no figures
        ["tiny/lstm/infer", "2", "250.000", "0.50", "0.88", "1.50x", "", ""],
        ["tiny/lstm/train", "2", "500.000", "0.50", "", "", "", ""],
    ]


def test_tables_show_by_hand_where_it_was_timed(written):
    by_hand = {"by-hand_seconds": 0.3, "by-hand_ratio_median": 1.2}
    rows = [timed_row(TINY, 0.5), timed_row(TINY, 0.25, "infer", **by_hand)]
    headings, _, *found = [cells(line) for line in compare.tables(written("a.csv", rows)).splitlines() if "|" in line]
    assert headings[-1] == "against by-hand" and [row[-1] for row in found] == ["", "1.20x"]


def test_tables_show_samples_per_second_of_both(written):
    row = timed_row(TINY, 0.5, unfused_seconds=1.0, unfused_ratio_median=2.0)
    last = compare.tables(written("a.csv", [row])).splitlines()[-1]
    assert cells(last) == ["tiny/lstm/train", "2", "4.0", "2.0", "2.0"]


@pytest.fixture
def drawn(written):
    needs("matplotlib")
    from matplotlib import pyplot

    from perf import plot

    def draw(rows):
        return plot.draw({"commit": "abc", "machine": "a CPU"}, report.read(written("a.csv", rows)).rows)

    yield draw
    pyplot.close("all")


def marks(axes):
    """The marks of a scatter plot by label: where they stand and how large they are."""
    return {s.get_label(): ([tuple(place) for place in s.get_offsets()], *s.get_sizes()) for s in axes.collections}


def lines(axes):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_shares_of_the_peak_are_drawn(drawn):
    gru = Case("small", rnnkit.RNNDescriptor("gru", 3, 5), seq_len=4, batch_size=2)
    of_tiny, of_gru = [("infer", 2, 0.9), ("train", 2, 0.8)], [("train", 2, 0.7), ("train", 1, 0.6), ("step", 2, 0.5)]
    rows = [timed_row(TINY, 1.0, *which, share_of_peak=share) for *which, share in of_tiny]
    figure = drawn(rows + [timed_row(gru, 1.0, *which, share_of_peak=share) for *which, share in of_gru])
    assert figure.get_suptitle() == "rnnkit abc on a CPU"
    shares, *growth = figure.get_axes()
    assert shares.get_title() == "Share of the FMA peak"
    assert [label.get_text() for label in shares.get_yticklabels()] == ["tiny/lstm", "small/gru"]
    assert list(shares.get_yticks()) == [0, 1]
    assert shares.get_xlim() == (0, 1) and shares.get_ylim() == (1.5, -0.5)
    expected = {
        "infer, threads: 2": ([(0.9, 0)], 36),
        "train, threads: 1": ([(0.6, 1)], 12),
        "train, threads: 2": ([(0.8, 0), (0.7, 1)], 36),
    }
    assert marks(shares) == expected
    assert sorted(legend(shares)) == sorted(expected)
    assert len(growth) == 4 and not any(axes.axison for axes in growth)


@pytest.mark.parametrize(("size", "sizes", "scale"), [("T", (4, 8), "linear"), ("H", (8, 4), "log")])
def test_growth_is_drawn_in_milliseconds(drawn, size, sizes, scale):
    def sweep(value):
        length, hidden = (value, 5) if size == "T" else (4, value)
        return Case(f"sweep-{size}{value}", rnnkit.RNNDescriptor("lstm", 3, hidden), length, 2)

    rows = [timed_row(sweep(value), value / 16, "infer", share_of_peak=0.5) for value in sizes]
    rows += [timed_row(sweep(value), value / 4) for value in sizes]
    rows += [timed_row(sweep(4), 7.0, threads=1)]  # not the most threads
    shares, *growth = drawn(rows).get_axes()
    (axes,) = (axes for axes in growth if axes.axison)
    assert not shares.axison
    assert axes.get_title() == f"Growth with {size}, LSTM, threads: 2"
    assert (axes.get_xlabel(), axes.get_ylabel()) == (size, "ms")
    assert (axes.get_xscale(), axes.get_yscale()) == (scale, scale)
    expected = {"infer": [250, 500], "infer at the FMA peak": [125, 250]}
    expected |= {"train": [1000, 2000], "train at the FMA peak": [500, 1000]}
    assert lines(axes) == {name: ([4, 8], ms) for name, ms in expected.items()} and legend(axes) == list(expected)


def test_only_what_was_timed_is_drawn(drawn):
    sweep = Case("sweep-L1", rnnkit.RNNDescriptor("lstm", 3, 5), 4, 2)
    shares, *growth = drawn([timed_row(TINY, 1.0), timed_row(sweep, 1.0)]).get_axes()
    assert legend(shares) == ["train, threads: 2"]
    assert [legend(axes) for axes in growth if axes.axison] == [["train", "train at the FMA peak"]]


def test_picture_is_written_if_a_row_can_be_drawn(written, tmp_path):
    needs("matplotlib")
    from matplotlib import image, pyplot

    from perf.plot import plot

    plot(written("a.csv", [timed_row(TINY, 1.0)]), tmp_path / "a.png")
    pixels = image.imread(tmp_path / "a.png")
    assert pixels.shape == (7 * 110, 14 * 110, 4)
    assert (np.abs(pixels[..., :3] - (1.0, 127 / 255, 14 / 255)).max(axis=2) < 0.01).sum() > 20  # an orange mark
    assert not pyplot.get_fignums()
    for rows in ([], [timed_row(TINY, 1.0, "step")]):
        with pytest.raises(report.ReportError, match=says(tmp_path / "b.csv", "timed row", "infer, train")):
            plot(written("b.csv", rows), tmp_path / "b.png")
    assert not (tmp_path / "b.png").exists()
