"""No memory is read and written by one call: what views a workspace or an input is refused, and nothing is changed."""

import numpy as np
import pytest
from messages import says
from problems import CELLS, Problem
from tolerances import OUTPUTS, assert_same_bits, assert_same_results

import rnnkit


def views_of(workspace, problem):
    """By name, an input of the next forward that views the workspace."""
    count, batch_size = problem.hidden_shape[:2]
    found = {"x": workspace.hidden(0), "hx": workspace.hidden(0)[1 : 1 + count]}
    if problem.mode == "lstm":
        found["cx"] = workspace.cell(1)[1 : 1 + count]
    return {name: view for name, view in found.items() if view.shape[1] == batch_size}


@pytest.mark.parametrize("name", ["x", "hx", "cx"])
@pytest.mark.parametrize("mode", ["gru", "lstm"])
def test_forward_refuses_an_input_that_views_its_workspace(mode, name):
    problem = Problem(mode=mode, input_size=4, num_layers=3, seq_len=6)
    result = problem.forward()
    given = dict(zip(("w", "x", "hx", "cx"), problem.inputs, strict=True)) | views_of(result.workspace, problem)
    if given[name] is None:
        return
    arguments = dict(zip(("w", "x", "hx", "cx"), problem.inputs, strict=True)) | {name: given[name]}
    expected = rnnkit.infer(problem.desc, **arguments | {name: given[name].copy()})
    before = result.y.copy()
    with pytest.raises(ValueError, match=says(f"forward: {name}", "workspace")):
        rnnkit.forward(problem.desc, **arguments, workspace=result.workspace)
    assert_same_bits("y", result.y, before)
    copied = arguments | {name: given[name].copy()}
    assert_same_results(rnnkit.forward(problem.desc, **copied, workspace=result.workspace), expected, OUTPUTS)


def test_forward_refuses_weights_that_view_its_workspace():
    problem = Problem(mode="rnn_tanh", num_layers=2, seq_len=40)
    workspace = problem.forward().workspace
    w = workspace.hidden(0).reshape(-1)[: problem.w.size]
    with pytest.raises(ValueError, match=says("forward: w", "workspace")):
        rnnkit.forward(problem.desc, w, problem.x, workspace=workspace)


@pytest.mark.parametrize("name", ["w", "x", "hx", "cx", "dy", "dhy", "dcy"])
@pytest.mark.parametrize("cell", CELLS)
def test_backward_refuses_a_gradient_over_an_input(cell, name):
    problem = Problem(**CELLS[cell], num_layers=2, seq_len=30)
    arrays = dict(zip(("w", "x", "hx", "cx", "dy", "dhy", "dcy"), problem.inputs + problem.cotangents, strict=True))
    if arrays[name] is None:
        return
    buffer = np.empty(problem.w.size + arrays[name].size, problem.dtype)
    buffer[: arrays[name].size] = arrays[name].ravel()
    arrays[name] = buffer[: arrays[name].size].reshape(arrays[name].shape)
    names = "w", "x", "hx", "cx"
    workspace = rnnkit.forward(problem.desc, **{key: arrays[key] for key in names}).workspace
    last = arrays[name].size - 1  # one element is enough
    cotangents = {key: arrays[key] for key in ("dy", "dhy", "dcy")}
    before = buffer.copy()
    with pytest.raises(ValueError, match=says("backward: dw", "memory", name)):
        rnnkit.backward(problem.desc, arrays["w"], workspace, **cotangents, dw=buffer[last : last + problem.w.size])
    assert_same_bits(name, buffer, before)
    buffer[last + 1 :] = 0
    rnnkit.backward(problem.desc, arrays["w"], workspace, **cotangents, dw=buffer[last + 1 :])
    assert_same_bits(name, buffer[: last + 1], before[: last + 1])


def test_backward_refuses_a_gradient_in_the_workspace():
    problem = Problem(mode="rnn_tanh", num_layers=2, seq_len=40)
    result = problem.forward()
    memory = result.workspace.arrays["hidden_l1"].base  # bytes
    begin = -memory.ctypes.data % 8
    dw = memory[begin : begin + 8 * problem.w.size].view(problem.dtype)
    with pytest.raises(ValueError, match=says("backward: dw", "memory", "workspace")):
        problem.backward(result.workspace, dw=dw)
