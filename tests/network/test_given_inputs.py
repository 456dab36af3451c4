"""Cells whose gates have no W: input_size is 0, and all that they read are side inputs. The LSTM is the reference."""

import numpy as np
import pytest
from gradcheck import assert_gradients
from messages import raises
from own_cells import GivenInputs
from tolerances import (
    GRADIENTS,
    OUTPUTS,
    assert_gradient_close,
    assert_outputs_close,
    assert_same_bits,
    assert_same_results,
)

import rnnkit
from rnnkit.call.side_inputs import with_inputs
from rnnkit.cells import AUGRU

T, N, H = 7, 5, 17
LENGTHS = 7, 0, 3, 1, 7
NAMES = "xi", "xf", "xg", "xo"


class Given:
    """A network, its products of x, and an LSTM that has the identity as W."""

    def __init__(self, bidirectional=False, dtype="float64"):
        options = dict(bidirectional=bidirectional, dtype=dtype, seed=0)
        self.net, self.lstm = rnnkit.Network(GivenInputs, 0, H, **options), rnnkit.LSTM(4 * H, H, **options)
        for name, block in self.lstm.views.items():
            block[...] = self.net.views[name] if "hh" in name else np.eye(*block.shape) if block.ndim == 2 else 0
        rng = np.random.default_rng(0)
        self.wide = rng.normal(size=(T, N, 4 * H)).astype(dtype)
        self.x = np.empty((T, N, 0), dtype)
        self.inputs = dict(zip(NAMES, np.split(self.wide.copy(), 4, 2), strict=True))
        self.dy = rng.normal(size=(T, N, (1 + bidirectional) * H)).astype(dtype)

    def run(self, **options):
        found = self.net.forward(self.x, inputs=self.inputs, **options)
        return found, self.net.backward(found.workspace, self.dy)


@pytest.mark.parametrize(
    "options", [{}, {"lengths": LENGTHS}, {"mask": np.arange(T * N).reshape(T, N) % 3 > 0}], ids=str
)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_are_those_of_an_lstm_with_the_products_as_inputs(dtype, bidirectional, options):
    given = Given(bidirectional, dtype)
    (found, gradients), expected = given.run(**options), given.lstm.forward(given.wide, **options)
    wanted = given.lstm.backward(expected.workspace, given.dy)
    assert_outputs_close(found, expected, dtype)
    assert_gradient_close("dx", np.concatenate([gradients.inputs[name] for name in NAMES], 2), wanted.dx, dtype)
    for name in ("dhx", "dcx"):
        assert_gradient_close(name, getattr(gradients, name), getattr(wanted, name), dtype)
    views = rnnkit.weight_views(given.net.desc, gradients.dw)
    assert set(views) == {name for name in given.lstm.views if "hh" in name} and gradients.dx.shape == (T, N, 0)
    for name, block in views.items():
        assert_gradient_close(name, block, rnnkit.weight_views(given.lstm.desc, wanted.dw)[name], dtype)


def test_gradients_equal_central_differences():
    given = Given()

    def run(blocks):
        given.net.weights[:] = blocks["w"]
        return given.net.forward(given.x, blocks["hx"], inputs={name: blocks[name] for name in NAMES}, lengths=LENGTHS)

    def gradients(blocks):
        found = given.net.backward(run(blocks).workspace, given.dy)
        return {"w": found.dw, "hx": found.dhx, **found.inputs}

    blocks = {"w": given.net.weights.copy(), "hx": np.ones((1, N, H)), **given.inputs}
    assert_gradients(lambda blocks: float((run(blocks).y * given.dy).sum()), gradients, blocks, seed=1)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_call_has_the_same_bits(dtype, bidirectional, tmp_path):
    given = Given(bidirectional, dtype)
    (found, gradients), plan = given.run(), given.net.prepare()
    for result in (given.net.infer(given.x, inputs=given.inputs), plan.infer(given.x, inputs=given.inputs)):
        assert_same_results(result, found, OUTPUTS)
    kept, again = given.run(checkpoint_steps=2)
    assert_same_results(kept, found, OUTPUTS)
    assert_same_results(again, gradients, GRADIENTS)
    given.net.save(tmp_path / "net")
    loaded = rnnkit.load(tmp_path / "net", cell=GivenInputs)
    assert loaded.desc == given.net.desc and loaded.desc.input_size == 0
    assert_same_results(loaded.infer(given.x, inputs=given.inputs), found, OUTPUTS)
    if not bidirectional:
        hx = cx = None
        stream = plan.stream(N)
        for t in range(T):
            inputs = {name: one[t] for name, one in given.inputs.items()}
            y, hx, cx = plan.step(given.x[t], hx, cx, inputs=inputs)
            assert_same_bits("y", y, found.y[t])
            assert_same_bits("y", stream.step(given.x[t], inputs=inputs), found.y[t])


def test_quantized_weights_change_results_little():
    given = Given(dtype="float32")
    expected = given.net.infer(given.x, inputs=given.inputs).y
    for precision in ("int8", "bfloat16"):
        found = given.net.prepare(precision=precision).infer(given.x, inputs=given.inputs).y
        assert 0 < np.abs(found - expected).max() < 0.03


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


REFUSED = [
    (dict(input_size=3), "input_size | 0 | GivenInputs | no W | 3"),
    (dict(num_layers=2), "num_layers | 1 | GivenInputs | no W | 2"),
    (dict(bias="input"), "bias | both | recurrent | none | GivenInputs | no W | input"),
    (dict(mode="gru"), "input_size | 1 | 0 | input=False"),
    (dict(mode="lstm", input_mode="skip"), "input_size | hidden_size=4 | skip | 0"),
]


@pytest.mark.parametrize(("options", "text"), REFUSED)
def test_sizes_that_do_not_fit_are_refused(options, text):
    with raises(ValueError, f"RNNDescriptor: {text}"):
        rnnkit.RNNDescriptor(**{"mode": GivenInputs, "input_size": 0, "hidden_size": 4} | options)


def test_features_beside_side_inputs_are_refused():
    given = Given()
    with raises(ValueError, "forward: x | input_size=0 | (7, 5, 3)"):
        given.net.forward(np.zeros((T, N, 3)), inputs=given.inputs)
