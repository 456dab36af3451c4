"""Gradients of single sequences: backward(per_sequence=True)."""

import numpy as np
import pytest
from combinations import nightly
from messages import says
from optional import needs
from problems import ALL_CASES, problem_of
from several_states import arrays_of
from tolerances import assert_close, assert_same_bits

import rnnkit
from rnnkit.errors import BackendError, WorkspaceError


def problem(cell="lstm", dtype="float64", **fields):
    return problem_of(cell, dtype=dtype, **{"seq_len": 6, "batch_size": 4} | fields)


def named(gradients):
    """Arrays by name; those of several states by their number."""
    found = {"dx": gradients.dx, "dhx": gradients.dhx, "dw": gradients.dw, **getattr(gradients, "inputs", {})}
    return found | {f"dcx {number}": one for number, one in enumerate(arrays_of(gradients.dcx))}


def columns(states, row):
    """The states of one sequence."""
    if isinstance(states, tuple):
        return tuple(one[:, row : row + 1] for one in states)
    return None if states is None else states[:, row : row + 1]


def assert_rows_are_calls_alone(p, inputs=None, **options):
    """Each row of each result has the bits of a call with that sequence alone."""
    given = {} if inputs is None else {"inputs": inputs}
    workspace = p.forward(**given, **options).workspace
    found, whole = p.backward(workspace, per_sequence=True), p.backward(workspace)
    assert_close("dw", found.dw.sum(0), whole.dw, p.dtype)
    for name, expected in named(whole).items():
        if name != "dw" and not (name in given.get("inputs", {}) and expected.ndim == 2):
            assert_same_bits(name, named(found)[name], expected)
    for row in range(p.batch_size):
        length = p.seq_len if p.lengths is None else p.lengths[row]
        one = slice(row, row + 1)
        of_row = {name: value[:length, one] for name, value in options.items() if name == "resets"}
        if p.mask is not None:
            of_row["mask"] = p.mask[:length, one]
        if inputs is not None:
            of_row["inputs"] = {k: a[one] if a.ndim == 2 else a[:length, one] for k, a in inputs.items()}
        kept = {name: value for name, value in options.items() if name != "resets"}
        alone = p.x[:length, one], columns(p.hx, row), columns(p.cx, row)
        result = rnnkit.forward(p.desc, p.w, *alone, seed=p.seed, first_row=row, **of_row, **kept)
        cotangents = p.dy[:length, one], columns(p.dhy, row), columns(p.dcy, row)
        expected = rnnkit.backward(p.desc, p.w, result.workspace, *cotangents)
        assert_same_bits(f"dw {row}", found.dw[row], expected.dw)
        assert_same_bits(f"dhx {row}", found.dhx[:, one], expected.dhx)
        assert_same_bits(f"dx {row}", found.dx[:length, one], expected.dx)
        assert not found.dx[length:, one].any()
        if inputs is not None:
            for name, gradient in expected.inputs.items():
                own = found.inputs[name]
                assert_same_bits(name, own[one] if gradient.ndim == 2 else own[:length, one], gradient)


@pytest.mark.parametrize(("cell", "dtype"), ALL_CASES)
def test_rows_have_the_bits_of_calls_alone(cell, dtype):
    assert_rows_are_calls_alone(problem(cell, dtype, lengths=(6, 0, 2, 5)))


OPTIONS = {
    "two layers and directions": (dict(num_layers=2, bidirectional=True, lengths=(0, 6, 3, 3)), {}),
    "dropout": (dict(num_layers=2, dropout=0.4, lengths=(6, 1, 2, 5)), {}),
    "mask": (dict(masked=True, lengths=(6, 4, 6, 0)), {}),
    "mask in both directions": (dict(masked=True, bidirectional=True), {}),
    "checkpoints": (dict(seq_len=9, num_layers=2, lengths=(9, 2, 8, 0)), dict(checkpoint_steps=2)),
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


@pytest.mark.parametrize("initial", ["zeros", "hx"])
@pytest.mark.parametrize("fields", [dict(lengths=(6, 0, 5, 3)), dict(bidirectional=True)])
def test_rows_have_the_bits_with_resets(fields, initial):
    p = problem("lstm", **fields)
    resets = np.random.default_rng(3).random((p.seq_len, p.batch_size)) < 0.4
    assert_rows_are_calls_alone(p, resets=resets, initial=initial)


def test_resets_and_masks_meet():
    p = problem("lstm", masked=True)
    assert_rows_are_calls_alone(p, resets=p.mask & (np.random.default_rng(3).random(p.mask.shape) < 0.5))


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
    with pytest.raises(WorkspaceError, match=says("backward: workspace is older")):
        p.backward(workspace, per_sequence=True)


def test_rows_equal_the_per_sample_gradients_of_pytorch():
    torch = needs("torch")
    p = problem("lstm", states=False)
    module = torch.nn.LSTM(p.input_size, p.hidden_size).double()
    with torch.no_grad():
        for name, value in p.views.items():
            getattr(module, name).copy_(torch.from_numpy(value.copy()))
    found = rnnkit.backward(p.desc, p.w, p.forward().workspace, p.dy, per_sequence=True).dw
    for row in range(p.batch_size):
        y, _ = module(torch.from_numpy(p.x[:, row : row + 1]))
        gradients = torch.autograd.grad((y * torch.from_numpy(p.dy[:, row : row + 1])).sum(), module.parameters())
        assert_close("dw", found[row], np.concatenate([one.numpy().ravel() for one in gradients]), "float64")


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
