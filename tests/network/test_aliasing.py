"""No memory is read and written by one call: what views a workspace or an input is refused, and nothing is changed."""

import numpy as np
import pytest
from messages import raises
from problems import Problem
from tolerances import OUTPUTS, assert_same_bits, assert_same_results

import rnnkit

INPUTS, COTANGENTS = ("w", "x", "hx", "cx"), ("dy", "dhy", "dcy")


@pytest.mark.parametrize("name", INPUTS)
def test_forward_refuses_an_input_that_views_its_workspace(name):
    problem = Problem(mode="lstm", input_size=4, num_layers=3, seq_len=40)
    result = problem.forward()
    states = result.workspace.cell(1) if name == "cx" else result.workspace.hidden(0)
    view = {"x": states, "w": states.reshape(-1)[: problem.w.size]}.get(name, states[1:4])
    arguments = dict(zip(INPUTS, problem.inputs, strict=True)) | {name: view}
    copied = arguments | {name: view.copy()}
    expected, before = rnnkit.infer(problem.desc, **copied), result.y.copy()
    with raises(ValueError, f"forward: {name} | workspace | copy"):
        rnnkit.forward(problem.desc, **arguments, workspace=result.workspace)
    assert_same_bits("y", result.y, before)
    problem.backward(result.workspace)
    assert_same_results(rnnkit.forward(problem.desc, **copied, workspace=result.workspace), expected, OUTPUTS)


@pytest.mark.parametrize("name", [*INPUTS, *COTANGENTS])
def test_backward_refuses_dw_that_overlaps_an_input(name):
    problem = Problem(mode="lstm", num_layers=2, seq_len=30)
    arrays = dict(zip((*INPUTS, *COTANGENTS), problem.inputs + problem.cotangents, strict=True))
    size = arrays[name].size
    buffer = np.empty(size + problem.w.size, problem.dtype)
    buffer[:size] = arrays[name].ravel()
    arrays[name] = buffer[:size].reshape(arrays[name].shape)
    workspace = rnnkit.forward(problem.desc, **{key: arrays[key] for key in INPUTS}).workspace
    cotangents, before = {key: arrays[key] for key in COTANGENTS}, buffer.copy()
    with raises(ValueError, f"backward: dw | memory | {name}"):  # one common element is enough
        rnnkit.backward(problem.desc, arrays["w"], workspace, **cotangents, dw=buffer[size - 1 : -1])
    assert_same_bits(name, buffer, before)
    buffer[size:] = 0
    rnnkit.backward(problem.desc, arrays["w"], workspace, **cotangents, dw=buffer[size:])
    assert_same_bits(name, buffer[:size], before[:size])


def test_backward_refuses_dw_in_the_workspace():
    problem = Problem(mode="rnn_tanh", num_layers=2, seq_len=40)
    result = problem.forward()
    memory = result.workspace.arrays["hidden_l1"].base  # bytes
    begin = -memory.ctypes.data % 8
    dw = memory[begin : begin + 8 * problem.w.size].view(problem.dtype)
    with raises(ValueError, "backward: dw | memory | workspace"):
        problem.backward(result.workspace, dw=dw)
