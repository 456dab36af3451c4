"""Episodes: states start anew inside of a sequence. Each episode alone is the reference."""

import gc
import weakref
from dataclasses import replace
from functools import partial

import numba
import numpy as np
import pytest
from combinations import nightly, pairs
from gradcheck import assert_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import raises
from tolerances import assert_same_bits

import rnnkit
from rnnkit.call.steps import gradient_chunk
from rnnkit.cells import SLSTM
from rnnkit.cpu import route

T, N, F, H = 9, 4, 3, 5
CELLS = {
    "tanh": {"mode": "rnn_tanh"},
    "gru": {"mode": "gru"},
    "reset before": {"mode": "gru", "reset_after": False},
    "lstm": {"mode": "lstm"},
    "projection": {"mode": "lstm", "proj_size": 3, "cell_clip": (-0.4, 0.4)},
    "three states": {"mode": SLSTM},
}
LENGTHS = [9, 0, 5, 1]
OUTPUTS, GRADIENTS = ("y", "hy", "cy"), ("dx", "dhx", "dcx", "dw")


def network(cell="lstm", **options):
    return rnnkit.RNNDescriptor(**{"input_size": F, "hidden_size": H, "dtype": "float64"} | CELLS[cell] | options)


def drawn(desc, seed=0, seq_len=T, batch_size=N):
    """Weights, inputs x, hx, cx, and gradients of the results."""
    rng, dtype = np.random.default_rng(seed), desc.dtype
    rows, num_states = desc.num_pseudo_layers, len(desc.states)

    def array(*shape):
        return rng.normal(size=shape).astype(dtype)

    def states():
        cells = tuple(array(rows, batch_size, desc.hidden_size) for _ in range(num_states))
        return array(rows, batch_size, desc.output_size), cells if num_states > 1 else cells[0] if cells else None

    x, width = array(seq_len, batch_size, desc.input_size), desc.num_directions * desc.output_size
    return rnnkit.init_weights(desc, seed=seed), (x, *states()), (array(seq_len, batch_size, width), *states())


def all_of(desc, w, inputs, cotangents, checkpoint_steps=None, **options):
    """The results of forward and the gradients."""
    result = rnnkit.forward(desc, w, *inputs, checkpoint_steps=checkpoint_steps, seed=1, **options)
    return result, rnnkit.backward(desc, w, result.workspace, *cotangents)


def arrays_of(value):
    return value if isinstance(value, tuple) else () if value is None else (value,)


def assert_same(found, expected, names):
    for name in names:
        for one, other in zip(*(arrays_of(getattr(both, name)) for both in (found, expected)), strict=True):
            assert_same_bits(name, one, other)


def marks_of(seed, shape=(T, N), share=0.3):
    """Resets (steps, rows), drawn."""
    return np.random.default_rng(seed).random(shape) < share


def one_layer(desc, w, inputs, cotangents, lengths, resets, initial):
    """y, hy and dx, dhx, dw of a layer, of h alone beside what the cell keeps: episode by episode, each by itself."""
    (x, hx, cx), (dy, dhy, dcy), size = inputs, cotangents, desc.output_size
    one, dw = replace(desc, bidirectional=False), np.zeros_like(w)
    weights, gradients = rnnkit.weight_views(desc, w), rnnkit.weight_views(desc, dw)
    names = [block.name for block in rnnkit.weight_layout(one)]
    y, hy, dx, dhx = np.zeros_like(dy), hx.copy(), np.zeros_like(x), np.zeros_like(hx)
    for direction in range(desc.num_directions):
        suffix, outputs = ("", "_reverse")[direction], slice(direction * size, (direction + 1) * size)
        own = rnnkit.pack_weights(one, {name: weights[name + suffix] for name in names})
        for n, length in enumerate(lengths):
            row = slice(direction, direction + 1), slice(n, n + 1)

            def of_row(state, row=row):
                several = tuple(np.ascontiguousarray(array[row]) for array in arrays_of(state))
                return several if isinstance(state, tuple) else several[0] if several else None

            if length == 0:
                dhx[row] = dhy[row]
                continue
            cuts = [t for t in range(1, length) if resets[t, n]]
            for start, stop in zip([0, *cuts], [*cuts, length], strict=True):
                turn = slice(None, None, -1 if direction else 1)
                is_first = (stop == length) if direction else (start == 0 and not resets[0, n])
                is_last = (start == 0) if direction else (stop == length)
                states = (of_row(hx), of_row(cx)) if is_first or initial == "hx" else (None, None)
                ends = (of_row(dhy), of_row(dcy)) if is_last else (None, None)
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


def assert_like_episodes(desc, seed, lengths, resets, initial):
    w, inputs, cotangents = drawn(desc, seed)
    given_lengths, lengths = lengths, [T] * N if lengths is None else lengths
    result, found = all_of(desc, w, inputs, cotangents, lengths=given_lengths, resets=resets, initial=initial)
    (y, hy), (dx, dhx, dw) = one_layer(desc, w, inputs, cotangents, lengths, np.asarray(resets), initial)
    assert_same_bits("y", result.y, y)
    assert_same_bits("hy", result.hy, hy)
    for name, expected in {"dx": dx, "dhx": dhx, "dw": dw}.items():
        np.testing.assert_allclose(getattr(found, name), expected, rtol=0, atol=1e-12, err_msg=name)


EPISODES = pairs([*[*CELLS][:-1], nightly("three states")], [False, True], [None, LENGTHS], ["zeros", "hx"])


@pytest.mark.parametrize(("cell", "bidirectional", "lengths", "initial"), EPISODES)
def test_each_episode_is_a_sequence_of_its_own(cell, bidirectional, lengths, initial):
    resets = marks_of(len(cell), share=0.35)
    assert_like_episodes(network(cell, bidirectional=bidirectional), 0, lengths, resets, initial)


ANY_MARKS = st.lists(st.booleans(), min_size=T * N, max_size=T * N)
ANY_LENGTHS = st.lists(st.integers(0, T), min_size=N, max_size=N)


@settings(deadline=None, max_examples=25)
@given(ANY_MARKS, st.sampled_from([0.0, 1.0, None]), ANY_LENGTHS, st.sampled_from(["zeros", "hx"]), st.booleans())
def test_any_resets_split_into_episodes(marks, every, lengths, initial, bidirectional):
    resets = np.array(marks).reshape(T, N) if every is None else np.full((T, N), every)
    assert_like_episodes(network(bidirectional=bidirectional), 1, lengths, resets, initial)


def test_resets_at_the_ends_of_some_rows_split_them_alone():
    """In the first and the last step, and in padding, where they are ignored."""
    for steps in ([0], [T - 1], [0, T - 1]):
        for columns in ([0], [1, 2, 3]):
            resets = np.zeros((T, N))
            resets[np.ix_(steps, columns)] = 1
            assert_like_episodes(network(), 2, LENGTHS, resets, "zeros")


STACKS = [{"num_layers": 3}, {"num_layers": 2, "bidirectional": True}, {"num_layers": 2, "dropout": 0.5}]
SAME = pairs(["gru", "lstm", nightly("projection"), nightly("tanh")], STACKS, ["float32", "float64"], ["zeros", "hx"])


@pytest.mark.parametrize(("cell", "options", "dtype", "initial"), SAME)
def test_all_calls_with_resets_are_bit_identical(monkeypatch, cell, options, dtype, initial):
    """infer, plans, checkpoints and gradients that are taken again: long enough for several chunks, segments and
    slabs."""
    monkeypatch.setattr(route, "_CHUNK_BYTES", 1 << 14)
    desc = network(cell, dtype=dtype, **options)
    seq_len, batch_size = 3 * gradient_chunk(70, desc.np_dtype.itemsize) + 2, 70
    w, inputs, cotangents = drawn(desc, 3, seq_len, batch_size)
    lengths = np.random.default_rng(4).integers(0, seq_len + 1, batch_size)
    asked = dict(resets=marks_of(4, (seq_len, batch_size), 0.1), lengths=lengths, initial=initial)
    result, found = all_of(desc, w, inputs, cotangents, **asked)
    saved, gradients = all_of(desc, w, inputs, cotangents, checkpoint_steps=5, **asked)
    assert_same(saved, result, OUTPUTS)
    assert_same(gradients, found, GRADIENTS)
    assert_same(rnnkit.backward(desc, w, saved.workspace, *cotangents), found, GRADIENTS)
    if not desc.dropout:
        for other in (rnnkit.infer(desc, w, *inputs, **asked), rnnkit.prepare(desc, w).infer(*inputs, **asked)):
            assert_same(other, result, OUTPUTS)


@pytest.mark.parametrize("layers", [{}, {"num_layers": 2}, {"bidirectional": True}])
@pytest.mark.parametrize(("seq_len", "batch_size", "initial"), [(60, 17, "hx"), (5, 64, "zeros")])
@pytest.mark.cores(2)
def test_threads_change_no_bit_with_resets(layers, seq_len, batch_size, initial):
    """In a long call, and in one that runs all layers a step at a time."""
    desc = network(dtype="float32", hidden_size=70, **layers)
    w, inputs, cotangents = drawn(desc, 5, seq_len, batch_size)
    asked = dict(resets=marks_of(6, (seq_len, batch_size), 0.2), initial=initial)
    numba.set_num_threads(1)
    expected, gradients = all_of(desc, w, inputs, cotangents, **asked)
    numba.set_num_threads(2)
    result, found = all_of(desc, w, inputs, cotangents, **asked)
    assert_same(result, expected, OUTPUTS)
    assert_same(rnnkit.infer(desc, w, *inputs, **asked), expected, OUTPUTS)
    assert_same(found, gradients, GRADIENTS)


def test_gradients_with_resets_are_those_of_differences():
    desc = network("gru", num_layers=2, bidirectional=True)
    w, (x, hx, _), (dy, dhy, _) = drawn(desc, 7)
    asked = dict(resets=marks_of(8), lengths=LENGTHS, initial="hx")

    def run(blocks):
        return rnnkit.forward(desc, blocks["w"], blocks["x"], blocks["hx"], **asked)

    def loss(blocks):
        result = run(blocks)
        return (result.y * dy).sum() + (result.hy * dhy).sum()

    def gradients(blocks):
        result = run(blocks)
        found = rnnkit.backward(desc, blocks["w"], result.workspace, dy, dhy)
        return {"w": found.dw, "x": found.dx, "hx": found.dhx}

    assert_gradients(loss, gradients, {"w": w, "x": x, "hx": hx}, 0)


@pytest.mark.parametrize("cell", ["tanh", "lstm", nightly("three states")])
def test_steps_and_streams_with_resets_equal_infer(cell):
    """A loop over plan.step or stream.step, and stream.run, of all streams and of some."""
    desc = network(cell, num_layers=2)
    w, (x, *_), _ = drawn(desc, 9)
    resets = marks_of(10)
    plan = rnnkit.prepare(desc, w)
    expected, states = plan.infer(x, resets=resets), ()
    streams = [plan.stream(N), plan.stream(2 * N), plan.stream(N), plan.stream(2 * N)]
    rows = np.arange(N)[::-1] * 2
    for t in range(T):
        y, *states = plan.step(x[t], *states, resets=resets[t])
        found = [y, streams[0].step(x[t], resets=resets[t]), streams[1].step(x[t], rows=rows, resets=resets[t])]
        for one in found:
            assert_same_bits("y", one, expected.y[t])
    for stream, own in ((streams[2], None), (streams[3], rows)):
        found = [stream.run(x[:4], rows=own, resets=resets[:4]), stream.run(x[4:], rows=own, resets=resets[4:])]
        assert_same_bits("y", np.concatenate(found), expected.y)


def test_given_states_are_not_changed_by_resets():
    desc = network()
    w, (x, hx, cx), _ = drawn(desc)
    before = hx.copy(), cx.copy()
    rnnkit.prepare(desc, w).step(x[0], hx, cx, resets=[1] * N)
    rnnkit.infer(desc, w, x, hx, cx, resets=np.ones((T, N)))
    assert np.array_equal(hx, before[0]) and np.array_equal(cx, before[1])


@pytest.mark.parametrize("checkpoint_steps", [None, 5])
def test_initial_states_may_change_after_forward(checkpoint_steps):
    """As where a program carries them on in place; and nobody keeps them."""
    desc = network(dtype="float32")
    seq_len, batch_size = 3 * gradient_chunk(70, 4), 70
    w, inputs, cotangents = drawn(desc, 14, seq_len, batch_size)
    asked = dict(resets=marks_of(15, (seq_len, batch_size), 0.1), initial="hx")
    _, expected = all_of(desc, w, inputs, cotangents, **asked)
    x, *states = inputs
    hx, cx = (one.copy() for one in states)
    result = rnnkit.forward(desc, w, x, hx, cx, checkpoint_steps=checkpoint_steps, **asked)
    hx[...], cx[...] = np.nan, np.nan
    assert_same(rnnkit.backward(desc, w, result.workspace, *cotangents), expected, GRADIENTS)


def test_initial_states_are_let_go():
    desc = network()
    w, (x, hx, cx), _ = drawn(desc)
    plan, resets = rnnkit.prepare(desc, w), np.eye(T, N)
    for call in (partial(rnnkit.forward, desc, w), partial(rnnkit.infer, desc, w), plan.infer):
        own = hx.copy()
        gone = weakref.ref(own)
        call(x, own, cx, resets=resets, initial="hx")
        del own
        gc.collect()
        assert gone() is None


def test_resets_of_every_kind_are_accepted():
    desc = network()
    w, inputs, _ = drawn(desc)
    marks = marks_of(11)
    expected = rnnkit.infer(desc, w, *inputs, resets=marks).y
    for same in (marks.astype(np.uint8), marks.astype(np.float32), marks.tolist(), np.asfortranarray(marks)):
        assert_same_bits("y", rnnkit.infer(desc, w, *inputs, resets=same).y, expected)
    nothing = rnnkit.infer(desc, w, *inputs, resets=np.zeros((T, N)))
    assert_same_bits("y", nothing.y, rnnkit.infer(desc, w, *inputs).y)
    assert rnnkit.infer(desc, w, inputs[0][:0], *inputs[1:], resets=np.zeros((0, N))).y.shape == (0, N, H)


ZEROS = np.zeros((T, N))
REFUSED = [
    ({"resets": np.zeros((N, T))}, ValueError, "resets | (seq_len=9, batch_size=4) | (4, 9)"),
    ({"resets": np.full((T, N), np.nan)}, ValueError, "resets | 0 | 1 | nan"),
    ({"resets": np.full((T, N), 0.5)}, ValueError, "resets | 0 | 1 | 0.5"),
    ({"resets": np.full((T, N), 2)}, ValueError, "resets | 0 | 1 | 2"),
    ({"resets": np.zeros((T, N), complex)}, TypeError, "resets | bool | integers | floats | complex128"),
    ({"resets": "no"}, TypeError, "resets | None | integer array | host | str"),
    ({"resets": ZEROS, "initial": "cx"}, ValueError, "initial | zeros | hx | 'cx'"),
    ({"resets": ZEROS, "initial": np.zeros(3)}, ValueError, "initial | zeros | hx | array([0., 0., 0.])"),
    ({"initial": "hx"}, ValueError, "initial | zeros | resets | hx"),
]


@pytest.mark.parametrize(("asked", "kind", "text"), REFUSED)
def test_wrong_resets_are_refused(asked, kind, text):
    desc = network()
    w, inputs, _ = drawn(desc)
    for function in (rnnkit.forward, rnnkit.infer):
        with raises(kind, f"{function.__name__}: {text}"):
            function(desc, w, *inputs, **asked)


def test_calls_with_and_without_resets_in_turn():
    """Of one size, in one workspace."""
    desc = network(num_layers=2, dtype="float32")
    w, inputs, cotangents = drawn(desc, 12)
    rng, workspace = np.random.default_rng(13), None
    for number in range(12):
        asked = [{}, {"lengths": LENGTHS}, {"resets": rng.random((T, N)) < 0.3}][number % 3]
        if number % 2 and "resets" in asked:
            asked["initial"] = "hx"
        expected, gradients = all_of(desc, w, inputs, cotangents, **asked)
        result = rnnkit.forward(desc, w, *inputs, workspace=workspace, **asked)
        workspace = result.workspace
        assert_same(result, expected, OUTPUTS)
        assert_same(rnnkit.backward(desc, w, workspace, *cotangents), gradients, GRADIENTS)
