"""Gradients of single sequences: backward(per_sequence=True)."""

import numpy as np
import pytest
from combinations import nightly
from messages import says
from problems import ALL_CASES, problem_of
from several_states import each_of
from tolerances import GRADIENTS, assert_close, assert_same_bits, assert_same_results

import rnnkit
from rnnkit.errors import BackendError, WorkspaceError


def problem(cell="lstm", dtype="float64", **fields):
    return problem_of(cell, dtype=dtype, **{"seq_len": 6, "batch_size": 4} | fields)


def columns(states, row):
    """The states of one sequence."""
    return each_of(lambda one: one[:, row : row + 1], states)


def assert_rows_are_calls_alone(p, resets=None, **options):
    """Each row of each result has the bits of a call with that sequence alone."""
    workspace = p.forward(resets=resets, **options).workspace
    found, whole = p.backward(workspace, per_sequence=True), p.backward(workspace)
    assert_close("dw", found.dw.sum(0), whole.dw, p.dtype)
    assert_same_results(found, whole, GRADIENTS[:-1])
    for row in range(p.batch_size):
        length, one = int(p.valid[:, row].sum()), slice(row, row + 1)
        marks = {"resets": resets, "mask": p.mask}
        of_row = {name: value[:length, one] for name, value in marks.items() if value is not None}
        alone = p.x[:length, one], columns(p.hx, row), columns(p.cx, row)
        result = rnnkit.forward(p.desc, p.w, *alone, seed=p.seed, first_row=row, **of_row, **options)
        cotangents = p.dy[:length, one], columns(p.dhy, row), columns(p.dcy, row)
        expected = rnnkit.backward(p.desc, p.w, result.workspace, *cotangents)
        assert_same_bits(f"dw {row}", found.dw[row], expected.dw)
        assert_same_bits(f"dhx {row}", found.dhx[:, one], expected.dhx)
        assert_same_bits(f"dx {row}", found.dx[:length, one], expected.dx)
        assert not found.dx[length:, one].any()


@pytest.mark.parametrize(("cell", "dtype"), ALL_CASES)
def test_rows_have_the_bits_of_calls_alone(cell, dtype):
    assert_rows_are_calls_alone(problem(cell, dtype, lengths=(6, 0, 2, 5)))


RESETS = np.random.default_rng(3).random((6, 4)) < 0.4
OPTIONS = {
    "two layers and directions": (dict(num_layers=2, bidirectional=True, lengths=(0, 6, 3, 3)), {}),
    "dropout": (dict(num_layers=2, dropout=0.4, lengths=(6, 1, 2, 5)), {}),
    "mask": (dict(masked=True, lengths=(6, 4, 6, 0)), {}),
    "mask in both directions": (dict(masked=True, bidirectional=True), {}),
    "checkpoints": (dict(seq_len=9, num_layers=2, lengths=(9, 2, 8, 0)), dict(checkpoint_steps=2)),
    "resets": (dict(lengths=(6, 0, 5, 3)), dict(resets=RESETS)),
    "resets to hx": (dict(lengths=(6, 0, 5, 3)), dict(resets=RESETS, initial="hx")),
    "resets in both directions": (dict(bidirectional=True), dict(resets=RESETS, initial="hx")),
    "resets and a mask": (dict(masked=True), dict(resets=RESETS & problem(masked=True).mask)),
    "without states": (dict(states=False), {}),
    "one sequence": (dict(batch_size=1), {}),
    "no sequences": (dict(batch_size=0), {}),
    "no steps": (dict(seq_len=0), {}),
}


@pytest.mark.parametrize("dtype", ["float32", nightly("float64")])
@pytest.mark.parametrize("name", OPTIONS)
def test_rows_have_the_bits_with_options(name, dtype):
    fields, options = OPTIONS[name]
    assert_rows_are_calls_alone(problem("lstm", dtype, **fields), **options)


def test_side_inputs_and_learned_states_have_rows():
    cell = rnnkit.cells.AUGRU
    net = rnnkit.Network(cell, 3, 4, learned_initial_state=True, seed=0)
    rng = np.random.default_rng(0)
    x, attention = rng.normal(size=(5, 3, 3)).astype("f4"), rng.normal(size=(5, 3, 1)).astype("f4")
    (name,) = (one.name for one in net.desc.cell.declaration.inputs)
    result = net.forward(x, inputs={name: attention}, lengths=[5, 2, 0])
    dy = rng.normal(size=result.y.shape).astype("f4")
    found, whole = net.backward(result.workspace, dy, per_sequence=True), net.backward(result.workspace, dy)
    assert_same_bits("of the side input", found.inputs[name], whole.inputs[name])
    for row, length in enumerate([5, 2, 0]):
        one = slice(row, row + 1)
        alone = net.forward(x[:length, one], inputs={name: attention[:length, one]})
        assert_same_bits("dw", found.dw[row], net.backward(alone.workspace, dy[:length, one]).dw)
    assert_close("dw", found.dw.sum(0), whole.dw, "float32")


@pytest.mark.parametrize("rows", [[2, 0], slice(1, None, 2), np.array([3]), [], range(2), slice(None)])
def test_chosen_rows_alone_are_returned(rows):
    p = problem("gru", "float32", lengths=(6, 0, 2, 5))
    workspace = p.forward().workspace
    found, every = (p.backward(workspace, per_sequence=True, rows=one) for one in (rows, None))
    listed = np.arange(p.batch_size)[rows]
    assert_same_bits("dw", found.dw, every.dw[listed])
    assert_same_bits("dx", found.dx, every.dx[:, listed])
    assert_same_bits("dhx", found.dhx, every.dhx[:, listed])


def test_gradient_is_added_to_a_given_array():
    p = problem("gru", "float32")
    workspace = p.forward().workspace
    expected, dw = p.backward(workspace, per_sequence=True).dw, np.ones((2, p.w.size), "f4")
    found = p.backward(workspace, per_sequence=True, rows=[1, 3], dw=dw)
    assert found.dw is dw
    assert_close("dw", dw - 1, expected[[1, 3]], "float32")


def test_workspace_may_be_used_again():
    p = problem("lstm", "float32")
    workspace = p.forward().workspace
    before = p.backward(workspace)
    p.backward(workspace, per_sequence=True)
    assert_same_bits("dw", p.backward(workspace).dw, before.dw)
    p.forward(workspace=workspace)
    with pytest.raises(WorkspaceError, match=says("backward: workspace", "latest forward")):
        p.backward(workspace, per_sequence=True)


P = problem("gru", "float32")
REFUSED = [
    (dict(per_sequence=1), TypeError, ("per_sequence", "bool", "int")),
    (dict(rows=[0]), ValueError, ("rows", "None without per_sequence", "list")),
    (dict(per_sequence=True, rows=[0, 4]), ValueError, ("rows", "0..batch_size-1=3", "4")),
    (dict(per_sequence=True, rows=[1, 1]), ValueError, ("rows", "different numbers")),
    (dict(per_sequence=True, rows=[-1]), ValueError, ("rows", "0..batch_size-1=3", "-1")),
    (dict(per_sequence=True, rows=2), TypeError, ("rows", "a slice or a sequence of ints", "int")),
    (dict(per_sequence=True, rows=[0.5]), TypeError, ("rows", "a slice or a sequence of ints", "list")),
    (dict(per_sequence=True, rows=[[0], [1, 2]]), TypeError, ("rows", "a slice or a sequence of ints", "list")),
    (dict(per_sequence=True, dw=np.zeros(P.w.size, "f4")), ValueError, ("dw", (4, P.w.size), (P.w.size,))),
    (dict(per_sequence=True, dw=[1]), ValueError, ("dw", (4, P.w.size), "list")),
    (dict(per_sequence=True, dw=np.zeros((4, P.w.size))), TypeError, ("dw", "float32", "float64")),
    (dict(per_sequence=True, dw=np.zeros((8, P.w.size), "f4")[::2].T.copy().T), ValueError, ("dw", "C-contiguous")),
]


@pytest.mark.parametrize(("options", "kind", "facts"), REFUSED)
def test_wrong_arguments_are_refused(options, kind, facts):
    with pytest.raises(kind, match=says(f"backward: {facts[0]}", *facts[1:])):
        P.backward(P.forward().workspace, **options)


def test_memory_that_is_lacking_is_named(monkeypatch):
    from rnnkit.network import per_sequence

    def lacks(*arguments):
        raise MemoryError("no more")

    monkeypatch.setattr(per_sequence, "library_of", lambda array: type("Library", (), {"empty": lacks, "zeros": lacks}))
    monkeypatch.setattr(per_sequence, "_check", lambda *arguments: None)
    expected = says("backward: dw", f"4 gradients of {P.w.size} weights take {16 * P.w.size} bytes", "rows")
    with pytest.raises(MemoryError, match=expected):
        P.backward(P.forward().workspace, per_sequence=True)


def test_draws_on_a_gpu_are_refused(gpu):
    import cupy

    p = problem("lstm", "float32", num_layers=2, dropout=0.5)
    net = rnnkit.LSTM.from_descriptor(p.desc, p.w).to(cupy)
    result = net.forward(cupy.asarray(p.x))
    with pytest.raises(BackendError, match=says("backward: per_sequence", "GPU")):
        net.backward(result.workspace, cupy.asarray(p.dy), per_sequence=True)


@pytest.mark.parametrize("cell", ["lstm", "mingru"])
def test_gpu_has_the_gradients_of_the_host(gpu, cell):
    import cupy

    p = problem(cell, "float32", lengths=(6, 0, 2, 5))
    expected = p.backward(p.forward().workspace, per_sequence=True)
    net = rnnkit.Network.from_descriptor(p.desc, p.w).to(cupy)
    move = lambda one: None if one is None else cupy.asarray(one)  # noqa: E731
    result = net.forward(move(p.x), move(p.hx), move(p.cx), lengths=p.lengths_array)
    found = net.backward(result.workspace, *map(move, p.cotangents), per_sequence=True)
    for name in ("dx", "dhx", "dw"):
        assert_close(name, cupy.asnumpy(getattr(found, name)), getattr(expected, name), "float32")
