"""What is taken for an array: ndarray and memmap; what means more than its memory is refused, in every argument."""

import numpy as np
import pytest
from messages import says
from problems import Problem
from tolerances import GRADIENTS, OUTPUTS, assert_same_results

import rnnkit

PROBLEM = Problem(mode="lstm", num_layers=2, dtype="float32")
FORWARD, BACKWARD = ("w", "x", "hx", "cx"), ("w", "dy", "dhy", "dcy", "dw")


class Quantity(np.ndarray):
    """As packages for physical units have it."""


SUBCLASSES = {
    "masked": lambda array: np.ma.masked_array(array, mask=array > 0),
    "recarray": lambda array: array.view(np.recarray),
    "a user's": lambda array: array.view(Quantity),
}


def type_name(kind):
    """As a message has it."""
    made = type(SUBCLASSES[kind](np.zeros(1)))
    return f"{made.__module__}.{made.__qualname__}"


def inputs(problem=PROBLEM):
    return dict(zip(FORWARD, problem.inputs, strict=True))


def run(arrays, **options):
    arrays = inputs() | arrays
    result = rnnkit.forward(PROBLEM.desc, **{name: arrays[name] for name in FORWARD}, **options)
    cotangents = dict(zip(BACKWARD, (arrays["w"], *PROBLEM.cotangents, np.zeros_like(PROBLEM.w)), strict=True))
    cotangents |= {name: arrays[name] for name in BACKWARD[1:] if name in arrays}
    return result, rnnkit.backward(PROBLEM.desc, workspace=result.workspace, **cotangents)


@pytest.mark.parametrize("kind", SUBCLASSES)
@pytest.mark.parametrize("name", dict.fromkeys(FORWARD + BACKWARD))
def test_a_subclass_is_refused(name, kind):
    given = inputs() | dict(zip(BACKWARD[1:], (*PROBLEM.cotangents, np.zeros_like(PROBLEM.w)), strict=True))
    function = "forward" if name in FORWARD else "backward"
    cure = f"{name}.filled(0)" if kind == "masked" else f"numpy.asarray({name})"
    with pytest.raises(TypeError, match=says(f"{function}: {name}", "numpy.ndarray", type_name(kind), cure)):
        run({name: SUBCLASSES[kind](given[name])})


@pytest.mark.parametrize("kind", SUBCLASSES)
def test_a_plan_refuses_it_too(kind):
    plan = rnnkit.prepare(PROBLEM.desc, PROBLEM.w)
    strange = SUBCLASSES[kind]
    with pytest.raises(TypeError, match=says("infer: x", "numpy.ndarray", type_name(kind))):
        plan.infer(strange(PROBLEM.x))
    with pytest.raises(TypeError, match=says("step: hx", "numpy.ndarray", type_name(kind))):
        plan.step(PROBLEM.x[0], strange(PROBLEM.hx), PROBLEM.cx)
    with pytest.raises(TypeError, match=says("step: x", "numpy.ndarray", "numpy.matrix")):
        plan.step(PROBLEM.x[0].view(np.matrix), PROBLEM.hx, PROBLEM.cx)
    with pytest.raises(TypeError, match=says("prepare: w", "numpy.ndarray", type_name(kind))):
        rnnkit.prepare(PROBLEM.desc, strange(PROBLEM.w))


@pytest.mark.parametrize("kind", SUBCLASSES)
def test_weights_of_a_subclass_are_refused(kind):
    strange, net = SUBCLASSES[kind], rnnkit.LSTM(3, 4, num_layers=2, seed=0)
    with pytest.raises(TypeError, match=says("weight_views: w", type_name(kind))):
        rnnkit.weight_views(PROBLEM.desc, strange(PROBLEM.w))
    with pytest.raises(TypeError, match=says("LSTM: weights", type_name(kind))):
        net.weights = strange(net.weights)
    named = dict(PROBLEM.views)
    named["bias_ih_l1"] = strange(named["bias_ih_l1"])
    with pytest.raises(TypeError, match=says('pack_weights: named["bias_ih_l1"]', type_name(kind))):
        rnnkit.pack_weights(PROBLEM.desc, named)


def test_masked_lengths_are_refused():
    with pytest.raises(TypeError, match=says("infer: lengths", "numpy.ma.MaskedArray", "lengths.filled(0)")):
        rnnkit.infer(PROBLEM.desc, *PROBLEM.inputs, lengths=np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]))


class Stubborn:
    """As a tensor that requires a gradient."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call detach first")


@pytest.mark.parametrize("lengths", [[[1], [1, 2], 3], [1, [2], 3], [1, Stubborn(), 3]])
def test_lengths_that_are_no_array_are_refused(lengths):
    with pytest.raises(TypeError, match=says("infer: lengths", "integers")):
        rnnkit.infer(PROBLEM.desc, *PROBLEM.inputs, lengths=lengths)


@pytest.mark.parametrize("mode", ["r", "c"])
def test_a_memmap_is_its_memory(tmp_path, mode):
    """Read-only ones too; dw is written through to the file."""
    given = inputs() | dict(zip(BACKWARD[1:4], PROBLEM.cotangents, strict=True))
    mapped = {}
    for name, array in given.items():
        array.tofile(tmp_path / name)
        mapped[name] = np.memmap(tmp_path / name, array.dtype, mode, shape=array.shape)
    np.zeros_like(PROBLEM.w).tofile(tmp_path / "dw")
    dw = np.memmap(tmp_path / "dw", PROBLEM.w.dtype, "r+", shape=PROBLEM.w.shape)
    expected, found = run({}), run(mapped | {"dw": dw})
    assert_same_results(found[0], expected[0], OUTPUTS)
    assert found[1].dw is dw
    assert_same_results(found[1]._replace(dw=np.fromfile(tmp_path / "dw", dw.dtype)), expected[1], GRADIENTS)
    for array in (*found[0][:3], *found[1][:3]):
        assert type(array) is np.ndarray
