"""`rnnkit score` and `rnnkit plot`: bits per byte of any file, and pictures of logs."""

import os
import struct
import sys
from functools import partial
from itertools import islice

import numpy as np
import pytest
from combinations import nightly
from command_line import main
from messages import one_line_says
from optional import needs
from training_runs import assert_refused

import rnnkit.plot
from rnnkit.language_model import corpus, sampling, scoring
from rnnkit.language_model import model as textmodel
from rnnkit.language_model.report import COLUMNS

HEADER = ",".join(COLUMNS) + "\n"


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Run a command in an empty folder with a small model; return its exit status and what it printed."""
    monkeypatch.chdir(tmp_path)
    textmodel.TextModel.random(rnnkit.RNNDescriptor("gru", 3, 4), 0).save("model.npz")
    return partial(main, capsys)


def test_score_prints_bits_of_each_file(run, tmp_path):
    texts = {"a.txt": b"abc" * 500, "b.bin": np.random.default_rng(0).bytes(1000), "c": b"x"}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(text)
    status, out, _ = run("score", *texts)
    assert status == 0
    model, expected = textmodel.load("model.npz"), []
    for name, text in texts.items():
        expected.append(f"{name}: {len(text):,} bytes; bits per byte")
        bits = scoring.bits_per_byte(model, text), scoring.adaptive_bits_per_byte(model, text)
        names = {"rnnkit": bits[0], "rnnkit, dynamic evaluation": bits[1], **corpus.baselines(text)}
        expected += [f"  {value:6.3f}  {name}" for name, value in names.items()]
    assert out.splitlines() == expected


@pytest.mark.parametrize("precision", [nightly("bfloat16"), nightly("int8")])
def test_score_and_sample_with_quantized_weights(run, tmp_path, precision):
    (tmp_path / "a.txt").write_bytes(text := b"abc" * 500)
    model = textmodel.TextModel.random(rnnkit.RNNDescriptor("gru", 3, 4), 0, np.frombuffer(b"abcdefgh", np.uint8))
    model.parameters.flat *= 3  # so that rounding moves the scores
    model.save("model.npz")
    _, out, _ = run("score", "a.txt", "--precision", precision)
    plan = rnnkit.prepare(model.desc, model.parameters.network, precision=precision)
    bits, whole = scoring.bits_per_byte(model, text, network=plan), scoring.bits_per_byte(model, text)
    assert out.splitlines()[2] == f"  {bits:6.3f}  rnnkit, {precision} weights"
    assert bits != whole and abs(bits - whole) < 0.1
    draws = (sampling.generate(model, b"\n", 1.0, 0, precision=one) for one in (precision, None))
    sampled, others = (bytes(islice(draw, 4000)) for draw in draws)
    assert sampled != others  # slightly other scores: once in a while another byte
    _, out, _ = run("sample", "model.npz", "--bytes", 4000, "--temperature", 1, "--seed", 0, "--precision", precision)
    assert out == sampled.decode()


def test_quantized_float64_weights_are_refused(run, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abc")
    textmodel.TextModel.random(rnnkit.RNNDescriptor("gru", 3, 4, dtype="float64"), 0).save("model.npz")
    for command in (["score", "a.txt"], ["sample", "model.npz"]):
        status, _, error = run(*command, "--precision", "int8")
        assert status == 2 and one_line_says(error, "rnnkit: prepare: precision", None, "float64", "'int8'")


def test_score_refuses_empty_and_missing_files(run, tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    for arguments, because in (
        (["empty"], ("read_files: paths", "byte", "'empty'")),
        (["none"], ("none:", "No such file or directory")),
        (["empty", "--model", "none.npz"], ("none.npz:", "No such file or directory")),
    ):
        assert_refused(run("score", *arguments), *because)


@pytest.fixture
def plot():
    """The module; without Matplotlib these tests are skipped, but not in continuous integration."""
    needs("matplotlib")
    return rnnkit.plot


@pytest.fixture
def logs(tmp_path):
    """Two logs, one of which was never validated."""
    steps = range(1, 9)
    one = [(step, 1000 * step, step / 10, 0.01, 1.5, 8 / step, "" if step % 2 else 9 / step) for step in steps]
    paths = tmp_path / "one.csv", tmp_path / "two.csv"
    for path, rows in zip(paths, (one, [(*row[:6], "") for row in one[:4]]), strict=True):
        path.write_text(HEADER + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return paths


def test_curves_are_those_of_the_logs(plot, logs):
    (axes,) = plot.training(logs, "steps").axes
    lines = {line.get_label(): line.get_xydata() for line in axes.get_lines()}
    assert list(lines) == ["one, training", "one, validation", "two, training"]
    np.testing.assert_allclose(lines["one, training"], [(step, 8 / step) for step in range(1, 9)])
    np.testing.assert_allclose(lines["one, validation"], [(step, 9 / step) for step in (2, 4, 6, 8)])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("steps", "bits per byte")
    colors = [line.get_color() for line in axes.get_lines()]
    assert colors[0] == colors[1] != colors[2]


@pytest.mark.usefixtures("plot")
def test_plot_writes_a_png_of_960_by_600(run, logs, tmp_path):
    status, out, err = run("plot", *logs, "-o", "curves.png")
    assert (status, out, err) == (0, "saved     curves.png\n", "")
    data = (tmp_path / "curves.png").read_bytes()
    assert data.startswith(b"\x89PNG") and struct.unpack(">II", data[16:24]) == (960, 600)


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        ("", ["step,bytes,"]),
        ("a,b\n", ["step,bytes,", "a,b"]),
        (HEADER + "1,2,3\n", ["number", "['1', '2', '3', None", "line 2"]),
        (HEADER + "1,2,3,4,5,x,\n", ["number", "'x'", "line 2"]),
        (HEADER + "0,2,3,4,5,6,\n", ["number", "'0'", "line 2"]),
        (HEADER + "1,2,3,4,5,6,,8\n", ["number", "'8'", "line 2"]),
        (HEADER, ["rows", "none"]),
        ("\0" * 10, ["step,bytes,"]),
    ],
)
@pytest.mark.usefixtures("plot")
def test_plot_refuses_malformed_logs(run, tmp_path, content, facts):
    (tmp_path / "x.csv").write_text(content)
    assert_refused(run("plot", "x.csv", "-o", "x.png"), "read_log: path 'x.csv'", *facts)
    assert not (tmp_path / "x.png").exists()


@pytest.mark.usefixtures("plot")
def test_plot_refuses_other_formats_and_missing_folders(run, logs):
    assert one_line_says(run("plot", *logs, "-o", "x.svg")[2], "rnnkit: plot: --out", ".png", "x.svg")
    assert one_line_says(run("plot", *logs, "-o", "none/x.png")[2], "rnnkit: none/x.png:", "No such file or directory")


@pytest.mark.usefixtures("plot")
def test_plot_does_not_overwrite_a_log(run, logs, tmp_path):
    os.link(logs[0], tmp_path / "one.png")
    before = logs[0].read_bytes()
    assert_refused(run("plot", *logs, "-o", "one.png"), "plot: --out", "one.png", "LOG")
    assert logs[0].read_bytes() == before and os.path.samefile(logs[0], "one.png")


def test_plot_needs_matplotlib(run, logs, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert_refused(run("plot", *logs, "-o", "x.png"), "plot: matplotlib", "none", "pip install 'rnnkit[plot]'")
