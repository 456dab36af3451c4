"""What is noticed of weights and inputs that change between forward and backward, where that is asked for."""

import runpy

import numpy as np
import pytest
from messages import raises

import rnnkit
from rnnkit import WorkspaceError
from rnnkit.call import debugging


@pytest.fixture
def debug(monkeypatch):
    monkeypatch.setattr(debugging, "_on", True)
    return rnnkit.set_debug


@pytest.fixture
def net():
    return rnnkit.LSTM(3, 5, seed=0)


@pytest.fixture
def x():
    return np.asfortranarray(np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32))


def changed(name):
    return raises(WorkspaceError, f"backward: {name} | forward | changed")


@pytest.mark.parametrize("checkpoint_steps", [None, 2])
def test_error_names_what_has_changed(debug, net, x, checkpoint_steps):
    y, _, _, workspace = net.forward(x, checkpoint_steps=checkpoint_steps)
    dw = net.backward(workspace, y).dw
    kept = x[3, 1, 2], net.weights[-1]
    x[3, 1, 2] = 0
    with changed("x"):
        net.backward(workspace, y)
    x[3, 1, 2] = kept[0]
    net.weights[-1] += 1
    with changed("w"):
        net.backward(workspace, y)
    net.weights[-1] = kept[1]
    assert np.array_equal(net.backward(workspace, y).dw, dw)
    net.weights[:] = 1
    debug(False)
    assert not np.array_equal(net.backward(workspace, y).dw, dw)  # as it is without the switch: wrong, unless noticed


def test_forward_before_the_switch_is_not_checked(debug, net, x):
    debug(False)
    y, _, _, workspace = net.forward(x)
    debug(True)
    net.weights[0] += 1
    net.backward(workspace, y)
    again = net.forward(x, workspace=workspace).workspace
    net.weights[0] += 1
    with changed("w"):
        net.backward(again, y)


@pytest.mark.parametrize(("value", "is_on"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_environment_variable_switches_it_on(value, is_on, monkeypatch):
    monkeypatch.delenv("RNNKIT_DEBUG", raising=False)
    if value is not None:
        monkeypatch.setenv("RNNKIT_DEBUG", value)
    assert runpy.run_path(debugging.__file__)["_on"] == is_on


def test_set_debug_takes_a_bool_only():
    with raises(TypeError, "set_debug: on | bool | int"):
        rnnkit.set_debug(1)


def test_backward_without_a_gradient_is_refused(net, x):
    workspace = net.forward(x).workspace
    with raises(ValueError, "backward: | dy | dhy | dcy | required"):
        net.backward(workspace)
