"""Episodes: states start anew inside of a sequence. Each episode alone is the reference."""

import gc
import weakref
from dataclasses import replace
from functools import partial

import numba
import numpy as np
import pytest
from combinations import nightly, pairs
from messages import raises
from problems import problem_of
from several_states import each_of
from tolerances import GRADIENTS, OUTPUTS, assert_same_bits, assert_same_results

import rnnkit
from rnnkit.call.steps import gradient_chunk
from rnnkit.cpu import route

T, N, H = 9, 4, 5
LENGTHS = 9, 0, 5, 1


def network(cell="lstm", **fields):
    return problem_of(cell, **{"seq_len": T, "batch_size": N, "hidden_size": H} | fields)


def all_of(problem, **options):
    """The results of forward and the gradients."""
    result = problem.forward(**options)
    return result, problem.backward(result.workspace)


def marks_of(seed, shape=(T, N), share=0.3):
    """Resets (steps, rows), drawn."""
    return np.random.default_rng(seed).random(shape) < share


def of_row(state, row):
    return each_of(lambda array: np.ascontiguousarray(array[row]), state)


def one_layer(problem, resets, initial):
    """y, hy and dx, dhx, dw of a layer, of h alone beside what the cell keeps: episode by episode, each by itself."""
    desc, (w, x, hx, cx), (dy, dhy, dcy) = problem.desc, problem.inputs, problem.cotangents
    one, dw, size = replace(desc, bidirectional=False), np.zeros_like(w), desc.output_size
    weights, gradients = rnnkit.weight_views(desc, w), rnnkit.weight_views(desc, dw)
    names = [block.name for block in rnnkit.weight_layout(one)]
    y, hy, dx, dhx = np.zeros_like(dy), hx.copy(), np.zeros_like(x), np.zeros_like(hx)
    for direction, n in np.ndindex(desc.num_directions, N):
        suffix, outputs = ("", "_reverse")[direction], slice(direction * size, (direction + 1) * size)
        own = rnnkit.pack_weights(one, {name: weights[name + suffix] for name in names})
        row, length = (slice(direction, direction + 1), slice(n, n + 1)), int(problem.valid[:, n].sum())
        if length == 0:
            dhx[row] = dhy[row]
            continue
        cuts = [t for t in range(1, length) if resets[t, n]]
        for start, stop in zip([0, *cuts], [*cuts, length], strict=True):
            turn = slice(None, None, -1 if direction else 1)
            is_first = (stop == length) if direction else (start == 0 and not resets[0, n])
            is_last = (start == 0) if direction else (stop == length)
            states = (of_row(hx, row), of_row(cx, row)) if is_first or initial == "hx" else (None, None)
            ends = (of_row(dhy, row), of_row(dcy, row)) if is_last else (None, None)
            result = rnnkit.forward(one, own, np.ascontiguousarray(x[start:stop, n : n + 1][turn]), *states)
            dys = np.ascontiguousarray(dy[start:stop, n : n + 1, outputs][turn])
            found = rnnkit.backward(one, own, result.workspace, dys, *ends)
            y[start:stop, n, outputs] = result.y[turn, 0]
            dx[start:stop, n] += found.dx[turn, 0]
            dhx[row] += found.dhx if states[0] is not None else 0
            if is_last:
                hy[row] = result.hy
            for name, array in rnnkit.weight_views(one, found.dw).items():
                gradients[name + suffix][...] += array
    return (y, hy), (dx, dhx, dw)


ENDS = np.zeros((T, N), bool)  # of some rows; the last step of most is padding with lengths
ENDS[0, [0, 3]] = ENDS[-1, 1:] = True
MARKS = {"some": marks_of(4, share=0.35), "all": np.ones((T, N)), "ends": ENDS}
CELLS = "tanh", "gru", "gru-reset-before", "lstm", "lstm-projected-clipped", nightly("slstm")


@pytest.mark.parametrize(
    ("cell", "bidirectional", "lengths", "initial", "marks"),
    pairs(CELLS, [False, True], [None, LENGTHS], ["zeros", "hx"], MARKS),
)
def test_each_episode_is_a_sequence_of_its_own(cell, bidirectional, lengths, initial, marks):
    problem, resets = network(cell, bidirectional=bidirectional, lengths=lengths), MARKS[marks]
    result, found = all_of(problem, resets=resets, initial=initial)
    (y, hy), gradients = one_layer(problem, resets, initial)
    assert_same_bits("y", result.y, y)
    assert_same_bits("hy", result.hy, hy)
    for name, expected in zip(("dx", "dhx", "dw"), gradients, strict=True):
        np.testing.assert_allclose(getattr(found, name), expected, rtol=0, atol=1e-12, err_msg=name)


STACKS = [{"num_layers": 3}, {"num_layers": 2, "bidirectional": True}, {"num_layers": 2, "dropout": 0.5}]
SAME = ["gru", "lstm", nightly("lstm-projected-clipped"), nightly("tanh")]


@pytest.mark.parametrize(
    ("cell", "options", "dtype", "initial"), pairs(SAME, STACKS, ["float32", "float64"], ["zeros", "hx"])
)
def test_all_calls_with_resets_are_bit_identical(monkeypatch, cell, options, dtype, initial):
    """infer, plans, checkpoints and gradients that are taken again: long enough for several chunks, segments and
    slabs."""
    monkeypatch.setattr(route, "_CHUNK_BYTES", 1 << 14)
    steps = 3 * gradient_chunk(70, np.dtype(dtype).itemsize) + 2
    lengths = tuple(np.random.default_rng(4).integers(0, steps + 1, 70))
    problem = network(cell, dtype=dtype, seq_len=steps, batch_size=70, lengths=lengths, **options)
    asked = dict(resets=marks_of(4, (steps, 70), 0.1), initial=initial)
    result, found = all_of(problem, **asked)
    saved, gradients = all_of(problem, checkpoint_steps=5, **asked)
    assert_same_results(saved, result, OUTPUTS)
    assert_same_results(gradients, found, GRADIENTS)
    assert_same_results(problem.backward(saved.workspace), found, GRADIENTS)
    if not problem.dropout:
        desc, (w, *inputs), asked = problem.desc, problem.inputs, asked | problem.options
        for other in (rnnkit.infer(desc, w, *inputs, **asked), rnnkit.prepare(desc, w).infer(*inputs, **asked)):
            assert_same_results(other, result, OUTPUTS)


@pytest.mark.parametrize("layers", [{}, {"num_layers": 2}, {"bidirectional": True}])
@pytest.mark.parametrize(("seq_len", "batch_size", "initial"), [(60, 17, "hx"), (5, 64, "zeros")])
@pytest.mark.cores(2)
def test_threads_change_no_bit_with_resets(layers, seq_len, batch_size, initial):
    """In a long call, and in one that runs all layers a step at a time."""
    problem = network(dtype="float32", hidden_size=70, seq_len=seq_len, batch_size=batch_size, **layers)
    asked = dict(resets=marks_of(6, (seq_len, batch_size), 0.2), initial=initial)
    numba.set_num_threads(1)
    expected, gradients = all_of(problem, **asked)
    numba.set_num_threads(2)
    result, found = all_of(problem, **asked)
    assert_same_results(result, expected, OUTPUTS)
    assert_same_results(rnnkit.infer(problem.desc, *problem.inputs, **asked), expected, OUTPUTS)
    assert_same_results(found, gradients, GRADIENTS)


def test_given_states_are_not_changed_by_resets():
    problem = network()
    w, x, hx, cx = problem.inputs
    before = hx.copy(), cx.copy()
    rnnkit.prepare(problem.desc, w).step(x[0], hx, cx, resets=[1] * N)
    rnnkit.infer(problem.desc, w, x, hx, cx, resets=np.ones((T, N)))
    assert np.array_equal(hx, before[0]) and np.array_equal(cx, before[1])


@pytest.mark.parametrize("checkpoint_steps", [None, 5])
def test_initial_states_may_change_after_forward(checkpoint_steps):
    """As where a program carries them on in place; and nobody keeps them."""
    seq_len, batch_size = 3 * gradient_chunk(70, 4), 70
    problem = network(dtype="float32", seq_len=seq_len, batch_size=batch_size)
    asked = dict(resets=marks_of(15, (seq_len, batch_size), 0.1), initial="hx")
    _, expected = all_of(problem, **asked)
    result = problem.forward(checkpoint_steps=checkpoint_steps, **asked)
    problem.hx[...], problem.cx[...] = np.nan, np.nan
    assert_same_results(problem.backward(result.workspace), expected, GRADIENTS)


def test_initial_states_are_let_go():
    problem = network()
    desc, (w, x, hx, cx) = problem.desc, problem.inputs
    plan, resets = rnnkit.prepare(desc, w), np.eye(T, N)
    for call in (partial(rnnkit.forward, desc, w), partial(rnnkit.infer, desc, w), plan.infer):
        own = hx.copy()
        gone = weakref.ref(own)
        call(x, own, cx, resets=resets, initial="hx")
        del own
        gc.collect()
        assert gone() is None


def test_resets_of_every_kind_are_accepted():
    problem = network()
    call, marks = partial(rnnkit.infer, problem.desc, *problem.inputs), marks_of(11)
    for same in (marks.astype(np.uint8), marks.astype(np.float32), marks.tolist(), np.asfortranarray(marks)):
        assert_same_bits("y", call(resets=same).y, call(resets=marks).y)
    assert_same_bits("y", call(resets=np.zeros((T, N))).y, call().y)
    nothing = network(seq_len=0)
    assert rnnkit.infer(nothing.desc, *nothing.inputs, resets=np.zeros((0, N))).y.shape == (0, N, H)


ZEROS = np.zeros((T, N))
REFUSED = [
    ({"resets": np.zeros((N, T))}, ValueError, "resets | (seq_len=9, batch_size=4) | (4, 9)"),
    ({"resets": np.full((T, N), 0.5)}, ValueError, "resets | 0 | 1 | 0.5"),
    ({"resets": np.zeros((T, N), complex)}, TypeError, "resets | bool | integers | floats | complex128"),
    ({"resets": "no"}, TypeError, "resets | None | integer array | host | str"),
    ({"resets": ZEROS, "initial": "cx"}, ValueError, "initial | zeros | hx | 'cx'"),
    ({"resets": ZEROS, "initial": np.zeros(3)}, ValueError, "initial | zeros | hx | array([0., 0., 0.])"),
    ({"initial": "hx"}, ValueError, "initial | zeros | resets | hx"),
]


@pytest.mark.parametrize(("asked", "kind", "text"), REFUSED)
def test_wrong_resets_are_refused(asked, kind, text):
    problem = network()
    for function in (rnnkit.forward, rnnkit.infer):
        with raises(kind, f"{function.__name__}: {text}"):
            function(problem.desc, *problem.inputs, **asked)


def test_calls_with_and_without_resets_in_turn():
    """Of one size, in one workspace."""
    problem, workspace = network(num_layers=2, dtype="float32"), None
    for number in range(12):
        asked = [{}, {"lengths": LENGTHS}, {"resets": marks_of(number)}][number % 3]
        if number % 2 and "resets" in asked:
            asked["initial"] = "hx"
        expected, gradients = all_of(problem, **asked)
        result, found = all_of(problem, workspace=workspace, **asked)
        workspace = result.workspace
        assert_same_results(result, expected, OUTPUTS)
        assert_same_results(found, gradients, GRADIENTS)
