"""Arrays and attributes of ONNX's operators: against the equations of its documentation, there and back, refused."""

import subprocess
import sys

import numpy as np
import pytest
from combinations import nightly, pairs
from messages import says
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


def logistic(a):
    return 1 / (1 + np.exp(-a))


def step(op_type, attributes, x, h, c, W, R, Wb, Rb):
    """Ht and Ct by the equations of ONNX's documentation, for one row."""
    if op_type == "RNN":
        a = x @ W.T + h @ R.T + Wb + Rb
        return np.maximum(a, 0) if attributes.get("activations") else np.tanh(a), c
    if op_type == "GRU":
        (Wz, Wr, Wh), (Rz, Rr, Rh) = np.split(W, 3), np.split(R, 3)
        (Wbz, Wbr, Wbh), (Rbz, Rbr, Rbh) = np.split(Wb, 3), np.split(Rb, 3)
        z = logistic(x @ Wz.T + h @ Rz.T + Wbz + Rbz)
        r = logistic(x @ Wr.T + h @ Rr.T + Wbr + Rbr)
        if attributes.get("linear_before_reset"):
            new = np.tanh(x @ Wh.T + r * (h @ Rh.T + Rbh) + Wbh)
        else:
            new = np.tanh(x @ Wh.T + (r * h) @ Rh.T + Rbh + Wbh)
        return (1 - z) * new + z * h, c
    i, o, f, cell = np.split(x @ W.T + h @ R.T + Wb + Rb, 4)
    c = logistic(f) * c + logistic(i) * np.tanh(cell)
    return logistic(o) * np.tanh(c), c


def operator(op_type, attributes, X, W, R, B, lengths, h, c):
    """Y, Y_h and Y_c with layout 0, one row and step after the other, in float64."""
    directions = len(W)
    Y, Y_h, Y_c = np.zeros((len(X), directions, X.shape[1], R.shape[2])), h.astype(float), c.astype(float)
    for d in range(directions):
        backwards = d == 1 or attributes.get("direction") == "reverse"
        for n, length in enumerate(lengths):
            for t in reversed(range(length)) if backwards else range(length):
                biases = np.split(B[d].astype(float), 2)
                x = X[t, n].astype(float)
                Y_h[d, n], Y_c[d, n] = step(op_type, attributes, x, Y_h[d, n], Y_c[d, n], W[d], R[d], *biases)
                Y[t, d, n] = Y_h[d, n]
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
def test_an_operator_gives_what_the_documentation_says(kind, direction, dtype):
    op_type, attributes = KINDS[kind]
    attributes = {k: v * DIRECTIONS[direction] if isinstance(v, list) else v for k, v in attributes.items()}
    attributes["direction"] = direction
    arrays = drawn(op_type, DIRECTIONS[direction], dtype)
    X, W, R, B, h, c = arrays.values()
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
def test_what_is_left_out_is_zeros_and_whole_sequences(kind):
    arguments = given(kind, "reverse") | {"B": None}
    X, _, _, B, h, c = drawn(arguments["op_type"]).values()
    node = from_onnx(**arguments)
    assert node.net.desc.bias == "none"
    expected = operator(
        arguments["op_type"], arguments, X, arguments["W"], arguments["R"], B * 0, [T] * N, h * 0, c * 0
    )
    for name, one, other in zip(("y", "hy", "cy"), node.infer(X), expected, strict=True):
        assert_close(name, one, other, "float32")


def test_what_is_given_goes_before_the_operators_own():
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
CLASSES = {
    "rnn": lambda **options: rnnkit.RNN(INPUT, H, seed=1, **options),
    "relu": lambda **options: rnnkit.RNN(INPUT, H, seed=1, nonlinearity="relu", **options),
    "lstm": lambda **options: rnnkit.LSTM(INPUT, H, seed=1, **options),
    "gru": lambda **options: rnnkit.GRU(INPUT, H, seed=1, **options),
    "gru-before": lambda **options: rnnkit.GRU(INPUT, H, seed=1, reset_after=False, **options),
}
# Their kernels are not among those of the default part (`problems.FLOAT32`).
BY_DEFAULT = [nightly(kind) if kind in ("relu", "gru-before") else kind for kind in CLASSES]


@pytest.mark.parametrize("options", NETS)
@pytest.mark.parametrize("kind", CLASSES)
def test_there_and_back_gives_the_same_bits(kind, options):
    net = CLASSES[kind](**NETS[options])
    back = stack_onnx([from_onnx(**layer) for layer in to_onnx(net)])
    assert back.desc == net.desc
    assert_same_bits("weights", back.weights, net.weights)
    back.weights[:] = 0
    assert net.weights.any()


@pytest.mark.parametrize("kind", ["rnn", "lstm"])
def test_reverse_there_and_back(kind):
    net = CLASSES[kind]()
    (layer,) = to_onnx(net, reverse=True)
    assert layer["direction"] == "reverse"
    node = from_onnx(**layer)
    assert node.reverse
    assert_same_bits("weights", node.net.weights, net.weights)
    assert to_onnx(node.net, reverse=node.reverse)[0].keys() == layer.keys()


@pytest.mark.parametrize("options", [{"bias": "input"}, {"bias": "recurrent"}, {"input_mode": "skip"}])
@pytest.mark.parametrize("kind", BY_DEFAULT)
def test_what_onnx_writes_otherwise_gives_the_same_results(kind, options):
    net = {"rnn": rnnkit.RNN, "relu": rnnkit.RNN, "lstm": rnnkit.LSTM}.get(kind, rnnkit.GRU)
    more = {"relu": {"nonlinearity": "relu"}, "gru-before": {"reset_after": False}}.get(kind, {})
    net = net(H, H, bidirectional=True, seed=2, **more, **options)
    x = np.random.default_rng(3).uniform(-1, 1, (T, N, H)).astype(np.float32)
    (layer,) = to_onnx(net)
    node = from_onnx(**layer)
    assert_close("y", node.infer(x).y, net.infer(x).y.reshape(T, N, 2, H).swapaxes(1, 2), "float32")


def test_arrays_are_copied_and_may_be_lists():
    arguments = given("lstm")
    node = from_onnx(**arguments)
    before = node.net.weights.copy()
    arguments["W"][:] = 0
    assert_same_bits("weights", node.net.weights, before)
    lists = given("gru", W=np.ones((1, 6, 3)).tolist(), R=np.ones((1, 6, 2)).tolist(), B=None)
    assert from_onnx(**lists).net.desc.dtype == "float64"


def test_the_case_of_activations_does_not_matter():
    found = from_onnx(**given("rnn", activations=["reLU"]))
    assert found.net.desc.mode == "rnn_relu"
    found = from_onnx(**given("lstm", "bidirectional", activations=["sigmoid", "tanh", "Tanh"] * 2))
    assert found.net.desc.mode == "lstm"
    assert from_onnx(**given("rnn", activations=[])).net.desc.mode == "rnn_tanh"


def test_peepholes_of_zeros_are_none():
    plain, zeros = from_onnx(**given("lstm")), from_onnx(**given("lstm"), P=np.zeros((1, 3 * H), np.float32))
    assert_same_bits("weights", zeros.net.weights, plain.net.weights)


def assert_refused(pattern, call, *args, kind=ValueError, **kwargs):
    with pytest.raises(kind, match=pattern):
        call(*args, **kwargs)


ONE = np.ones((1, 3 * H), np.float32)
REFUSED = [
    ("lstm", dict(op_type="MUT"), "op_type", ["RNN", "GRU", "LSTM", "MUT"]),
    ("lstm", dict(direction="both"), "direction", ["forward", "reverse", "bidirectional", "both"]),
    ("lstm", dict(layout=2), "layout", [0, 1, 2]),
    ("gru", dict(linear_before_reset=2), "linear_before_reset", [0, 1, 2]),
    ("lstm", dict(linear_before_reset=1), "linear_before_reset", [0, 1]),
    ("gru", dict(input_forget=1), "input_forget", [0, 1]),
    ("lstm", dict(clip=3.0), "clip", [None, 3.0, "cell_clip"]),
    ("lstm", dict(activation_alpha=[0.1]), "activation_alpha", [(), (0.1,), "Sigmoid", "Tanh", "none"]),
    ("lstm", dict(activation_beta=[0.1]), "activation_beta", [(), (0.1,), "Sigmoid", "Tanh", "none"]),
    ("gru", dict(activations=["Sigmoid"]), "activations", ["['Sigmoid', 'Tanh']", "op_type='GRU'", "['Sigmoid']"]),
    ("rnn", dict(activations=["Sigmoid"]), "activations", ["['Relu']", "['Tanh']", "op_type='RNN'", "['Sigmoid']"]),
    ("lstm", dict(P=ONE[:, 1:] * 0), "P", ["(num_directions=1, 3*hidden_size=6)", (1, 5)]),
    ("gru", dict(P=ONE * 0), "P", [None, "op_type='GRU'", (1, 6)]),
    ("gru", dict(initial_c=np.zeros((1, 1, H), np.float32)), "initial_c", [None, "op_type='GRU'", (1, 1, 2)]),
    ("lstm", dict(W=np.ones((8, 3), np.float32)), "W", ["(num_directions, gates*hidden_size, input_size)", (8, 3)]),
    ("lstm", dict(W=np.ones((1, 6, 3), np.float32)),
     "W", ["(num_directions=1, 4*hidden_size=8, input_size=3)", (1, 6, 3)]),
    ("lstm", dict(hidden_size=3), "W", ["(num_directions=1, 4*hidden_size=12, input_size=3)", (1, 8, 3)]),
    ("lstm", dict(direction="bidirectional"), "W", ["(num_directions=2, 4*hidden_size=8, input_size=3)", (1, 8, 3)]),
    ("lstm", dict(R=np.ones((2,), np.float32)), "R", ["(num_directions, gates*hidden_size, hidden_size)", (2,)]),
    ("lstm", dict(R=np.ones((1, 6, 2), np.float32)),
     "R", ["(num_directions=1, 4*hidden_size=8, hidden_size=2)", (1, 6, 2)]),
    ("lstm", dict(B=np.ones((1, 8), np.float32)), "B", ["(num_directions=1, 2*4*hidden_size=16)", (1, 8)]),
    ("lstm", dict(initial_h=np.ones((1, 1, 3), np.float32)),
     "initial_h", ["(num_directions=1, batch_size, hidden_size=2)", (1, 1, 3)]),
    ("lstm", dict(initial_c=np.ones((1, 5, 2), np.float32), layout=1),
     "initial_c", ["(batch_size, num_directions=1, hidden_size=2)", (1, 5, 2)]),
]


@pytest.mark.parametrize(("kind", "changed", "argument", "facts"), REFUSED, ids=[row[2] for row in REFUSED])
def test_what_is_no_operator_of_ours_is_refused_by_name(kind, changed, argument, facts):
    assert_refused(says(f"from_onnx: {argument}", *facts), from_onnx, **given(kind) | changed)


def test_other_dtypes_are_refused_by_name():
    half, arguments = np.ones((1, 8, 3), np.float16), given("lstm")
    expected = says("from_onnx: W", "float32", "float64", "float16")
    assert_refused(expected, from_onnx, **arguments | {"W": half}, kind=TypeError)
    mixed = arguments | {"B": arguments["B"].astype(float)}
    assert_refused(says("from_onnx: B", "float32", "W", "float64"), from_onnx, **mixed, kind=TypeError)
    expected = says("from_onnx: activations", "list", "str")
    assert_refused(expected, from_onnx, **arguments, activations="Tanh", kind=TypeError)


RUNS = [
    (0, dict(x=np.ones((T, N, 2), np.float32)), "x", ["(seq_length, batch_size, input_size=3)", (5, 4, 2)]),
    (1, dict(x=np.ones((N, T, 2), np.float32)), "x", ["(batch_size, seq_length, input_size=3)", (4, 5, 2)]),
    (0, dict(hx=np.ones((N, 1, H), np.float32)), "hx", ["(num_directions=1, batch_size=4, hidden_size=2)", (4, 1, 2)]),
    (1, dict(hx=np.ones((1, N, H), np.float32)), "hx", ["(batch_size=4, num_directions=1, hidden_size=2)", (1, 4, 2)]),
    (1, dict(cx=np.ones((N, 1, 1), np.float32)), "cx", ["(batch_size=4, num_directions=1, hidden_size=2)", (4, 1, 1)]),
    (0, dict(lengths=[1, 2, 3]), "lengths", ["(batch_size=4,)", (3,)]),
    (1, dict(lengths=[1, 2, 3, 6]), "lengths[3]", ["0..seq_len=5", 6]),
]


@pytest.mark.parametrize(("layout", "changed", "argument", "facts"), RUNS, ids=[row[2] for row in RUNS])
def test_a_run_names_sizes_in_the_order_of_the_layout(layout, changed, argument, facts):
    node = from_onnx(**given("lstm", "reverse"), layout=layout)
    x = np.ones((N, T, INPUT) if layout else (T, N, INPUT), np.float32)
    assert_refused(says(f"infer: {argument}", *facts), node.infer, **{"x": x} | changed)


def test_a_run_in_another_dtype_is_refused():
    expected = says("infer: x", "float32", "float64", 'x.astype("float32")')
    assert_refused(expected, from_onnx(**given("lstm")).infer, np.ones((T, N, INPUT)), kind=TypeError)


def test_what_the_model_computes_must_be_given():
    node = from_onnx(**given("gru"))._replace(computed=("hx", "lengths"))
    x, h = np.ones((T, N, INPUT), np.float32), np.zeros((1, N, H), np.float32)
    assert_refused(says("infer: hx", "model", None), node.infer, x, lengths=[T] * N)
    assert_refused(says("infer: lengths", "model", None), node.infer, x, h)
    assert_same_bits("y", node.infer(x, h, lengths=[T] * N).y, node._replace(computed=()).infer(x).y)


TO_ONNX = [
    (lambda: rnnkit.LSTM(3, 4, proj_size=2), {}, "net.desc.proj_size", [None, 2, "ONNX"]),
    (lambda: rnnkit.LSTM(3, 4, cell_clip=(-1, 1)), {}, "net.desc.cell_clip", [None, (-1.0, 1.0), "ONNX"]),
    (lambda: rnnkit.GRU(3, 4, bidirectional=True), {"reverse": True}, "reverse", [False, True]),
]


@pytest.mark.parametrize(("make", "options", "argument", "facts"), TO_ONNX, ids=["proj", "clip", "reverse"])
def test_what_onnx_lacks_is_refused_with_the_reason(make, options, argument, facts):
    assert_refused(says(f"to_onnx: {argument}", *facts), to_onnx, make(), **options)


def test_layers_that_do_not_fit_are_refused_by_number():
    nodes = [from_onnx(**layer) for layer in to_onnx(rnnkit.LSTM(3, 4, num_layers=2, seed=0))]
    other = from_onnx(**to_onnx(rnnkit.LSTM(5, 4))[0])
    expected = says("stack_onnx: nodes[1].net.desc", "RNNDescriptor('lstm', 4, 4)", "RNNDescriptor('lstm', 5, 4)")
    assert_refused(expected, stack_onnx, [nodes[0], other])
    expected = says("stack_onnx: nodes[1].reverse", False, True)
    assert_refused(expected, stack_onnx, [nodes[0], nodes[1]._replace(reverse=True)])
    own = nodes[0]._replace(hx=np.ones((1, 1, 4), np.float32), cx=np.zeros((1, 1, 4), np.float32), lengths=[3])
    assert_refused(says("stack_onnx: nodes[0]", "hx", "lengths"), stack_onnx, [own, nodes[1]])
    stack_onnx([nodes[0]._replace(hx=np.zeros((1, 1, 4), np.float32)), nodes[1]])
    assert_refused(says("stack_onnx: nodes", "OnnxNode", "none"), stack_onnx, [])
    for wrong in (nodes[0], [nodes[0].net]):
        expected = says("stack_onnx: nodes", "list", "OnnxNode", wrong.__class__.__name__)
        assert_refused(expected, stack_onnx, wrong, kind=TypeError)


def test_arrays_are_converted_without_onnx():
    code = "import sys, rnnkit.interop.onnx; print('onnx' in sys.modules, 'numba' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["False", "False"]
