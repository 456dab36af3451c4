"""What is taken for an array: ndarray and memmap; what means more than its memory is refused, in every argument."""

import numpy as np
import pytest
from messages import raises
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


GIVEN = dict(zip(FORWARD, PROBLEM.inputs, strict=True))
GIVEN |= dict(zip(BACKWARD[1:], (*PROBLEM.cotangents, np.zeros_like(PROBLEM.w)), strict=True))


def run(arrays):
    """The results of forward and backward, with some of the arguments replaced."""
    arrays = GIVEN | {"dw": np.zeros_like(PROBLEM.w)} | arrays
    result = rnnkit.forward(PROBLEM.desc, **{name: arrays[name] for name in FORWARD})
    gradients = {name: arrays[name] for name in BACKWARD}
    return result, rnnkit.backward(PROBLEM.desc, workspace=result.workspace, **gradients)


@pytest.mark.parametrize("kind", SUBCLASSES)
@pytest.mark.parametrize("name", GIVEN)
def test_subclass_is_refused(name, kind):
    function = "forward" if name in FORWARD else "backward"
    cure = f"{name}.filled(0)" if kind == "masked" else f"numpy.asarray({name})"
    with raises(TypeError, f"{function}: {name} | numpy.ndarray | {type_name(kind)} | {cure}"):
        run({name: SUBCLASSES[kind](GIVEN[name])})


@pytest.mark.parametrize("kind", SUBCLASSES)
def test_plan_refuses_a_subclass(kind):
    plan, strange = rnnkit.prepare(PROBLEM.desc, PROBLEM.w), SUBCLASSES[kind]
    facts = f"numpy.ndarray | {type_name(kind)}"
    with raises(TypeError, f"infer: x | {facts}"):
        plan.infer(strange(PROBLEM.x))
    with raises(TypeError, f"step: hx | {facts}"):
        plan.step(PROBLEM.x[0], strange(PROBLEM.hx), PROBLEM.cx)
    with raises(TypeError, "step: x | numpy.ndarray | numpy.matrix"):
        plan.step(PROBLEM.x[0].view(np.matrix), PROBLEM.hx, PROBLEM.cx)
    with raises(TypeError, f"prepare: w | {facts}"):
        rnnkit.prepare(PROBLEM.desc, strange(PROBLEM.w))


@pytest.mark.parametrize("kind", SUBCLASSES)
def test_weights_of_a_subclass_are_refused(kind):
    strange, net = SUBCLASSES[kind], rnnkit.LSTM(3, 4, num_layers=2, seed=0)
    with raises(TypeError, f"weight_views: w | {type_name(kind)}"):
        rnnkit.weight_views(PROBLEM.desc, strange(PROBLEM.w))
    with raises(TypeError, f"LSTM: weights | {type_name(kind)}"):
        net.weights = strange(net.weights)
    named = PROBLEM.views | {"bias_ih_l1": strange(PROBLEM.views["bias_ih_l1"])}
    with raises(TypeError, f'pack_weights: named["bias_ih_l1"] | {type_name(kind)}'):
        rnnkit.pack_weights(PROBLEM.desc, named)


def test_masked_lengths_are_refused():
    with raises(TypeError, "infer: lengths | numpy.ma.MaskedArray | lengths.filled(0)"):
        rnnkit.infer(PROBLEM.desc, *PROBLEM.inputs, lengths=np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]))


class Stubborn:
    """As a tensor that requires a gradient."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call detach first")


@pytest.mark.parametrize("lengths", [[[1], [1, 2], 3], [1, [2], 3], [1, Stubborn(), 3]])
def test_lengths_that_are_no_array_are_refused(lengths):
    with raises(TypeError, "infer: lengths | integers"):
        rnnkit.infer(PROBLEM.desc, *PROBLEM.inputs, lengths=lengths)


@pytest.mark.parametrize("mode", ["r", "c"])
def test_memmap_is_accepted(tmp_path, mode):
    """Read-only ones too; dw is written through to the file."""
    mapped = {}
    for name, array in GIVEN.items():
        array.tofile(tmp_path / name)
        mapped[name] = np.memmap(tmp_path / name, array.dtype, "r+" if name == "dw" else mode, shape=array.shape)
    expected, found = run({}), run(mapped)
    assert_same_results(found[0], expected[0], OUTPUTS)
    assert found[1].dw is mapped["dw"]
    written = np.fromfile(tmp_path / "dw", PROBLEM.w.dtype)
    assert_same_results(found[1]._replace(dw=written), expected[1], GRADIENTS)
    for array in (*found[0][:3], *found[1][:3]):
        assert type(array) is np.ndarray
