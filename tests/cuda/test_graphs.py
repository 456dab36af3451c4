"""Loops over steps that are captured as CUDA graphs."""

import sys

from gpu_cases import Case, assert_near, desc_of, moved

import rnnkit


def test_graphs_repeat_what_they_captured(gpu, monkeypatch):
    """The same loop again, with the same memory and other values in it."""
    from rnnkit.cuda import graphs

    monkeypatch.setattr(graphs, "enabled", True)
    monkeypatch.setattr(graphs, "_graphs", graphs._Graphs())
    case, workspace = Case(desc_of("layer-norm")), None
    w, inputs = moved(case.w), [case.x, 2 * case.x, 3 * case.x, -case.x]
    for x in inputs:
        found = rnnkit.forward(case.desc, w, moved(x), workspace=workspace)
        workspace = found.workspace
        assert_near((found.y,), (rnnkit.forward(case.desc, case.w, x).y,), 1e-12)
        gradients = rnnkit.backward(case.desc, w, workspace, moved(case.dy))
        expected = rnnkit.forward(case.desc, case.w, x).workspace
        assert_near(gradients, rnnkit.backward(case.desc, case.w, expected, case.dy), 1e-12)
    captured = [one for one in graphs._graphs.found.values() if one is not None]
    assert len(captured) >= case.desc.num_pseudo_layers  # at least those of forward
    monkeypatch.setattr(graphs, "_KEPT", 1)
    rnnkit.forward(case.desc, w, moved(case.x))
    assert len(graphs._graphs.found) == 1


def test_short_loops_and_streams_that_are_captured_make_no_graphs(gpu, monkeypatch):
    from rnnkit.cuda import graphs

    monkeypatch.setattr(graphs, "enabled", True)
    monkeypatch.setattr(graphs, "_graphs", graphs._Graphs())
    case, stream = Case(desc_of("lem"), seq_len=9), sys.modules["cupy"].cuda.Stream(non_blocking=True)
    plan, x = rnnkit.prepare(case.desc, moved(case.w)), moved(case.x)
    plan.infer(x[:3])
    assert not graphs._graphs.found
    with stream:
        plan.infer(x)
        known = dict(graphs._graphs.found)
        stream.begin_capture()
        y = plan.infer(x).y  # in memory of its own
        stream.end_capture()
    assert y.shape == (9, 4, 8) and graphs._graphs.found == known
    assert len(known) == case.desc.num_pseudo_layers and set(known.values()) == {None}
