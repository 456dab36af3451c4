"""scripts/gpu_first_run.py: parts that fail, crash, hang or are ended, and all parts on the simulators."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from optional import needs
from repository import ROOT

SCRIPTS = ROOT / "scripts"
PARTS = {
    "fails": (
        "def run(here):\n    with here.trying('one'):\n        raise ValueError('expected')\n"
        "    here.add('two', ok=False)\n"
    ),
    "crashes": "import os\ndef run(here):\n    here.add('before')\n    os.abort()\n",
    "hangs": (
        "import subprocess, time\ndef run(here):\n"
        "    child = subprocess.Popen(['sleep', '600'])\n    here.add('before', child=child.pid)\n    time.sleep(600)\n"
    ),
    "works": "def run(here):\n    here.add('one', ok=True)\n",
}


@pytest.fixture
def start(tmp_path):
    """Start the script with parts of these names and seconds for all of them together."""
    for name, text in PARTS.items():
        (tmp_path / f"{name}.py").write_text(text)

    def started(names, seconds):
        arguments = ["--out", str(tmp_path / "out"), "--minutes", str(seconds / 60)]
        program = f"import gpu_first_run as run, sys; sys.exit(run.main({arguments}, {dict.fromkeys(names, 1.0)}))"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPTS), str(tmp_path)])}
        return subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)

    return started


def report_of(folder):
    return json.loads((folder / "out" / "report.json").read_text())["parts"]


def assert_ended(pid):
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} still runs")


def test_parts_that_fail_cost_only_themselves(start, tmp_path):
    process = start(("fails", "crashes", "hangs", "works"), 8.0)
    shown, _ = process.communicate(timeout=60)
    parts = report_of(tmp_path)
    assert [part["code"] for part in parts.values()] == [0, -signal.SIGABRT, "time is up", 0]
    error, refused = parts["fails"]["results"]
    assert error["error"] == "ValueError: expected" and "fails.py:3" in error["where"][-1] and refused["ok"] is False
    assert parts["crashes"]["results"] == [{"name": "before"}]
    assert_ended(parts["hangs"]["results"][0]["child"])
    assert parts["works"]["results"] == [{"name": "one", "ok": True}]
    assert "Aborted" in (tmp_path / "out" / "crashes.log").read_text()
    assert "BAD one: ValueError: expected" in shown


def test_termination_leaves_the_report(start, tmp_path):
    process = start(("works", "hangs"), 200.0)
    log = tmp_path / "out" / "hangs.log"
    while not (log.exists() and "before" in log.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    shown, _ = process.communicate(timeout=60)
    parts = report_of(tmp_path)
    assert process.returncode == 128 + signal.SIGTERM and "works: code 0" in shown
    assert parts["hangs"]["code"] == "did not end"
    assert_ended(parts["hangs"]["results"][0]["child"])


def test_exit_status_needs_results_and_no_errors(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import gpu_first_run

    def status(part, code, *results):
        report = {"parts": {part: {"code": code, "results": list(results)}}}
        return gpu_first_run._has_passed(report, {f"gpu_run.{part}": 1.0, "gpu_run.speed": 1.0})

    right, wrong = {"name": "one", "ok": True}, {"name": "one", "ok": False}
    for part in ("networks", "device_tests"):
        assert status(part, 0, right) and status(part, 0, right, {"name": "without a verdict"})
        for bad in ((1, right), (0,), (0, right, wrong), (0, right, {"name": "two", "error": "some"})):
            assert not status(part, *bad)
    with pytest.raises(SystemExit):
        gpu_first_run.main(["--out", str(tmp_path), "--only", "speed,sped"])
    shown = capsys.readouterr().err
    assert "--only must name parts of versions, networks" in shown and "sped" in shown


@pytest.mark.nightly
def test_all_parts_on_the_simulators(tmp_path):
    needs("torch")
    command = [sys.executable, str(SCRIPTS / "gpu_first_run.py"), "--out", str(tmp_path / "out"), "--stand-in"]
    run = subprocess.run(
        [*command, "--minutes", "8", "--only", "versions,networks,speed,questions"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    parts = report_of(tmp_path)
    assert {name: part["code"] for name, part in parts.items()} == dict.fromkeys(parts, 0), run.stdout
    for name, part in parts.items():
        assert not [one for one in part["results"] if "error" in one], name
    assert sum("deviation" in one for one in parts["networks"]["results"]) == 18 + 3 + 21  # PyTorch, modules, CPU
    cases = parts["speed"]["results"]
    assert len(cases) == 24 and max(one["deviation"] for one in cases) < 1e-2
    assert len((tmp_path / "out" / "bench.csv").read_text().splitlines()) == 25
