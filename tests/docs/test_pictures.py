"""The pictures of the documentation are what their script draws from the package and the measured figures."""

import re
import subprocess
import sys
from xml.etree import ElementTree

from optional import needs
from repository import ROOT

from perf import report
from scripts.pictures import figures

PICTURES = ROOT / "docs" / "pictures"
NAMES = {f"{name}.svg" for name in ("flat-buffer", "data-flow", "threads", "packed-rows", "speed", "shares", "ratios")}


def version_in(path):
    return re.search(r"Matplotlib ([\w.]+)", path.read_text(encoding="utf-8"))[1]


def test_pictures_match_what_is_drawn(tmp_path):
    needs("matplotlib")
    command = [sys.executable, "-W", "error", "-m", "scripts.pictures", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == NAMES == {path.name for path in PICTURES.glob("*.svg")}
    for name in sorted(NAMES):
        drawn, kept = tmp_path / name, PICTURES / name
        assert texts_of(drawn) == texts_of(kept), name
        if version_in(drawn) == version_in(kept):  # others write the same picture in other ways
            assert drawn.read_bytes() == kept.read_bytes(), name


def texts_of(path):
    root = ElementTree.parse(path).getroot()
    assert (root.tag, root.get("width")) == ("{http://www.w3.org/2000/svg}svg", root.get("viewBox").split()[2])
    return [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_charts_leave_out_disturbed_measurements(tmp_path, monkeypatch):
    quiet = {"threads": 2, "seconds": 1, "handover_before": 5e-8, "handover_after": 5e-8, "T": 3, "N": 2, "H": 1}
    quiet |= {"torch_ratio_min": 1.5, "torch_ratio_median": 2.0, "torch_ratio_max": 3.0}
    rows = [quiet | {"name": "small/gru/infer"}, quiet | {"name": "small/gru/train", "handover_after": "nan"}]
    rows += [quiet | {"name": "small/lstm/infer", "torch_ratio_max": 4.0}, {"name": "small/lstm/train"}]
    with (tmp_path / "perf.csv").open("w") as file:
        writer = report.Writer(file, {"rnnkit": "1.0", "machine": "AMD EPYC (family 26, model 2), 2 processors"})
        for row in rows:
            writer.write(row)
    monkeypatch.setattr(figures, "DATA", tmp_path)
    found = figures.Figures("perf.csv")
    assert [*found.rows] == ["small/gru/infer", "small/lstm/infer"]
    assert found.ratio("small/gru/infer", "torch") == (1.5, 2.0, 3.0)
    for name, engine in (("small/gru/train", "torch"), ("small/lstm/infer", "torch"), ("small/gru/infer", "numba")):
        assert found.ratio(name, engine) is None
    assert found.left_out == ["small/gru/train", "small/lstm/infer against torch"]
    assert found.sizes("small/gru") == "T 3, N 2, H 1"
    assert (found.about("rnnkit"), found.threads) == ("rnnkit 1.0; AMD EPYC (Zen 5)", "two threads")
