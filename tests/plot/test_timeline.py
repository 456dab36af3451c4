"""`rnnkit.plot.explanation`: bars are as long as the measured times, and the words those of `rnnkit.explain`."""

from itertools import count

import numpy as np
import pytest
from command_line import main
from messages import one_line_says, raises
from optional import needs

import rnnkit
import rnnkit.plot
from rnnkit.cells import AUGRU
from rnnkit.plot import timeline

needs("matplotlib")
NET = rnnkit.GRU(3, 4, seed=0)
SECONDS = {"forward": (9, 4, 5, 6, 40), "backward": (99, 8, 9, 10, 11), "infer": (3, 1, 2, 3, 4)}  # the first: warm-up


@pytest.fixture
def drawn(monkeypatch):
    """What draws with a clock by which the calls take `SECONDS`, each times a unit."""

    def draw(unit, *arguments):
        spans = (unit * seconds for name in SECONDS for seconds in SECONDS[name])
        ends = count()
        now = [0.0]

        def clock():
            now[0] += next(spans) if next(ends) % 2 else 0
            return now[0]

        monkeypatch.setattr(timeline, "perf_counter", clock)
        return rnnkit.plot.explanation(*arguments, repeats=4)

    return draw


def bars_of(figure):
    """Left end, width, and number of lanes of the bars of each row."""
    axes = figure.axes[0]
    rows = [text.get_text() for text in axes.get_yticklabels()]
    found = {name: [] for name in rows}
    for bar in axes.patches:
        found[rows[round(bar.get_y() + bar.get_height() / 2)]].append(bar)
    return {name: (bars[0].get_x(), bars[0].get_width(), len(bars)) for name, bars in found.items()}


@pytest.mark.parametrize(("unit", "label"), [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")])
def test_bars_are_the_median_times(drawn, unit, label):
    figure = drawn(unit, NET, 5, 2)
    bars = bars_of(figure)
    assert [*bars] == ["forward", "backward", "infer"]
    np.testing.assert_allclose([bars[name][:2] for name in bars], [(0, 5.5), (5.5, 9.5), (0, 2.5)])
    lines = [line.get_xdata() for line in figure.axes[0].lines]
    np.testing.assert_allclose(lines, [(4.75, 14.5), (5.5 + 8.75, 5.5 + 10.25), (1.75, 3.25)])
    assert figure.axes[0].get_xlabel() == f"time ({label})"
    assert figure.get_suptitle() == f"{NET.desc}\nT=5, N=2; median of 4 calls"


def test_words_and_lanes_are_those_of_the_explanation(drawn, monkeypatch):
    explained = rnnkit.explain(NET, 5, 2)
    routes = {
        "forward": explained.forward._replace(threads=3, kernel_calls=7, nbytes=3 << 20, flops=11 * 10**9),
        "backward": explained.backward._replace(weights="packed", nbytes=5 << 30),
        "infer": explained.infer._replace(kind="stepwise", nbytes=1536),
    }
    monkeypatch.setattr(rnnkit, "explain", lambda *arguments: explained._replace(**routes))
    figure = drawn(1.0, NET, 5, 2)
    assert [lanes for _, _, lanes in bars_of(figure).values()] == [3, 1, 1]
    forward, backward, infer = (text.get_text() for text in figure.axes[1].texts)
    assert forward == "5.5 s, 3 threads, 2 GFLOP/s\nby layer, weights in place\n7 kernel calls, 3 MiB"
    assert "1 thread," in backward and "weights packed\n1 kernel call, 5 GiB" in backward
    assert "\nstepwise," in infer and infer.endswith(", 1.5 KiB")
    many = {name: route._replace(threads=100) for name, route in routes.items()}
    monkeypatch.setattr(rnnkit, "explain", lambda *arguments: explained._replace(**many))
    assert [lanes for _, _, lanes in bars_of(drawn(1.0, NET, 5, 2)).values()] == [1, 1, 1]


def test_real_calls_are_measured(monkeypatch):
    calls = []
    for name in ("forward", "backward", "infer"):
        run = getattr(rnnkit, name)
        monkeypatch.setattr(rnnkit, name, lambda *a, name=name, run=run, **k: (calls.append(name), run(*a, **k))[1])
    figure = rnnkit.plot.explanation(NET.desc, 5, 2, repeats=1)
    assert [calls.count(name) for name in ("forward", "backward", "infer")] == [3, 2, 2]
    assert all(width > 0 for _, width, _ in bars_of(figure).values())
    assert figure.get_suptitle().endswith("median of 1 call")


def test_cells_with_side_inputs_get_them(monkeypatch):
    given = []
    monkeypatch.setattr(rnnkit, "backward", lambda *a, **k: None)
    monkeypatch.setattr(rnnkit, "infer", lambda *a, **k: given.append(k))

    def forward(desc, w, x, **options):
        given.append(options)
        return rnnkit.Forward(x, None, None, None)

    monkeypatch.setattr(rnnkit, "forward", forward)
    rnnkit.plot.explanation(rnnkit.RNNDescriptor(AUGRU(), 3, 4), 5, 2, repeats=1)
    assert {one["inputs"]["attention"].shape for one in given} == {(5, 2, 1)} and len(given) == 5


REFUSED = [
    ((NET, 0, 2), {}, ValueError, "explanation: T | at least 1 | 0"),
    ((NET, 5, 0), {}, ValueError, "explanation: N | at least 1 | 0"),
    ((NET, 5, 2), {"repeats": 0}, ValueError, "explanation: repeats | at least 1 | 0"),
    ((NET, 5.0, 2), {}, TypeError, "explanation: T | int | float"),
    ((NET, 5, True), {}, TypeError, "explanation: N | int | bool"),
    ((3, 5, 2), {}, TypeError, "explain: net | int"),
]


@pytest.mark.parametrize(("arguments", "options", "error", "text"), REFUSED)
def test_wrong_arguments_are_refused(arguments, options, error, text):
    with raises(error, text):
        rnnkit.plot.explanation(*arguments, **options)


def test_command_draws_what_it_prints(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = main(capsys, "explain", "gru", 3, 4, 5, 2, "--plot", "calls.png")
    desc = rnnkit.RNNDescriptor("gru", 3, 4)
    lines = out.splitlines()
    assert (status, err) == (0, "") and lines[0] == f"{desc}, T=5, N=2" and lines[-1] == "saved     calls.png"
    assert (tmp_path / "calls.png").read_bytes().startswith(b"\x89PNG")
    for arguments, facts in (
        (("5", "2", "--plot", "calls.svg"), ("--plot", ".png", "calls.svg")),
        (("0", "2", "--plot", "calls.png"), ("--plot", "T=0", "N=2")),
    ):
        status, out, err = main(capsys, "explain", "gru", 3, 4, *arguments)
        assert (status, out) == (2, "") and one_line_says(err, "rnnkit: explain:", *facts)
