"""Side inputs of a cell: in every kind of call, of every shape, with their gradients, and what is refused."""

import numpy as np
import pytest
from attentive import WIDTH, Attentive, H, N, T
from cell_reference import differences, forward
from combinations import nightly, pairs
from messages import raises
from own_cells import GivenInputs
from several_states import arrays_of, as_given
from tolerances import OUTPUTS, assert_outputs_close, assert_same_bits, assert_same_results

import rnnkit
from rnnkit.call.side_inputs import with_inputs
from rnnkit.cells import AUGRU
from rnnkit.common.arrays import sum_of_steps
from rnnkit_kernels.machine import thread_pool

SHAPES = {"whole": (T, N, H), "of a step": (T, N, 1), "of a row": (N, H)}


def problem(shape="whole", dtype="float64", kind=Attentive, **options):
    rng, width = np.random.default_rng(0), WIDTH if kind is Attentive else 0
    net = rnnkit.Network(kind, width, H, dtype=dtype, seed=0, **options)
    x = rng.normal(size=(T, N, width)).astype(dtype)
    inputs = {name: rng.normal(size=SHAPES["whole"]) for name in ("xo", "xg", "xf", "xi")}
    if kind is Attentive:
        inputs = {"gap": rng.normal(size=SHAPES[shape]), "a": rng.uniform(size=SHAPES["whole"])}
    return net, x, {name: one.astype(dtype) for name, one in inputs.items()}, rng


def assert_like_the_reference(net, x, inputs, rng, steps):
    lengths, resets = [T, 0, 3, 1], rng.random((T, N)) < 0.2
    found = net.forward(x, lengths=lengths, resets=resets, inputs=inputs, checkpoint_steps=steps)
    hx, cx = np.zeros_like(found.hy), [np.zeros_like(one) for one in arrays_of(found.cy)]
    given = {"lengths": lengths, "resets": resets, "inputs": inputs}
    y, hy, states = forward(net, x, hx, cx, **given)
    for one, other in zip((found.y, found.hy, *arrays_of(found.cy)), (y, hy, *states), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
    dy, dhy, *dcy = (rng.normal(size=one.shape) for one in (y, hy, *cx))
    back = net.backward(found.workspace, dy, dhy, as_given(dcy))
    names = [one.name for one in net.desc.cell.declaration.inputs]
    assert [one.shape for one in back.inputs.values()] == [inputs[name].shape for name in names]
    own = {"x": back.dx, "hx": back.dhx} | back.inputs | rnnkit.weight_views(net.desc, back.dw)
    own |= {f"state{number}": one for number, one in enumerate(arrays_of(back.dcx))}
    for name, (direction, slope, curved) in differences(net, x, hx, cx, (dy, dhy, dcy), rng, **given).items():
        assert abs((own[name] * direction).sum() - slope) <= 1e-7 * (1 + abs(slope)) + 3 * curved, name


CASES = pairs(SHAPES, [1, 3], [False, True], [None, 2])


@pytest.mark.parametrize(("shape", "layers", "bidirectional", "steps"), CASES)
def test_values_and_gradients_are_those_of_the_reference(shape, layers, bidirectional, steps):
    assert_like_the_reference(*problem(shape, num_layers=layers, bidirectional=bidirectional), steps)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_cell_whose_gates_have_no_w_is_that_of_the_reference(bidirectional):
    """input_size is 0, and all that it reads are side inputs."""
    assert_like_the_reference(*problem(kind=GivenInputs, bidirectional=bidirectional), None)


@pytest.mark.parametrize(("kind", "layers"), [(Attentive, 2), (GivenInputs, 1)])
def test_every_call_has_the_same_bits(kind, layers):
    net, x, inputs, _ = problem(dtype="float32", kind=kind, num_layers=layers)
    found, plan = net.forward(x, inputs=inputs), net.prepare()
    wide, wide_x, wide_inputs, _ = problem(kind=kind, num_layers=layers)
    assert_outputs_close(found, wide.infer(wide_x, inputs=wide_inputs), "float32")
    for one in (net.infer(x, inputs=inputs), plan.infer(x, inputs=inputs)):
        assert_same_results(one, found, OUTPUTS)
    states, stream = (), plan.stream(N)
    for t in range(T):
        own = {name: one[t] for name, one in inputs.items()}
        y, *states = plan.step(x[t], *states, inputs=own)
        assert_same_bits("y", y, found.y[t])
        assert_same_bits("y", stream.step(x[t], inputs=own), found.y[t])
    assert_same_bits("y", plan.stream(N).run(x, inputs=inputs), found.y)
    rows = [2, 0]
    some = {name: one[:, rows] for name, one in inputs.items()}
    assert_same_bits("y", plan.stream(N).run(x[:, rows], rows=rows, inputs=some), found.y[:, rows])
    narrow = {name: np.ascontiguousarray(one[:, :, :1]) for name, one in inputs.items()}
    spread = {name: np.repeat(one, H, axis=2) for name, one in narrow.items()}
    assert_same_bits("y", net.infer(x, inputs=narrow).y, net.infer(x, inputs=spread).y)
    for precision in ("bfloat16", "int8"):
        quantized = net.prepare(precision=precision).infer(x, inputs=inputs).y
        assert 0 < abs(quantized - found.y).max() < 0.03


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


def test_columns_of_one_array_are_not_copied():
    wide = np.random.default_rng(0).normal(size=(T, N, 3 + H)).astype("float32")
    net, x, inputs = rnnkit.Network(AUGRU, 3, H, seed=0), wide[..., :3], {"attention": wide[..., 3:]}
    assert np.shares_memory(with_inputs("forward", net.desc, x, inputs), wide)
    apart = {"attention": wide[..., 3:].copy()}
    assert_same_results(net.infer(x, inputs=inputs), net.infer(x.copy(), inputs=apart), OUTPUTS)
    wider = np.zeros((T, N, 4 + H), "float32")
    for other in (wide[..., 2:-1], wide[::-1, :, 3:], wide[..., :2:-1], wide[..., 3:4], wide[0, :, 3:], wider[..., 4:]):
        joined = with_inputs("forward", net.desc, x, {"attention": other})
        assert not np.shares_memory(joined, wide) and np.array_equal(joined[..., 3:], np.broadcast_to(other, (T, N, H)))


def test_check_cell_has_a_row_for_each_side_input():
    assert [row.name for row in rnnkit.check_cell(Attentive) if row.kind == "input"] == ["a", "gap"]


WHOLE, GAP = np.zeros((T, N, H)), 'inputs["gap"]'
REFUSED = [
    (None, TypeError, "inputs | mapping | a, gap | NoneType"),
    ({"a": None}, ValueError, "inputs | a, gap | 1 names | missing: gap"),
    ({"a": WHOLE, "gap": WHOLE, "b": 1}, ValueError, "inputs | 3 names | unknown: b"),
    ({"a": WHOLE, "gap": WHOLE[..., :2]}, ValueError, f"{GAP} | (6, 4, 9) | (6, 4, 1) | (4, 9) | (6, 4, 2)"),
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


SIZES = [
    (dict(input_size=3), "input_size | 0 | GivenInputs | no W | 3"),
    (dict(num_layers=2), "num_layers | 1 | GivenInputs | no W | 2"),
    (dict(bias="input"), "bias | both | recurrent | none | GivenInputs | no W | input"),
    (dict(mode="gru"), "input_size | 1 | 0 | input=False"),
    (dict(mode="lstm", input_mode="skip"), "input_size | hidden_size=4 | skip | 0"),
]


@pytest.mark.parametrize(("options", "text"), SIZES)
def test_sizes_that_do_not_fit_are_refused(options, text):
    with raises(ValueError, f"RNNDescriptor: {text}"):
        rnnkit.RNNDescriptor(**{"mode": GivenInputs, "input_size": 0, "hidden_size": 4} | options)


def test_features_beside_side_inputs_are_refused():
    net, _, inputs, _ = problem(kind=GivenInputs)
    with raises(ValueError, "forward: x | input_size=0 | (6, 4, 3)"):
        net.forward(np.zeros((T, N, 3)), inputs=inputs)


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


def test_sum_of_steps_has_the_shape_of_a_step():
    for shape in ((0, 0, 1), (0, 1, 1), (3, 0, 4), (1, 1, 1), (5, 1, 1), (5, 2, 3)):
        assert_same_bits("sum", sum_of_steps(np.full(shape, -0.0)), np.zeros(shape[1:]))
