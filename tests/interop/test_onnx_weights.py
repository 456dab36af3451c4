"""Arrays and attributes of ONNX's operators: against the equations of its documentation, there and back, refused."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from combinations import nightly, pairs
from messages import says
from reference import pseudo_layer, run_sequence
from refused import refusals
from tolerances import assert_close, assert_same_bits

import rnnkit
from rnnkit.interop.onnx import from_onnx, stack_onnx, to_onnx

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
KINDS = {
    "rnn": ("RNN", {}),
    "relu": ("RNN", {"activations": ["Relu"]}),
    "gru": ("GRU", {}),
    "gru-linear": ("GRU", {"linear_before_reset": 1}),
    "lstm": ("LSTM", {}),
}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
T, N, INPUT, H = 5, 4, 3, 2
LENGTHS = [5, 0, 2, 4]


def operator(op_type, attributes, X, W, R, B, lengths, h, c):
    """Y, Y_h and Y_c with layout 0: the equations of ONNX's documentation are the reference's, in another order."""
    order = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}[op_type]  # where r z n, and i f g o, are in ONNX's
    rows = np.concatenate([np.arange(H) + gate * H for gate in order])
    mode = {"RNN": "rnn_relu" if attributes.get("activations") else "rnn_tanh"}.get(op_type, op_type.lower())
    options = dict(mode=mode, hidden_size=H, cell_clip=None, reset_after=attributes.get("linear_before_reset") == 1)
    Y, Y_h, Y_c = np.zeros((len(X), len(W), X.shape[1], H)), h.astype(float), c.astype(float)
    for d in range(len(W)):
        Wb, Rb = np.split(B[d], 2)
        blocks = dict(weight_ih_l0=W[d], weight_hh_l0=R[d], bias_ih_l0=Wb, bias_hh_l0=Rb)
        layer = pseudo_layer({name: block[rows] for name, block in blocks.items()}, 0, 0)
        reverse = d == 1 or attributes["direction"] == "reverse"
        for n, length in enumerate(lengths):
            Y[:length, d, n], _, Y_h[d, n], Y_c[d, n], _ = run_sequence(
                layer, X[:length, n].astype(float), Y_h[d, n], Y_c[d, n], reverse=reverse, **options
            )
    return Y, Y_h, Y_c if op_type == "LSTM" else None


def drawn(op_type, directions=1, dtype="float32", seed=0):
    """X and the arrays of an operator."""
    rng, rows = np.random.default_rng(seed), GATES[op_type] * H
    shapes = dict(X=(T, N, INPUT), W=(directions, rows, INPUT), R=(directions, rows, H), B=(directions, 2 * rows))
    shapes |= dict(h=(directions, N, H), c=(directions, N, H))
    return {name: rng.uniform(-1, 1, shape).astype(dtype) for name, shape in shapes.items()}


def given(kind, direction="forward", **changed):
    """Arguments of from_onnx."""
    op_type, attributes = KINDS[kind]
    arrays = drawn(op_type, DIRECTIONS[direction])
    attributes = {name: v * DIRECTIONS[direction] if isinstance(v, list) else v for name, v in attributes.items()}
    found = {"op_type": op_type, "W": arrays["W"], "R": arrays["R"], "B": arrays["B"], "direction": direction}
    return found | attributes | changed


@pytest.mark.parametrize(("kind", "direction", "dtype"), pairs(KINDS, DIRECTIONS, ["float64", nightly("float32")]))
def test_operator_gives_what_the_documentation_says(kind, direction, dtype):
    op_type, attributes = KINDS[kind][0], {k: v for k, v in given(kind, direction).items() if k[0].islower()}
    del attributes["op_type"]
    X, W, R, B, h, c = drawn(op_type, DIRECTIONS[direction], dtype).values()
    expected = operator(op_type, attributes, X, W, R, B, LENGTHS, h, c)
    X[np.arange(T)[:, None] >= LENGTHS] = np.nan  # padding
    states = {"hx": h} | ({"cx": c} if op_type == "LSTM" else {})
    found = from_onnx(op_type, W, R, B, hidden_size=H, **attributes).infer(X, **states, lengths=LENGTHS)
    for name, one, other in zip(("y", "hy", "cy"), found, expected, strict=True):
        assert_close(name, one, other, dtype)

    own = {"initial_h": h.swapaxes(0, 1), "sequence_lens": np.array(LENGTHS, np.int32)}
    own |= {"initial_c": c.swapaxes(0, 1)} if op_type == "LSTM" else {}
    batch_major = from_onnx(op_type, W, R, B, layout=1, **own, **attributes).infer(X.swapaxes(0, 1))
    assert_same_bits("Y", batch_major.y, found.y.transpose(2, 0, 1, 3))
    assert_same_bits("Y_h", batch_major.hy, found.hy.swapaxes(0, 1))
    assert_same_bits("Y_c", batch_major.cy, None if found.cy is None else found.cy.swapaxes(0, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_omitted_inputs_are_zeros_and_whole_sequences(kind):
    arguments = given(kind, "reverse") | {"B": None}
    X, _, _, B, h, c = drawn(arguments["op_type"]).values()
    node = from_onnx(**arguments)
    assert node.net.desc.bias == "none"
    arrays = X, arguments["W"], arguments["R"], B * 0
    expected = operator(arguments["op_type"], arguments, *arrays, [T] * N, h * 0, c * 0)
    for name, one, other in zip(("y", "hy", "cy"), node.infer(X), expected, strict=True):
        assert_close(name, one, other, "float32")


def test_given_states_replace_those_of_the_operator():
    own = np.full((1, N, H), 7, np.float32)
    node = from_onnx(**given("gru"), initial_h=own, sequence_lens=[0] * N)
    x = np.ones((T, N, INPUT), np.float32)
    assert_same_bits("hy", node.infer(x).hy, own)
    assert_same_bits("hy", node.infer(x, hx=-own).hy, -own)
    assert_same_bits("hy", node.infer(x, hx=own, lengths=[T] * N).hy, node.net.infer(x, own).hy)


NETS = {
    "gru": dict(),
    "deep": dict(num_layers=3),
    "both-ways": dict(bidirectional=True),
    "deep-both-ways": dict(num_layers=2, bidirectional=True),
    "float64": dict(dtype="float64", num_layers=2),
    "no-bias": dict(bias="none", num_layers=2),
}
SIZES = dict(input_size=INPUT, hidden_size=H, seed=1)
CLASSES = {
    "rnn": partial(rnnkit.RNN, **SIZES),
    "relu": partial(rnnkit.RNN, **SIZES, nonlinearity="relu"),
    "lstm": partial(rnnkit.LSTM, **SIZES),
    "gru": partial(rnnkit.GRU, **SIZES),
    "gru-before": partial(rnnkit.GRU, **SIZES, reset_after=False),
}
# Their kernels are not among those of the default part (`problems.FLOAT32`).
BY_DEFAULT = [nightly(kind) if kind in ("relu", "gru-before") else kind for kind in CLASSES]


@pytest.mark.parametrize("options", NETS)
@pytest.mark.parametrize("kind", CLASSES)
def test_round_trip_gives_the_same_bits(kind, options):
    net = CLASSES[kind](**NETS[options])
    back = stack_onnx([from_onnx(**layer) for layer in to_onnx(net)])
    assert back.desc == net.desc
    assert_same_bits("weights", back.weights, net.weights)
    back.weights[:] = 0
    assert net.weights.any()


@pytest.mark.parametrize("options", [{"bias": "input"}, {"bias": "recurrent"}, {"input_mode": "skip"}])
@pytest.mark.parametrize("kind", BY_DEFAULT)
def test_single_biases_and_skipped_inputs_give_the_same_results(kind, options):
    net = CLASSES[kind](input_size=H, bidirectional=True, **options)
    x = np.random.default_rng(3).uniform(-1, 1, (T, N, H)).astype(np.float32)
    node = from_onnx(**to_onnx(net)[0])
    assert_close("y", node.infer(x).y, net.infer(x).y.reshape(T, N, 2, H).swapaxes(1, 2), "float32")


def test_arrays_are_copied_and_may_be_lists():
    arguments = given("lstm")
    node = from_onnx(**arguments)
    before = node.net.weights.copy()
    arguments["W"][:] = 0
    assert_same_bits("weights", node.net.weights, before)
    lists = given("gru", W=np.ones((1, 6, 3)).tolist(), R=np.ones((1, 6, 2)).tolist(), B=None)
    assert from_onnx(**lists).net.desc.dtype == "float64"


def test_activations_are_found_in_any_case():
    assert from_onnx(**given("rnn", activations=["reLU"])).net.desc.mode == "rnn_relu"
    both = given("lstm", "bidirectional", activations=["sigmoid", "tanh", "Tanh"] * 2)
    assert from_onnx(**both).net.desc.mode == "lstm"
    assert from_onnx(**given("rnn", activations=[])).net.desc.mode == "rnn_tanh"


def test_peepholes_of_zeros_are_none():
    plain, zeros = from_onnx(**given("lstm")), from_onnx(**given("lstm"), P=np.zeros((1, 3 * H), np.float32))
    assert_same_bits("weights", zeros.net.weights, plain.net.weights)


def ones(*shape):
    return np.ones(shape, np.float32)


W_SHAPE, R_SHAPE = (f"(num_directions=1, 4*hidden_size=8, {last})" for last in ("input_size=3", "hidden_size=2"))
H_SHAPE, C_SHAPE = "(num_directions=1, batch_size, hidden_size=2)", "(batch_size, num_directions=1, hidden_size=2)"
GATE, BOTH = dict(activations=["Sigmoid"]), dict(direction="bidirectional")
FROM_ONNX = [
    ("lstm", dict(op_type="MUT"), "op_type | RNN | GRU | LSTM | MUT"),
    ("lstm", dict(direction="both"), "direction | forward | reverse | bidirectional | both"),
    ("lstm", dict(layout=2), "layout | 0 | 1 | 2"),
    ("gru", dict(linear_before_reset=2), "linear_before_reset | 0 | 1 | 2"),
    ("lstm", dict(linear_before_reset=1), "linear_before_reset | 0 | 1"),
    ("gru", dict(input_forget=1), "input_forget | 0 | 1"),
    ("lstm", dict(clip=3.0), "clip | None | 3.0 | cell_clip"),
    ("lstm", dict(activation_alpha=[0.1]), "activation_alpha | () | (0.1,) | Sigmoid | Tanh | none"),
    ("lstm", dict(activation_beta=[0.1]), "activation_beta | () | (0.1,) | Sigmoid | Tanh | none"),
    ("gru", GATE, "activations | ['Sigmoid', 'Tanh'] | op_type='GRU' | ['Sigmoid']"),
    ("rnn", GATE, "activations | ['Relu'] | ['Tanh'] | op_type='RNN' | ['Sigmoid']"),
    ("lstm", dict(P=ones(1, 5) * 0), "P | (num_directions=1, 3*hidden_size=6) | (1, 5)"),
    ("gru", dict(P=ones(1, 6) * 0), "P | None | op_type='GRU' | (1, 6)"),
    ("gru", dict(initial_c=ones(1, 1, H) * 0), "initial_c | None | op_type='GRU' | (1, 1, 2)"),
    ("lstm", dict(W=ones(8, 3)), "W | (num_directions, gates*hidden_size, input_size) | (8, 3)"),
    ("lstm", dict(W=ones(1, 6, 3)), f"W | {W_SHAPE} | (1, 6, 3)"),
    ("lstm", dict(hidden_size=3), "W | (num_directions=1, 4*hidden_size=12, input_size=3) | (1, 8, 3)"),
    ("lstm", BOTH, "W | (num_directions=2, 4*hidden_size=8, input_size=3) | (1, 8, 3)"),
    ("lstm", dict(R=ones(2)), "R | (num_directions, gates*hidden_size, hidden_size) | (2,)"),
    ("lstm", dict(R=ones(1, 6, 2)), f"R | {R_SHAPE} | (1, 6, 2)"),
    ("lstm", dict(B=ones(1, 8)), "B | (num_directions=1, 2*4*hidden_size=16) | (1, 8)"),
    ("lstm", dict(initial_h=ones(1, 1, 3)), f"initial_h | {H_SHAPE} | (1, 1, 3)"),
    ("lstm", dict(initial_c=ones(1, 5, 2), layout=1), f"initial_c | {C_SHAPE} | (1, 5, 2)"),
    ("lstm", dict(W=np.ones((1, 8, 3), np.float16)), "TypeError W | float32 | float64 | float16"),
    ("lstm", dict(B=np.ones((1, 16))), "TypeError B | float32 | W | float64"),
    ("lstm", dict(activations="Tanh"), "TypeError activations | list | str"),
]
STATES = "(num_directions=1, batch_size=4, hidden_size=2)", "(batch_size=4, num_directions=1, hidden_size=2)"
INFER = [  # by layout
    (0, dict(x=ones(T, N, 2)), "x | (seq_length, batch_size, input_size=3) | (5, 4, 2)"),
    (1, dict(x=ones(N, T, 2)), "x | (batch_size, seq_length, input_size=3) | (4, 5, 2)"),
    (0, dict(x=np.ones((T, N, INPUT))), 'TypeError x | float32 | float64 | x.astype("float32")'),
    (0, dict(hx=ones(N, 1, H)), f"hx | {STATES[0]} | (4, 1, 2)"),
    (1, dict(hx=ones(1, N, H)), f"hx | {STATES[1]} | (1, 4, 2)"),
    (1, dict(cx=ones(N, 1, 1)), f"cx | {STATES[1]} | (4, 1, 1)"),
    (0, dict(lengths=[1, 2, 3]), "lengths | (batch_size=4,) | (3,)"),
    (1, dict(lengths=[1, 2, 3, 6]), "lengths[3] | 0..seq_len=5 | 6"),
]
TO_ONNX = [
    (lambda: to_onnx(rnnkit.LSTM(3, 4, proj_size=2)), "net.desc.proj_size | None | 2 | ONNX"),
    (lambda: to_onnx(rnnkit.LSTM(3, 4, cell_clip=(-1, 1))), "net.desc.cell_clip | None | (-1.0, 1.0) | ONNX"),
    (lambda: to_onnx(rnnkit.GRU(3, 4, bidirectional=True), reverse=True), "reverse | False | True"),
]


def infer(layout, changed):
    node = from_onnx(**given("lstm", "reverse"), layout=layout)
    return node.infer(**{"x": ones(N, T, INPUT) if layout else ones(T, N, INPUT)} | changed)


@refusals(
    from_onnx=[(partial(from_onnx, **given(kind) | more), text) for kind, more, text in FROM_ONNX],
    infer=[(partial(infer, layout, changed), text) for layout, changed, text in INFER],
    to_onnx=TO_ONNX,
)
def test_unfit_operators_inputs_and_networks_are_refused(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()


def assert_refused(pattern, call, *args, kind=ValueError, **kwargs):
    with pytest.raises(kind, match=pattern):
        call(*args, **kwargs)


def test_computed_states_must_be_given():
    node = from_onnx(**given("gru"))._replace(computed=("hx", "lengths"))
    x, h = ones(T, N, INPUT), np.zeros((1, N, H), np.float32)
    assert_refused(says("infer: hx", "model", None), node.infer, x, lengths=[T] * N)
    assert_refused(says("infer: lengths", "model", None), node.infer, x, h)
    assert_same_bits("y", node.infer(x, h, lengths=[T] * N).y, node._replace(computed=()).infer(x).y)


def test_unfit_layers_of_a_stack_are_refused_by_number():
    nodes = [from_onnx(**layer) for layer in to_onnx(rnnkit.LSTM(3, 4, num_layers=2, seed=0))]
    other = from_onnx(**to_onnx(rnnkit.LSTM(5, 4))[0])
    expected = says("stack_onnx: nodes[1].net.desc", "RNNDescriptor('lstm', 4, 4)", "RNNDescriptor('lstm', 5, 4)")
    assert_refused(expected, stack_onnx, [nodes[0], other])
    expected = says("stack_onnx: nodes[1].reverse", False, True)
    assert_refused(expected, stack_onnx, [nodes[0], nodes[1]._replace(reverse=True)])
    own = nodes[0]._replace(hx=ones(1, 1, 4), cx=ones(1, 1, 4) * 0, lengths=[3])
    assert_refused(says("stack_onnx: nodes[0]", "hx", "lengths"), stack_onnx, [own, nodes[1]])
    stack_onnx([nodes[0]._replace(hx=ones(1, 1, 4) * 0), nodes[1]])
    assert_refused(says("stack_onnx: nodes", "OnnxNode", "none"), stack_onnx, [])
    for wrong in (nodes[0], [nodes[0].net]):
        expected = says("stack_onnx: nodes", "list", "OnnxNode", wrong.__class__.__name__)
        assert_refused(expected, stack_onnx, wrong, kind=TypeError)


def test_arrays_are_converted_without_onnx():
    code = "import sys, rnnkit.interop.onnx; print('onnx' in sys.modules, 'numba' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["False", "False"]


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_prepared_node_has_the_same_results_and_steps(kind, layout):
    """With constant states, in either layout."""
    states = {"initial_h": 1} | ({"initial_c": 2} if kind == "lstm" else {})
    own = {name: np.full((N, 1, H) if layout else (1, N, H), value, np.float32) for name, value in states.items()}
    node = from_onnx(**given(kind), layout=layout, **own)
    steps = drawn("LSTM")["X"]
    x = steps.swapaxes(0, 1) if layout else steps
    expected, prepared = node.infer(x), node.prepare()
    for one, other in zip(prepared.infer(x), expected, strict=True):
        assert (one is None) == (other is None) and (one is None or np.array_equal(one, other))
    after = ()
    for t in range(T):
        y, *after = prepared.step(steps[t], *after)
        np.testing.assert_array_equal(y, expected.y[:, t, 0] if layout else expected.y[t, 0])
    np.testing.assert_array_equal(after[0], expected.hy)
    plain = node.prepare(precision="int8")._replace(hx=None, cx=None)
    stream, whole = plain.stream(N), plain.infer(x).y
    for t in range(T):
        np.testing.assert_array_equal(stream.step(steps[t]), whole[:, t, 0] if layout else whole[t, 0])


def test_steps_that_a_node_does_not_have_are_refused():
    node, own = from_onnx(**given("lstm")), np.ones((1, N, H), np.float32)
    x = drawn("LSTM")["X"][0]
    for function, call in (("step", lambda node: node.step(x)), ("stream", lambda node: node.stream(2))):
        with pytest.raises(ValueError, match=says(f"{function}: node.plan", "node.prepare()")):
            call(node)
        with pytest.raises(ValueError, match=says(f"{function}: direction", "forward", "infer")):
            call(from_onnx(**given("lstm", "reverse")).prepare())
    with pytest.raises(ValueError, match=says("stream: hx", "zeros", "step", "hx=None")):
        node._replace(hx=own).prepare().stream(2)
    with pytest.raises(ValueError, match=says("step: cx", "computes", "None")):
        node._replace(computed=("cx",)).prepare().step(x)
