"""Every wrong argument of every call is refused by name, with what it must be and what it was, and nothing changes."""

import itertools
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

SEQUENCES = "forward", "infer", "plan.infer"
ARRAYS = "w", "x", "hx", "cx", "dy", "dhy", "dcy", "dw"
TAKEN = {
    "forward": "desc w x hx cx lengths seed workspace",
    "infer": "desc w x hx cx lengths",
    "plan.infer": "x hx cx lengths",
    "plan.step": "x hx cx",
    "prepare": "desc w",
    "backward": "desc w workspace dy dhy dcy dw",
}


def arguments(function, problem):
    """Right arguments by name for every call."""
    found = {name: getattr(problem, name) for name in ("desc", *ARRAYS[:-1])}
    found |= {"lengths": problem.lengths_array, "seed": 1, "workspace": None, "dw": np.ones_like(problem.w)}
    return found | {"x": problem.x[0]} if function == "plan.step" else found


def call(function, problem, **wrong):
    """One call of the public interface with some of its arguments replaced."""
    given = arguments(function, problem) | wrong
    if function == "backward":
        given["workspace"] = given["workspace"] or problem.forward().workspace
    owner = rnnkit.prepare(problem.desc, problem.w) if "plan." in function else rnnkit
    method = getattr(owner, function.removeprefix("plan."))
    return method(**{name: given[name] for name in TAKEN[function].split()})


def assert_refused(error, text, function, problem=LSTM, **wrong):
    """The message has the form of all, and begins with the function's own name, whatever object it is called on."""
    name = function.removeprefix("plan.")
    with raises(error, f"{name}: {text}") as caught:
        call(function, problem, **wrong)
    assert re.match(r"\w+: \S+ must .+, got .+", str(caught.value))


def like(array, shape=None):
    return np.zeros(array.shape if shape is None else shape, array.dtype)


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


@pytest.mark.parametrize(("functions", "problem", "argument", "shapes", "expected"), SHAPES)
def test_wrong_shape_is_refused(functions, problem, argument, shapes, expected):
    for function, shape in itertools.product(functions, shapes):
        wrong = like(arguments(function, problem)[argument], shape)
        assert_refused(ValueError, f"{argument} | {expected} | {shape}", function, problem, **{argument: wrong})


class Quantity(np.ndarray):
    """As packages for physical units have it."""


EVERY_ARRAY = [(function, name) for function, names in TAKEN.items() for name in names.split() if name in ARRAYS]
# The array that says where the others must be may be of either library.
DECIDING = {("forward", "x"), ("infer", "x"), ("prepare", "w")}


@pytest.mark.parametrize(("function", "argument"), EVERY_ARRAY)
def test_wrong_dtype_and_what_is_no_array_are_refused(function, argument):
    problem = STEPPING if function == "plan.step" else LSTM
    right = arguments(function, problem)[argument]
    for dtype in ("float64", "int32", ">f4"):
        text = f'{argument} | float32 | {dtype} | {argument}.astype("float32")'
        assert_refused(TypeError, text, function, problem, **{argument: right.astype(dtype)})
    kinds = "numpy.ndarray | cupy.ndarray" if (function, argument) in DECIDING else "numpy.ndarray"
    wrong = {
        "list": [1.0],
        f"numpy.ma.MaskedArray | {argument}.filled(0)": np.ma.masked_array(right),
        f"{np.recarray.__module__}.recarray | numpy.asarray({argument})": right.view(np.recarray),
        f"{__name__}.Quantity | numpy.asarray({argument})": right.view(Quantity),
    }
    for got, value in (wrong | ({"NoneType": None} if argument in ("x", "w") else {})).items():
        assert_refused(TypeError, f"{argument} | {kinds} | {got}", function, problem, **{argument: value})


@pytest.mark.parametrize("mode", ["r", "c"])
def test_memmap_is_accepted(tmp_path, mode):
    """Read-only ones too; dw is written through to the file."""
    given = {name: getattr(LSTM, name) for name in ("w", "x", "hx", "cx", "dy", "dhy", "dcy")}
    mapped = {}
    for name, array in (given | {"dw": np.zeros_like(LSTM.w)}).items():
        array.tofile(tmp_path / name)
        mapped[name] = np.memmap(tmp_path / name, array.dtype, "r+" if name == "dw" else mode, shape=array.shape)
    result, expected = call("forward", LSTM, **mapped), LSTM.forward()
    gradients = call("backward", LSTM, **mapped | {"workspace": result.workspace})
    assert_same_results(result, expected, OUTPUTS)
    assert gradients.dw is mapped["dw"]
    written = gradients._replace(dw=np.fromfile(tmp_path / "dw", "f4"))
    assert_same_results(written, LSTM.backward(expected.workspace), GRADIENTS)
    for array in (*result[:3], *gradients[:3]):
        assert type(array) is np.ndarray


@pytest.mark.parametrize("function", [*SEQUENCES, "backward"])
def test_cell_state_is_refused_without_lstm(function):
    argument = "dcy" if function == "backward" else "cx"
    for value, got in ((like(LSTM.cx), "array | (4, 3, 8)"), ([0.0], "list")):
        text = f'{argument} | None | mode="gru" | {got} | mode="lstm"'
        assert_refused(ValueError, text, function, GRU, **{argument: value})


class Stubborn:
    """As a tensor that requires a gradient."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call detach first")


GAPS, READ_ONLY = np.ones((LSTM.w.size, 2), np.float32)[:, 0], np.ones_like(LSTM.w)
READ_ONLY.flags.writeable, MASKED = False, np.ma.array([4, 0, 2])
WITH_LENGTHS, IN_64_BITS = "forward infer plan.infer", f"seed | 0..{2**64 - 1}"
REFUSED = [
    ("forward infer prepare backward", dict(desc="lstm"), TypeError, "desc | RNNDescriptor | str"),
    ("forward backward", dict(workspace="space"), TypeError, "workspace | str"),
    ("forward infer prepare", dict(w=GAPS), ValueError, "w | C-contiguous | (8,) | w.copy()"),
    ("backward", dict(dw=GAPS), ValueError, "dw | C-contiguous | (8,) | dw.copy()"),
    ("backward", dict(dw=READ_ONLY), ValueError, "dw | writeable | read-only | array"),
    ("plan.step", {}, ValueError, "desc.bidirectional | False | True"),
    ("forward", dict(seed=1.5), TypeError, "seed | None | int | float"),
    ("forward", dict(seed="1"), TypeError, "seed | None | int | str"),
    ("forward", dict(seed=True), TypeError, "seed | None | int | bool"),
    ("forward", dict(seed=-1), ValueError, f"{IN_64_BITS} | -1"),
    ("forward", dict(seed=2**64), ValueError, f"{IN_64_BITS} | {2**64}"),
    ("forward", dict(seed=10**6000), ValueError, f"{IN_64_BITS} | int | 19932 bits"),
    (WITH_LENGTHS, dict(lengths=np.array([4, -1, 2])), ValueError, "lengths[1] | 0..seq_len=4 | -1"),
    (WITH_LENGTHS, dict(lengths=np.array([4, 0, 5])), ValueError, "lengths[2] | 0..seq_len=4 | 5"),
    (WITH_LENGTHS, dict(lengths=np.array([4.0, 0.0, 2.0])), TypeError, "lengths | integers | float64"),
    (WITH_LENGTHS, dict(lengths=np.array([True, False, True])), TypeError, "lengths | integers | bool"),
    (WITH_LENGTHS, dict(lengths="402"), TypeError, "lengths | None | integer array | host | str"),
    (WITH_LENGTHS, dict(lengths=4), TypeError, "lengths | None | integer array | host | int"),
    (WITH_LENGTHS, dict(lengths=MASKED), TypeError, "lengths | numpy.ma.MaskedArray | lengths.filled(0)"),
    (WITH_LENGTHS, dict(lengths=[[1], [1, 2], 3]), TypeError, "lengths | integers"),
    (WITH_LENGTHS, dict(lengths=[1, Stubborn(), 3]), TypeError, "lengths | integers"),
]


@pytest.mark.parametrize(("functions", "wrong", "error", "text"), REFUSED)
def test_wrong_value_is_refused(functions, wrong, error, text):
    for function in functions.split():
        assert_refused(error, text, function, **wrong)


@pytest.mark.parametrize("lengths", [[7, 0, 3], (7, 0, 3), *(np.array([7, 0, 3], d) for d in ("u1", "i8", "u8")), []])
def test_accepted_lengths_are_copied(lengths):
    found = checks.lengths("forward", lengths, 7, len(lengths))
    assert found.dtype == np.int64 and found.tolist() == list(lengths)
    assert not np.may_share_memory(found, np.asarray(lengths))


@pytest.mark.parametrize("seed", [np.int8(5), np.uint64(2**64 - 1), np.int64(7)])
def test_seed_of_numpy_draws_as_an_int(seed):
    desc = rnnkit.RNNDescriptor("gru", 3, 5, num_layers=2, dropout=0.5)
    w, x = rnnkit.init_weights(desc, seed=0), np.ones((4, 2, 3), np.float32)
    found, expected = (rnnkit.forward(desc, w, x, seed=one) for one in (seed, int(seed)))
    assert_same_bits("y", found.y, expected.y)
    assert type(found.workspace.seed) is int


@pytest.mark.parametrize("argument", ["dy", "dcy", "w"])
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
