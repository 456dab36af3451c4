"""Side inputs of a cell: in every kind of call, of every shape, with their gradients, and what is refused."""

import numpy as np
import pytest
from attentive import WIDTH, Attentive, H, N, T
from cell_reference import differences, forward
from combinations import nightly, pairs
from messages import raises
from tolerances import assert_same_bits

import rnnkit
from rnnkit import training
from rnnkit.cells import AUGRU
from rnnkit.common.arrays import sum_of_steps
from rnnkit_kernels.machine import thread_pool

SHAPES = {"whole": (T, N, H), "of a step": (T, N, 1), "of a row": (N, H)}


def problem(shape="whole", dtype="float64", seed=0, **options):
    rng = np.random.default_rng(seed)
    net = rnnkit.Network(Attentive, WIDTH, H, dtype=dtype, seed=seed, **options)
    x = rng.normal(size=(T, N, WIDTH)).astype(dtype)
    inputs = {"gap": rng.normal(size=SHAPES[shape]), "a": rng.uniform(size=SHAPES["whole"])}
    return net, x, {name: one.astype(dtype) for name, one in inputs.items()}, rng


CASES = pairs(SHAPES, [1, 3], [False, True], [None, 2])


@pytest.mark.parametrize(("shape", "layers", "bidirectional", "steps"), CASES)
def test_values_and_gradients_are_those_of_the_reference(shape, layers, bidirectional, steps):
    net, x, inputs, rng = problem(shape, num_layers=layers, bidirectional=bidirectional)
    lengths, resets = [T, 0, 3, 1], rng.random((T, N)) < 0.2
    found = net.forward(x, lengths=lengths, resets=resets, inputs=inputs, checkpoint_steps=steps)
    hx = np.zeros_like(found.hy)
    y, hy, _ = forward(net, x, hx, [], lengths, resets, inputs)
    np.testing.assert_allclose(found.y, y, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.hy, hy, rtol=0, atol=1e-12)
    dy, dhy = rng.normal(size=y.shape), rng.normal(size=hy.shape)
    back = net.backward(found.workspace, dy, dhy)
    assert [one.shape for one in back.inputs.values()] == [inputs[name].shape for name in ("a", "gap")]
    given = {"lengths": lengths, "resets": resets, "inputs": inputs}
    own = {"x": back.dx, "hx": back.dhx} | back.inputs | rnnkit.weight_views(net.desc, back.dw)
    for name, (direction, slope, curved) in differences(net, x, hx, [], (dy, dhy, []), rng, **given).items():
        assert abs((own[name] * direction).sum() - slope) <= 1e-7 * (1 + abs(slope)) + 3 * curved, name
    again = net.backward(found.workspace, dy, dhy)
    arrays = [(one.dx, one.dw, *one.inputs.values()) for one in (back, again)]
    assert all(np.array_equal(one, other) for one, other in zip(*arrays, strict=True))


@pytest.mark.parametrize("dtype", ["float32", nightly("float64")])
def test_every_call_has_the_same_bits(dtype):
    net, x, inputs, _ = problem(dtype=dtype, num_layers=2)
    y, hy, _, _ = net.forward(x, inputs=inputs)
    plan = net.prepare()
    for one in (net.infer(x, inputs=inputs), plan.infer(x, inputs=inputs)):
        assert np.array_equal(one.y, y) and np.array_equal(one.hy, hy)
    states, stream, runner = None, plan.stream(N), plan.stream(N)
    for t in range(T):
        own = {name: one[t] for name, one in inputs.items()}
        step = plan.step(x[t], states, inputs=own)
        assert np.array_equal(step.y, y[t]) and np.array_equal(stream.step(x[t], inputs=own), y[t])
        states = step.hy
    assert np.array_equal(runner.run(x, inputs=inputs), y)
    rows = [2, 0]
    some = {name: one[:, rows] for name, one in inputs.items()}
    assert np.array_equal(plan.stream(N).run(x[:, rows], rows=rows, inputs=some), y[:, rows])
    narrow = {name: np.ascontiguousarray(one[:, :, :1]) for name, one in inputs.items()}
    spread = {name: np.repeat(one, H, axis=2) for name, one in narrow.items()}
    assert np.array_equal(net.infer(x, inputs=narrow).y, net.infer(x, inputs=spread).y)


@pytest.mark.parametrize("threads", [1, 2])
def test_long_calls_have_the_bits_of_their_steps(threads, monkeypatch):
    monkeypatch.setattr(thread_pool, "wanted_size", lambda: threads)
    rng = np.random.default_rng(1)
    net = rnnkit.Network(Attentive, 5, 33, 2, dtype="float32", seed=1)
    x, shape = rng.normal(size=(70, 40, 5)).astype("float32"), (70, 40, 33)
    inputs = {name: rng.uniform(size=shape).astype("float32") for name in ("a", "gap")}
    y, states, plan = net.infer(x, inputs=inputs).y, None, net.prepare()
    assert np.array_equal(net.forward(x, inputs=inputs).y, y)
    for t in range(len(x)):
        own = {name: one[t] for name, one in inputs.items()}
        step = plan.step(x[t], states, inputs=own)
        states = step.hy
        assert np.array_equal(step.y, y[t])


def test_quantized_weights_change_results_little():
    net, x, inputs, _ = problem(dtype="float32")
    y = net.infer(x, inputs=inputs).y
    for precision in ("bfloat16", "int8"):
        assert 0 < abs(net.prepare(precision=precision).infer(x, inputs=inputs).y - y).max() < 0.02


def test_network_with_side_inputs_learns():
    net, x, inputs, _ = problem(dtype="float32")
    optimizer, losses, workspace = training.Adam(net.weights), [], None
    for _ in range(30):
        y, _, _, workspace = net.forward(x, inputs=inputs, workspace=workspace)
        error = y - inputs["a"]
        losses.append(float((error**2).mean()))
        optimizer.step(net.backward(workspace, error).dw, learning_rate=0.02)
    assert losses[-1] < 0.7 * losses[0]


def test_check_cell_has_a_row_for_each_side_input():
    assert [row.name for row in rnnkit.check_cell(Attentive) if row.kind == "input"] == ["a", "gap"]


WHOLE, GAP = np.zeros((T, N, H)), 'inputs["gap"]'
REFUSED = [
    (None, TypeError, "inputs | mapping | a, gap | NoneType"),
    ({"a": None}, ValueError, "inputs | a, gap | 1 names | missing: gap"),
    ({"a": WHOLE, "gap": WHOLE, "b": 1}, ValueError, "inputs | 3 names | unknown: b"),
    (
        {"a": WHOLE, "gap": np.zeros((T, N, 2))},
        ValueError,
        f"{GAP} | ({T}, {N}, {H}) | ({T}, {N}, 1) | ({N}, {H}) | ({T}, {N}, 2)",
    ),
    ({"a": WHOLE, "gap": np.zeros((T, N, H), "float32")}, TypeError, f"{GAP} | float64 | float32"),
    ({"a": WHOLE, "gap": [1.0]}, TypeError, f"{GAP} | numpy.ndarray | list"),
]


@pytest.mark.parametrize(("inputs", "kind", "text"), REFUSED)
def test_wrong_side_inputs_are_refused(inputs, kind, text):
    net, x, _, _ = problem()
    for call in (net.forward, net.infer, net.prepare().infer, net.prepare().stream(N).run):
        with raises(kind, f"{call.__name__}: {text}"):
            call(x, inputs=inputs)
    with pytest.raises((TypeError, ValueError), match="^step: inputs"):
        net.prepare().step(x[0], inputs=inputs)


def test_side_inputs_of_other_cells_are_refused():
    net, x = rnnkit.GRU(WIDTH, H, seed=0, dtype="float64"), np.zeros((T, N, WIDTH))
    for call in (net.forward, net.infer, net.prepare().infer, net.prepare().step):
        given = x[0] if call.__name__ == "step" else x
        with raises(TypeError, f'{call.__name__}: inputs | None | mode="gru" | dict'):
            call(given, inputs={"a": given})


@pytest.mark.parametrize("dtype", ["float64", nightly("float32")])
@pytest.mark.parametrize("hidden_size", [1, 2, 17])
def test_gradients_do_not_depend_on_other_sequences(hidden_size, dtype):
    rng, steps, rows = np.random.default_rng(1), 200, 3
    net = rnnkit.Network(AUGRU, WIDTH, hidden_size, seed=0, dtype=dtype)
    x, dy = (rng.standard_normal((steps, rows, size)).astype(dtype) for size in (WIDTH, hidden_size))
    for shape in (rows, hidden_size), (steps, rows, 1), (steps, rows, hidden_size):
        attention = rng.random(shape).astype(dtype)

        def gradient(which, attention=attention):
            given = {"attention": np.ascontiguousarray(attention[..., which, :])}
            workspace = net.forward(np.ascontiguousarray(x[:, which]), inputs=given).workspace
            return net.backward(workspace, np.ascontiguousarray(dy[:, which])).inputs["attention"]

        whole = gradient(slice(0, rows))
        for row in range(rows):
            assert_same_bits("gradient", gradient(slice(row, row + 1)), whole[..., row : row + 1, :])


@pytest.mark.parametrize("shape", [(0, 0, 1), (0, 1, 1), (3, 0, 4), (0, 0, 4), (1, 1, 1), (5, 1, 1), (5, 2, 3)])
def test_sum_of_steps_has_the_shape_of_a_step(shape):
    array = np.full(shape, -0.0)
    assert_same_bits("sum", sum_of_steps(array), np.zeros(shape[1:]))
