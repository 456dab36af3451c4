"""The model of many cores."""

import math

import numpy as np
import pytest

from perf import cases, many_cores, peaks
from perf.many_cores import Machine, shared

MACHINE = Machine(5e10, 1e11, 5e10, 2e10, 1e11, 50e-9, 200e-9, 2e-9)
BY_NAME = {case.name: case for case in cases.CASES}


@pytest.mark.cores(2)
def test_handover_takes_nanoseconds_to_a_millisecond():
    found = [seconds for seconds in (peaks.handover() for _ in range(5)) if not math.isnan(seconds)]
    if not found:
        pytest.skip("other programs had the cores each time")
    assert 1e-9 < min(found) < 1e-3


def test_handover_on_one_core_is_nan(monkeypatch):
    """Nobody answers the second player, as on a single core for most of the time."""
    monkeypatch.setattr(peaks, "_together", lambda players: players[1]() or 1.0)
    assert math.isnan(peaks.handover())


def test_planner_is_near_the_best_way_to_share_rows_and_units():
    server = many_cores.server(MACHINE)
    for case in many_cores.chosen():
        for cores in many_cores.CORES:
            _, planned = many_cores.planned(server, case, cores)
            ways = [shared(server, case, n, size) for n in range(1, cores + 1) for size in range(1, cores // n + 1)]
            assert sum(planned) < 1.3 * min(map(sum, ways))


def test_table_has_predictions_beside_measurements(monkeypatch, capsys):
    monkeypatch.setattr(many_cores, "this_machine", lambda: MACHINE)
    monkeypatch.setattr(many_cores, "measured", lambda case, threads: 1.0 / threads)
    many_cores.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("ds2/lstm 1 threads: measured 1000.00 ms, model ")
    rows = [line.split(" | ") for line in lines[-9:]]
    assert [row[0] for row in rows] == list(np.repeat(many_cores.CASES, 3))
    assert all(1 < float(row[3]) <= int(row[1]) for row in rows)


def test_inference_is_measured():
    assert 0 < many_cores.measured(BY_NAME["stream/lstm"], 1) < 10
