"""Every wrong argument of every call is refused by name, with what it must be and what it was, and nothing changes."""

import re

import numpy as np
import pytest
from messages import raises
from problems import Problem
from tolerances import GRADIENTS, OUTPUTS, assert_same_bits, assert_same_results

import rnnkit
from rnnkit.call import checks

LSTM = Problem("lstm", hidden_size=8, num_layers=2, bidirectional=True, dtype="float32", lengths=(4, 0, 2))
GRU = LSTM.twin(mode="gru")
PROJECTED = LSTM.twin(proj_size=5)
STEPPING = LSTM.twin(bidirectional=False)
DOUBLE = LSTM.twin(dtype="float64")

SEQUENCES = "forward", "infer", "plan.infer"


def arguments(function, problem):
    """Right arguments by name for every call."""
    found = {name: getattr(problem, name) for name in ("desc", "w", "x", "hx", "cx", "dy", "dhy", "dcy")}
    found |= {"lengths": problem.lengths_array, "seed": 1, "workspace": None, "dw": np.ones_like(problem.w)}
    return found | {"x": problem.x[0]} if function == "plan.step" else found


def call(function, problem, **wrong):
    """One call of the public interface with some of its arguments replaced."""
    a = {**arguments(function, problem), **wrong}
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


def assert_refused(error, text, function, problem=LSTM, **wrong):
    """The message has the form of all, and begins with the function's own name, whatever object it is called on."""
    name = function.removeprefix("plan.")
    with raises(error, f"{name}: {text}") as caught:
        call(function, problem, **wrong)
    assert re.match(r"\w+: \S+ must .+, got .+", str(caught.value))


def like(array, shape=None, dtype=None):
    return np.zeros(array.shape if shape is None else shape, dtype or array.dtype)


HIDDEN = "(num_layers*num_directions=4, batch_size=3, hidden_size=8)"
PROJECTION, STEP_HIDDEN = HIDDEN.replace("hidden_size=8", "proj_size=5"), HIDDEN.replace("=4", "=2")
SEQUENCE, STEP = "(seq_len, batch_size, input_size=3)", "(batch_size, input_size=3)"
Y, PROJECTED_Y = (f"(seq_len=4, batch_size=3, num_directions*{size})" for size in ("hidden_size=16", "proj_size=10"))
WEIGHTS = f"(num_weights={LSTM.w.size},)"
SHAPES = [
    (SEQUENCES, LSTM, "x", [(4, 3, 5), (4, 3), (1, 4, 3, 3), ()], SEQUENCE),
    (SEQUENCES, LSTM, "hx", [(4, 3, 7), (2, 3, 8), (4, 8)], HIDDEN),
    (SEQUENCES, LSTM, "cx", [(4, 1, 8)], HIDDEN),
    (SEQUENCES, GRU, "hx", [(4, 3, 9)], HIDDEN),
    (SEQUENCES, PROJECTED, "hx", [(4, 3, 8)], PROJECTION),
    (SEQUENCES, PROJECTED, "cx", [(4, 3, 5)], HIDDEN),
    (SEQUENCES, LSTM, "lengths", [(2,), (3, 1)], "(batch_size=3,)"),
    (["backward"], LSTM, "dy", [(4, 3, 8), (5, 3, 16)], Y),
    (["backward"], PROJECTED, "dy", [(4, 3, 16)], PROJECTED_Y),
    (["backward"], LSTM, "dhy", [(4, 2, 8)], HIDDEN),
    (["backward"], PROJECTED, "dhy", [(4, 3, 8)], PROJECTION),
    (["backward"], LSTM, "dcy", [(4, 3, 9)], HIDDEN),
    (["backward"], LSTM, "dw", [(7,)], WEIGHTS),
    (["plan.step"], STEPPING, "x", [(3, 5), (1, 3, 3)], STEP),
    (["plan.step"], STEPPING, "hx", [(2, 3, 7)], STEP_HIDDEN),
    (["plan.step"], STEPPING, "cx", [(2, 2, 8)], STEP_HIDDEN),
    (["forward", "infer", "backward", "prepare"], LSTM, "w", [(LSTM.w.size - 1,), (2, LSTM.w.size)], WEIGHTS),
]
SHAPE_CASES = [
    (function, problem, argument, shape, expected)
    for functions, problem, argument, shapes, expected in SHAPES
    for function in functions
    for shape in shapes
]


@pytest.mark.parametrize(("function", "problem", "argument", "shape", "expected"), SHAPE_CASES)
def test_wrong_shape_is_refused(function, problem, argument, shape, expected):
    wrong = like(arguments(function, problem)[argument], shape)
    assert_refused(ValueError, f"{argument} | {expected} | {shape}", function, problem, **{argument: wrong})


ARRAYS = {
    "forward": "w x hx cx",
    "infer": "w x hx cx",
    "plan.infer": "x hx cx",
    "plan.step": "x hx cx",
    "prepare": "w",
    "backward": "w dy dhy dcy dw",
}
EVERY_ARRAY = [(function, argument) for function, names in ARRAYS.items() for argument in names.split()]
# The array that says where the others must be may be of either library.
DECIDING = {("forward", "x"), ("infer", "x"), ("prepare", "w")}
NO_ARRAYS = [(*place, [1.0]) for place in EVERY_ARRAY]
NO_ARRAYS += [(*place, None) for place in (("forward", "x"), ("infer", "w"), ("plan.infer", "x"), ("prepare", "w"))]


def called_on(function):
    return STEPPING if function == "plan.step" else LSTM


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "complex64", ">f4"])
@pytest.mark.parametrize(("function", "argument"), EVERY_ARRAY)
def test_wrong_dtype_is_refused(function, argument, dtype):
    problem = called_on(function)
    wrong = like(arguments(function, problem)[argument], dtype=dtype)
    text = f'{argument} | float32 | {wrong.dtype} | {argument}.astype("float32")'
    assert_refused(TypeError, text, function, problem, **{argument: wrong})


def test_float32_is_refused_by_a_float64_descriptor():
    assert_refused(TypeError, 'x | float64 | float32 | x.astype("float64")', "forward", DOUBLE, x=LSTM.x)


@pytest.mark.parametrize(("function", "argument", "value"), NO_ARRAYS)
def test_value_that_is_no_array_is_refused(function, argument, value):
    kinds = "numpy.ndarray | cupy.ndarray" if (function, argument) in DECIDING else "numpy.ndarray"
    text = f"{argument} | {kinds} | {type(value).__name__}"
    assert_refused(TypeError, text, function, called_on(function), **{argument: value})


@pytest.mark.parametrize("function", ["forward", "infer", "prepare", "backward"])
def test_desc_that_is_no_descriptor_is_refused(function):
    assert_refused(TypeError, "desc | RNNDescriptor | str", function, desc="lstm")


@pytest.mark.parametrize("problem", [GRU, GRU.twin(mode="rnn_tanh")], ids=["gru", "rnn_tanh"])
@pytest.mark.parametrize("function", [*SEQUENCES, "backward"])
def test_cell_state_is_refused_without_lstm(function, problem):
    argument = "dcy" if function == "backward" else "cx"
    for value, got in ((like(LSTM.cx), "array | (4, 3, 8)"), ([0.0], "list")):
        text = f'{argument} | None | mode="{problem.mode}" | {got} | mode="lstm"'
        assert_refused(ValueError, text, function, problem, **{argument: value})


LENGTHS_REFUSED = [
    (np.array([4, -1, 2]), ValueError, "lengths[1] | 0..seq_len=4 | -1"),
    (np.array([4, 0, 5]), ValueError, "lengths[2] | 0..seq_len=4 | 5"),
    (np.array([4.0, 0.0, 2.0]), TypeError, "lengths | integers | float64"),
    (np.array([True, False, True]), TypeError, "lengths | integers | bool"),
    ("402", TypeError, "lengths | None | integer array | host | str"),
    (4, TypeError, "lengths | None | integer array | host | int"),
]


@pytest.mark.parametrize("function", SEQUENCES)
@pytest.mark.parametrize(("lengths", "error", "text"), LENGTHS_REFUSED)
def test_wrong_lengths_are_refused(function, lengths, error, text):
    assert_refused(error, text, function, lengths=lengths)


@pytest.mark.parametrize("lengths", [[4, 0, 2], (4, 0, 2), *(np.array([4, 0, 2], d) for d in ("i1", "u2", "i4", "u8"))])
def test_lengths_of_any_integer_kind_are_accepted(lengths):
    assert_same_results(call("forward", LSTM, lengths=lengths), call("forward", LSTM), OUTPUTS)


@pytest.mark.parametrize("lengths", [[7, 0, 3], np.array([7, 0, 3], np.uint8), np.array([7, 0, 3]), []])
def test_accepted_lengths_are_copied(lengths):
    found = checks.lengths("forward", lengths, 7, len(lengths))
    assert found.dtype == np.int64 and found.tolist() == list(lengths)
    assert not np.may_share_memory(found, np.asarray(lengths))


@pytest.mark.parametrize("shape", [(0, 2, 3), (7, 0, 3)])
def test_empty_batches_are_accepted(shape):
    checks.inputs("forward", np.zeros(shape, np.float32), checks.SEQUENCE_DIMS, LSTM.desc)


def test_largest_seed_is_accepted():
    checks.seed("forward", np.uint64(2**64 - 1))


SEEDS_REFUSED = [
    (1.5, TypeError, "None | int | float"),
    ("1", TypeError, "None | int | str"),
    (True, TypeError, "None | int | bool"),
    (-1, ValueError, f"0..{2**64 - 1} | -1"),
    (2**64, ValueError, f"0..{2**64 - 1} | {2**64}"),
    pytest.param(10**6000, ValueError, f"0..{2**64 - 1} | int | 19932 bits", id="huge"),
]


@pytest.mark.parametrize(("seed", "error", "text"), SEEDS_REFUSED)
def test_wrong_seed_is_refused(seed, error, text):
    assert_refused(error, f"seed | {text}", "forward", seed=seed)


def test_step_is_refused_with_two_directions():
    with raises(ValueError, "step: desc.bidirectional | False | True"):
        call("plan.step", LSTM)


@pytest.mark.parametrize("function", ["forward", "backward"])
def test_value_that_is_no_workspace_is_refused(function):
    assert_refused(TypeError, "workspace | str", function, workspace="space")


@pytest.mark.parametrize("function", ["forward", "infer", "prepare", "backward"])
def test_buffer_with_gaps_is_refused(function):
    argument = "dw" if function == "backward" else "w"
    wrong = np.ones((LSTM.w.size, 2), np.float32)[:, 0]
    assert_refused(ValueError, f"{argument} | C-contiguous | (8,) | {argument}.copy()", function, **{argument: wrong})


def test_read_only_dw_is_refused():
    dw = np.ones_like(LSTM.w)
    dw.flags.writeable = False
    assert_refused(ValueError, "dw | writeable | read-only | array", "backward", dw=dw)
    assert (dw == 1).all()


@pytest.mark.parametrize("argument", ["dy", "dhy", "dcy", "w"])
def test_refused_backward_changes_nothing(argument):
    workspace, dw = LSTM.forward().workspace, np.ones_like(LSTM.w)
    before, wrong = LSTM.backward(workspace), getattr(LSTM, argument)[1:]
    text = f"{argument} | {wrong.shape}"
    assert_refused(ValueError, text, "backward", workspace=workspace, dw=dw, **{argument: wrong})
    assert_same_bits("dw", dw, np.ones_like(LSTM.w))
    assert_same_results(LSTM.backward(workspace), before, GRADIENTS)


@pytest.mark.parametrize("wrong", [{"hx": LSTM.hx[1:]}, {"lengths": np.array([4, 0, 5])}, {"x": LSTM.x[..., 1:]}])
def test_refused_forward_leaves_the_workspace_alone(wrong):
    workspace = LSTM.forward().workspace
    before = LSTM.backward(workspace)
    (argument,) = wrong
    assert_refused(ValueError, argument, "forward", workspace=workspace, **wrong)
    assert_same_results(LSTM.backward(workspace), before, GRADIENTS)
