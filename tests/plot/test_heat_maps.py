"""`rnnkit.plot.gates` and `states`: what the heat maps show is what the workspace has."""

import sys

import numpy as np
import pytest
from messages import raises
from optional import needs
from problems import Problem, problem_of

import rnnkit
import rnnkit.plot

needs("matplotlib")
SIZES = dict(num_layers=2, bidirectional=True, seq_len=6)


def maps_of(figure):
    """Title -> the values of a heat map, (H, T), masked where it is blank, and its limits."""
    images = [(axes.get_title("left"), image) for axes in figure.axes for image in axes.images]
    return {title: (image.get_array(), image.get_clim()) for title, image in images}


def workspace_of(mode="lstm", **options):
    return Problem(mode, **SIZES | options).forward().workspace


@pytest.mark.parametrize("sequence", range(3))
def test_heat_maps_are_the_gates_of_a_sequence(sequence):
    lengths = 6, 2, 4
    workspace = workspace_of(lengths=lengths)
    found, expected = maps_of(rnnkit.plot.gates(workspace, 1, 1, sequence)), workspace.gates(1, 1)
    assert [*found] == ["i", "f", "g", "o"]
    for name, (values, _) in found.items():
        np.testing.assert_array_equal(values, expected[name][: lengths[sequence], sequence].T)
        assert not np.ma.getmaskarray(values).any()


def test_heat_maps_are_the_states_of_a_sequence():
    workspace = workspace_of("lstm", proj_size=2)
    found = maps_of(rnnkit.plot.states(workspace, layer=1, direction=1, sequence=2))
    assert [*found] == ["h", "c"]
    for name, (values, _) in found.items():
        np.testing.assert_array_equal(values, workspace.state(name, 1, 1)[:, 2].T)


@pytest.mark.parametrize("draw", [rnnkit.plot.gates, rnnkit.plot.states])
def test_skipped_steps_are_blank_and_others_beyond_the_length_are_not_there(draw):
    for lengths in ((6, 4, 5), None):
        problem = Problem("gru", **SIZES, lengths=lengths, masked=True)
        steps = 6 if lengths is None else lengths[1]
        for values, _ in maps_of(draw(problem.forward().workspace, sequence=1)).values():
            blank = np.ma.getmaskarray(values)
            assert blank.shape == (4, steps) and (blank == ~problem.mask[:steps, 1]).all() and blank.any()


def test_colours_span_the_range_of_a_gate():
    limits = {name: limits for name, (_, limits) in maps_of(rnnkit.plot.gates(workspace_of())).items()}
    assert limits == {"i": (0, 1), "f": (0, 1), "g": (-1, 1), "o": (0, 1)}
    problem = problem_of("relu", **SIZES)
    problem.x[...] *= 9
    workspace = problem.forward().workspace
    ((values, limits),) = maps_of(rnnkit.plot.gates(workspace)).values()
    assert limits == (-values.max(), values.max()) and values.max() > 1


def test_colours_of_states_span_their_values():
    for values, limits in maps_of(rnnkit.plot.states(workspace_of())).values():
        assert limits == (-np.abs(values).max(), np.abs(values).max())
    workspace = Problem("gru", states=False, seq_len=2).forward().workspace
    workspace.arrays["hidden_l0"][...] = 0
    assert maps_of(rnnkit.plot.states(workspace))["h"][1] == (-1, 1)


def test_values_that_are_not_finite_leave_the_colours_to_the_others():
    problem = Problem("gru", **SIZES)
    problem.x[3, 0] = np.nan  # of the forward direction all later steps
    ((values, limits), *_) = maps_of(rnnkit.plot.gates(problem.forward().workspace)).values()
    blank = np.ma.getmaskarray(values)
    assert blank[:, 3:].all() and not blank[:, :3].any() and limits == (0, 1)


def test_names_choose_and_order_the_heat_maps():
    workspace = workspace_of()
    assert [*maps_of(rnnkit.plot.gates(workspace, names=["o", "f"]))] == ["o", "f"]
    assert [*maps_of(rnnkit.plot.gates(workspace, names="g"))] == ["g"]
    assert [*maps_of(rnnkit.plot.states(workspace, names=("c",)))] == ["c"]


def test_title_and_axes_say_what_is_drawn():
    figure = rnnkit.plot.gates(workspace_of("gru"), 1, 1, 2)
    assert figure.get_suptitle() == "gru, gates of layer 1, reverse direction, sequence 2"
    first, _, last = figure.axes[:3]
    assert (first.get_ylabel(), first.get_xlabel(), last.get_xlabel()) == ("unit", "", "time step")
    figure = rnnkit.plot.states(problem_of("lem", **SIZES).forward().workspace)
    assert figure.get_suptitle() == "LEM, states of layer 0, forward direction, sequence 0"
    assert rnnkit.plot.gates(Problem("gru").forward().workspace).get_suptitle() == "gru, gates of layer 0, sequence 0"


def test_pictures_are_dark_on_white_in_any_style_and_leave_no_figure_open(tmp_path):
    from matplotlib import image, rcParams, style

    workspace, drawn = workspace_of("gru"), []
    for name in ("default", "dark_background"):
        with style.context(name):
            before = dict(rcParams)
            figure = rnnkit.plot.gates(workspace)
            assert {spine.get_edgecolor()[:3] for axes in figure.axes for spine in axes.spines.values()} == {(0, 0, 0)}
            figure.savefig(tmp_path / f"{name}.png")
            assert dict(rcParams) == before
        drawn.append(image.imread(tmp_path / f"{name}.png")[..., :3])
    np.testing.assert_array_equal(*drawn)
    assert (drawn[0][[0, 0, -1, -1], [0, -1, 0, -1]] == 1).all()
    assert (drawn[0][:, :20].min(axis=(0, 1)) < 0.3).all()  # where the labels stand
    if "matplotlib.pyplot" in sys.modules:
        assert not sys.modules["matplotlib.pyplot"].get_fignums()


def refused(workspace):
    yield (None,), TypeError, "workspace | Workspace | NoneType"
    yield (workspace, 2), ValueError, "layer | 0..num_layers-1=1 | 2"
    yield (workspace, 0, 2), ValueError, "direction | 0..num_directions-1=1 | 2"
    yield (workspace, 0, 0, 3), ValueError, "sequence | 0..batch_size-1=2 | 3"
    yield (workspace, 0, 0, -1), ValueError, "sequence | 0..batch_size-1=2 | -1"
    yield (workspace, 0, 0, 1.0), TypeError, "sequence | int | float"
    yield (workspace, 0, 0, True), TypeError, "sequence | int | bool"
    yield (workspace, 0, 0, 1), ValueError, "sequence | at least one step | 1, which has none"


def test_wrong_arguments_are_refused():
    workspace = workspace_of(lengths=(6, 0, 2))
    for arguments, error, text in refused(workspace):
        with raises(error, f"gates: {text}"):
            rnnkit.plot.gates(*arguments)
        function = "state" if "layer" in text or "direction" in text else "states"
        with raises(error, f"{function}: {text}"):
            rnnkit.plot.states(*arguments)
    for names, got in ((["i", "x"], "'x'"), ([], "none")):
        with raises(ValueError, f'gates: names | "i", "f", "g", "o" | {got}'):
            rnnkit.plot.gates(workspace, names=names)
    with raises(ValueError, 'states: names | "h", "c" | \'i\''):
        rnnkit.plot.states(workspace, names="i")


def test_workspaces_that_cannot_be_drawn_are_refused():
    problem = Problem("lstm")
    with raises(rnnkit.WorkspaceError, "gates: checkpoint_steps | 2"):
        rnnkit.plot.gates(problem.forward(checkpoint_steps=2).workspace)
    workspace = problem.forward().workspace
    workspace.x = object()  # as of another device
    for draw in (rnnkit.plot.gates, rnnkit.plot.states):
        with raises(rnnkit.BackendError, f"{draw.__name__}: | NumPy arrays"):
            draw(workspace)


def test_missing_matplotlib_names_the_extra(monkeypatch):
    workspace = workspace_of()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for draw, arguments in (
        (rnnkit.plot.gates, (workspace,)),
        (rnnkit.plot.states, (workspace,)),
        (rnnkit.plot.explanation, (workspace.desc, 2, 2)),
        (rnnkit.plot.training, ("none.csv",)),
    ):
        with raises(ImportError, f"{draw.__name__}: the package matplotlib | none | pip install 'rnnkit[plot]'"):
            draw(*arguments)
