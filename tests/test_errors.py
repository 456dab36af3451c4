"""Every wrong argument of every call is refused by name, with what it must be and what it was, and nothing changes."""

import numpy as np
import pytest
from messages import says
from problems import Problem
from tolerances import GRADIENTS, OUTPUTS, assert_same_bits, assert_same_results

import rnnkit

LSTM = Problem(
    mode="lstm", input_size=3, hidden_size=8, num_layers=2, bidirectional=True, dtype="float32", lengths=(4, 0, 2)
)
GRU = LSTM.twin(mode="gru")
PROJECTED = LSTM.twin(proj_size=5)
STEPPING = LSTM.twin(bidirectional=False)

ROWS = "num_layers*num_directions=4, batch_size=3"
SHAPES = "forward infer plan.infer".split()


def arguments(problem):
    """Right arguments by name for every call."""
    found = {name: getattr(problem, name) for name in ("desc", "w", "x", "hx", "cx", "dy", "dhy", "dcy")}
    return {**found, "lengths": problem.lengths_array, "seed": 1, "workspace": None, "dw": np.ones_like(problem.w)}


def call(function, problem, **wrong):
    """One call of the public interface with some of its arguments replaced."""
    a = {**arguments(problem), **wrong}
    states, options = (a["x"], a["hx"], a["cx"]), {"lengths": a["lengths"]}
    if function == "forward":
        return rnnkit.forward(a["desc"], a["w"], *states, **options, seed=a["seed"], workspace=a["workspace"])
    if function == "backward":
        workspace = a["workspace"] or problem.forward().workspace
        return rnnkit.backward(a["desc"], a["w"], workspace, a["dy"], a["dhy"], a["dcy"], dw=a["dw"])
    if function == "infer":
        return rnnkit.infer(a["desc"], a["w"], *states, **options)
    if function == "prepare":
        return rnnkit.prepare(a["desc"], a["w"])
    plan = rnnkit.prepare(problem.desc, problem.w)
    return plan.infer(*states, **options) if function == "plan.infer" else plan.step(*states)


def assert_refused(error, argument, facts, function, problem, **wrong):
    """The message begins with the function's own name, whatever object it is called on."""
    name = function.removeprefix("plan.")
    with pytest.raises(error, match=says(f"{name}: {argument}", *facts)):
        call(function, problem, **wrong)


def like(array, shape=None, dtype=None):
    return np.zeros(array.shape if shape is None else shape, dtype or array.dtype)


def shape_cases():
    """(function, problem, argument, wrong shape, right shape as a message has it)."""
    sequence = "(seq_len, batch_size, input_size=3)"
    for function in SHAPES:
        yield function, LSTM, "x", (4, 3, 5), sequence
        yield function, LSTM, "x", (4, 3), sequence
        yield function, LSTM, "x", (1, 4, 3, 3), sequence
        yield function, LSTM, "hx", (4, 3, 7), f"({ROWS}, hidden_size=8)"
        yield function, LSTM, "hx", (2, 3, 8), f"({ROWS}, hidden_size=8)"
        yield function, LSTM, "hx", (4, 8), f"({ROWS}, hidden_size=8)"
        yield function, LSTM, "cx", (4, 1, 8), f"({ROWS}, hidden_size=8)"
        yield function, GRU, "hx", (4, 3, 9), f"({ROWS}, hidden_size=8)"
        yield function, PROJECTED, "hx", (4, 3, 8), f"({ROWS}, proj_size=5)"
        yield function, PROJECTED, "cx", (4, 3, 5), f"({ROWS}, hidden_size=8)"
        yield function, LSTM, "lengths", (2,), "(batch_size=3,)"
        yield function, LSTM, "lengths", (3, 1), "(batch_size=3,)"
    yield "backward", LSTM, "dy", (4, 3, 8), "(seq_len=4, batch_size=3, num_directions*hidden_size=16)"
    yield "backward", LSTM, "dy", (5, 3, 16), "(seq_len=4, batch_size=3, num_directions*hidden_size=16)"
    yield "backward", PROJECTED, "dy", (4, 3, 16), "(seq_len=4, batch_size=3, num_directions*proj_size=10)"
    yield "backward", LSTM, "dhy", (4, 2, 8), f"({ROWS}, hidden_size=8)"
    yield "backward", PROJECTED, "dhy", (4, 3, 8), f"({ROWS}, proj_size=5)"
    yield "backward", LSTM, "dcy", (4, 3, 9), f"({ROWS}, hidden_size=8)"
    yield "backward", LSTM, "dw", (7,), f"(num_weights={LSTM.w.size},)"
    yield "plan.step", STEPPING, "x", (3, 5), "(batch_size, input_size=3)"
    yield "plan.step", STEPPING, "x", (1, 3, 3), "(batch_size, input_size=3)"
    for function in ("forward", "infer", "backward", "prepare"):
        yield function, LSTM, "w", (LSTM.w.size - 1,), f"(num_weights={LSTM.w.size},)"
        yield function, LSTM, "w", (2, LSTM.w.size), f"(num_weights={LSTM.w.size},)"


@pytest.mark.parametrize(("function", "problem", "argument", "shape", "expected"), list(shape_cases()))
def test_a_wrong_shape(function, problem, argument, shape, expected):
    wrong = like(arguments(problem)[argument], shape)
    assert_refused(ValueError, argument, [expected, shape], function, problem, **{argument: wrong})


@pytest.mark.parametrize(("argument", "shape"), [("hx", (2, 3, 7)), ("cx", (2, 2, 8))])
def test_a_wrong_state_of_a_step(argument, shape):
    x = STEPPING.x[0]
    facts = ["(num_layers*num_directions=2, batch_size=3, hidden_size=8)", shape]
    assert_refused(ValueError, argument, facts, "plan.step", STEPPING, x=x, **{argument: like(x, shape)})


ARRAYS = {
    "forward": ("w", "x", "hx", "cx"),
    "infer": ("w", "x", "hx", "cx"),
    "plan.infer": ("x", "hx", "cx"),
    "prepare": ("w",),
    "backward": ("w", "dy", "dhy", "dcy", "dw"),
}
EVERY_ARRAY = [(function, argument) for function, names in ARRAYS.items() for argument in names]


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "complex64", ">f4"])
@pytest.mark.parametrize(("function", "argument"), EVERY_ARRAY)
def test_a_wrong_dtype(function, argument, dtype):
    wrong = like(arguments(LSTM)[argument], dtype=dtype)
    facts = ["float32", wrong.dtype, f'{argument}.astype("float32")']
    assert_refused(TypeError, argument, facts, function, LSTM, **{argument: wrong})


# The array that says where the others must be may be of either library.
DECIDING = {("forward", "x"), ("infer", "x"), ("prepare", "w")}


def kinds(function, argument):
    return ["numpy.ndarray", "cupy.ndarray"] if (function, argument) in DECIDING else ["numpy.ndarray"]


@pytest.mark.parametrize(("function", "argument"), EVERY_ARRAY)
def test_no_array_at_all(function, argument):
    assert_refused(TypeError, argument, [*kinds(function, argument), "list"], function, LSTM, **{argument: [1.0]})


@pytest.mark.parametrize(
    ("function", "argument"), [("forward", "x"), ("infer", "w"), ("plan.infer", "x"), ("prepare", "w")]
)
def test_an_absent_array(function, argument):
    assert_refused(TypeError, argument, [*kinds(function, argument), "NoneType"], function, LSTM, **{argument: None})


@pytest.mark.parametrize("argument", ["x", "hx", "cx"])
def test_a_step_of_the_wrong_dtype(argument):
    right = {"x": STEPPING.x[0], "hx": STEPPING.hx, "cx": STEPPING.cx}
    wrong = {**right, argument: right[argument].astype("float64")}
    assert_refused(TypeError, argument, ["float32", "float64"], "plan.step", STEPPING, **wrong)


@pytest.mark.parametrize("function", ["forward", "infer", "prepare", "backward"])
def test_no_descriptor(function):
    assert_refused(TypeError, "desc", ["RNNDescriptor", "str"], function, LSTM, desc="lstm")


@pytest.mark.parametrize("function", SHAPES)
@pytest.mark.parametrize("problem", [GRU, GRU.twin(mode="rnn_tanh")], ids=["gru", "rnn_tanh"])
def test_a_cell_where_there_is_none(function, problem):
    cx = np.zeros(problem.cell_shape, np.float32)
    facts = [None, f'mode="{problem.mode}"', (4, 3, 8), 'mode="lstm"']
    assert_refused(ValueError, "cx", facts, function, problem, cx=cx)


def test_a_cell_gradient_where_there_is_none():
    dcy = np.zeros(GRU.cell_shape, np.float32)
    assert_refused(ValueError, "dcy", [None, 'mode="gru"', (4, 3, 8)], "backward", GRU, dcy=dcy)


@pytest.mark.parametrize("function", SHAPES)
@pytest.mark.parametrize(
    ("lengths", "error", "argument", "facts"),
    [
        (np.array([4, -1, 2]), ValueError, "lengths[1]", ["0..seq_len=4", -1]),
        (np.array([4, 0, 5]), ValueError, "lengths[2]", ["0..seq_len=4", 5]),
        (np.array([4.0, 0.0, 2.0]), TypeError, "lengths", ["integers", "float64"]),
        (np.array([True, False, True]), TypeError, "lengths", ["integers", "bool"]),
        ("402", TypeError, "lengths", [None, "integer array", "host", "str"]),
        (4, TypeError, "lengths", [None, "integer array", "host", "int"]),
    ],
)
def test_wrong_lengths(function, lengths, error, argument, facts):
    assert_refused(error, argument, facts, function, LSTM, lengths=lengths)


@pytest.mark.parametrize("lengths", [[4, 0, 2], (4, 0, 2), *(np.array([4, 0, 2], d) for d in ("i1", "u2", "i4", "u8"))])
def test_right_lengths_of_any_integer_kind(lengths):
    assert_same_results(call("forward", LSTM, lengths=lengths), call("forward", LSTM), OUTPUTS)


@pytest.mark.parametrize(
    ("seed", "error", "facts"),
    [
        (1.5, TypeError, [None, "int", "float"]),
        ("1", TypeError, [None, "int", "str"]),
        (True, TypeError, [None, "int", "bool"]),
        (-1, ValueError, [f"0..{2**64 - 1}", -1]),
        (2**64, ValueError, [f"0..{2**64 - 1}", 2**64]),
        pytest.param(10**6000, ValueError, [f"0..{2**64 - 1}", "int", "19932 bits"], id="huge"),
    ],
)
def test_a_wrong_seed(seed, error, facts):
    assert_refused(error, "seed", facts, "forward", LSTM, seed=seed)


def test_a_step_in_two_directions():
    with pytest.raises(ValueError, match=says("step: desc.bidirectional", False, True)):
        call("plan.step", LSTM, x=LSTM.x[0])


@pytest.mark.parametrize("function", ["forward", "backward"])
def test_no_workspace(function):
    assert_refused(TypeError, "workspace", ["str"], function, LSTM, workspace="space")


@pytest.mark.parametrize(
    ("function", "argument"), [("forward", "w"), ("infer", "w"), ("prepare", "w"), ("backward", "dw")]
)
def test_a_buffer_with_gaps(function, argument):
    wrong = np.ones((LSTM.w.size, 2), np.float32)[:, 0]
    assert_refused(ValueError, argument, ["C-contiguous", (8,)], function, LSTM, **{argument: wrong})


def test_a_weight_gradient_in_the_weights():
    """Adding the gradient into w itself would be a step of the wrong sign."""
    workspace = LSTM.forward().workspace
    w = LSTM.w.copy()
    with pytest.raises(ValueError, match=says("backward: dw", "memory", "w")):
        rnnkit.backward(LSTM.desc, w, workspace, dw=w)
    assert_same_bits("w", w, LSTM.w)


def test_a_read_only_weight_gradient():
    dw = np.ones_like(LSTM.w)
    dw.flags.writeable = False
    assert_refused(ValueError, "dw", ["writeable", "read-only"], "backward", LSTM, dw=dw)
    assert (dw == 1).all()


@pytest.mark.parametrize(
    "wrong", [{"dy": LSTM.dy[1:]}, {"dhy": LSTM.dcy[1:]}, {"dcy": LSTM.dcy[1:]}, {"w": LSTM.w[1:]}]
)
def test_a_refused_backward_changes_nothing(wrong):
    workspace = LSTM.forward().workspace
    before = LSTM.backward(workspace)
    dw = np.ones_like(LSTM.w)
    ((argument, array),) = wrong.items()
    assert_refused(ValueError, argument, [array.shape], "backward", LSTM, workspace=workspace, dw=dw, **wrong)
    assert_same_bits("dw", dw, np.ones_like(LSTM.w))
    assert_same_results(LSTM.backward(workspace), before, GRADIENTS)


@pytest.mark.parametrize("wrong", [{"hx": LSTM.hx[1:]}, {"lengths": np.array([4, 0, 5])}, {"x": LSTM.x[..., 1:]}])
def test_a_refused_forward_leaves_the_workspace_alone(wrong):
    workspace = LSTM.forward().workspace
    before = LSTM.backward(workspace)
    (argument,) = wrong
    assert_refused(ValueError, argument, [], "forward", LSTM, workspace=workspace, **wrong)
    assert_same_results(LSTM.backward(workspace), before, GRADIENTS)
