"""Which of cuDNN's algorithms runs a network, by its options, its sizes and the device: both sides of every bound."""

import pytest
import standin_cupy as cupy
from gpu import BOUNDS, moved
from problems import Problem
from standin_rules import PERSIST_STATIC, SMALL_H, STANDARD

import rnnkit

SMALL = Problem(mode="lstm", hidden_size=128, dtype="float32", allow_tf32=True)
# The smallest network whose weights stay in registers that is not small in the sense of the other algorithm.
PERSISTENT = Problem(mode="lstm", hidden_size=256, input_size=128, batch_size=8, dtype="float16")
SIMPLE = PERSISTENT.twin(mode="rnn_tanh", hidden_size=512)  # the same for a vanilla network


def algorithm_of(standin, problem, call):
    """The algorithm of a call that computes nothing, so that sizes may be large."""
    standin.idle = True
    desc = problem.desc
    w = cupy.zeros(rnnkit.num_weights(desc), desc.np_dtype)
    x = cupy.zeros((problem.seq_len, problem.batch_size, problem.input_size), desc.np_dtype)
    call(desc, w, x, lengths=problem.lengths)
    assert not standin.refusals
    return standin.algorithms[-1]


def assert_algorithm(standin, problem, expected):
    assert algorithm_of(standin, problem, rnnkit.forward) == expected, "training"
    assert algorithm_of(standin, problem, rnnkit.infer) == expected, "inference"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (dict(), SMALL_H),
        (dict(num_layers=2, bidirectional=True), SMALL_H),
        (dict(allow_tf32=False), SMALL_H),
        (dict(allow_tf32=False, dtype="float64"), STANDARD),
        (dict(allow_tf32=False, dtype="bfloat16"), STANDARD),
        (dict(allow_tf32=False, dtype="float16"), SMALL_H),
        (dict(input_mode="skip", input_size=128), STANDARD),
        (dict(bias="none"), STANDARD),
        (dict(bias="input"), STANDARD),
        (dict(bias="recurrent"), STANDARD),
        (dict(proj_size=5), STANDARD),
        (dict(cell_clip=BOUNDS), STANDARD),
        (dict(lengths=(4, 3, 2)), STANDARD),
        (dict(lengths=(4, 4, 4)), SMALL_H),
    ],
    ids=str,
)
def test_of_a_small_network(standin, changes, expected):
    assert_algorithm(standin, SMALL.twin(**changes), expected)


@pytest.mark.parametrize(
    ("mode", "training", "inference"),
    [("rnn_relu", 256, 384), ("rnn_tanh", 256, 384), ("lstm", 128, 192), ("gru", 128, 192)],
)
def test_how_large_a_small_network_may_be(standin, mode, training, inference):
    """A training step takes one algorithm for both ways, so backward's limit is that of forward too."""
    problem = SMALL.twin(mode=mode)
    for call, limit in ((rnnkit.forward, training), (rnnkit.infer, inference)):
        assert algorithm_of(standin, problem.twin(hidden_size=limit), call) == SMALL_H
        assert algorithm_of(standin, problem.twin(hidden_size=limit + 1), call) == STANDARD


@pytest.mark.parametrize(
    ("problem", "changes", "expected"),
    [
        (PERSISTENT, dict(), PERSIST_STATIC),
        (PERSISTENT, dict(dtype="float32", allow_tf32=True), STANDARD),
        (PERSISTENT, dict(num_layers=2), STANDARD),
        (PERSISTENT, dict(bidirectional=True), STANDARD),
        (PERSISTENT, dict(mode="gru"), STANDARD),
        (PERSISTENT, dict(bias="none"), STANDARD),
        (PERSISTENT, dict(lengths=(4, 4, 4, 4, 4, 4, 4, 3)), STANDARD),
        (PERSISTENT, dict(hidden_size=320), STANDARD),
        (PERSISTENT, dict(hidden_size=1024), PERSIST_STATIC),
        (PERSISTENT, dict(hidden_size=1152), STANDARD),
        (PERSISTENT, dict(input_size=192), STANDARD),
        (PERSISTENT, dict(input_size=256), PERSIST_STATIC),
        (PERSISTENT, dict(batch_size=9), STANDARD),
        (PERSISTENT, dict(batch_size=12), STANDARD),
        (PERSISTENT, dict(batch_size=128), PERSIST_STATIC),
        (PERSISTENT, dict(batch_size=136), STANDARD),
        (PERSISTENT, dict(batch_size=96, hidden_size=896), PERSIST_STATIC),
        (SIMPLE, dict(), PERSIST_STATIC),
        (SIMPLE, dict(mode="rnn_relu"), PERSIST_STATIC),
        (SIMPLE, dict(batch_size=88, hidden_size=896), PERSIST_STATIC),
        (SIMPLE, dict(batch_size=96, hidden_size=768), PERSIST_STATIC),
        (SIMPLE, dict(batch_size=96, hidden_size=896), STANDARD),
        (SIMPLE, dict(batch_size=96, hidden_size=896, mode="rnn_relu"), STANDARD),
    ],
    ids=str,
)
def test_of_a_network_with_its_weights_in_registers(standin, problem, changes, expected):
    assert_algorithm(standin, problem.twin(**changes), expected)


@pytest.mark.parametrize(
    ("capability", "processors", "small", "persistent"),
    [
        ("53", 132, STANDARD, STANDARD),
        ("60", 132, SMALL_H, STANDARD),
        ("75", 132, SMALL_H, STANDARD),
        ("80", 108, SMALL_H, PERSIST_STATIC),
        ("86", 132, SMALL_H, STANDARD),
        ("89", 132, SMALL_H, PERSIST_STATIC),
        ("90", 97, SMALL_H, STANDARD),
        ("90", 98, SMALL_H, PERSIST_STATIC),
        ("120", 170, SMALL_H, PERSIST_STATIC),
    ],
)
def test_of_a_device(standin, monkeypatch, capability, processors, small, persistent):
    monkeypatch.setitem(cupy.kinds, 0, cupy.Kind(capability, processors))
    assert_algorithm(standin, SMALL, small)
    assert_algorithm(standin, PERSISTENT, persistent)


def test_of_each_of_two_devices(standin, monkeypatch):
    monkeypatch.setitem(cupy.kinds, 1, cupy.Kind("75", 40))
    assert_algorithm(standin, PERSISTENT, PERSIST_STATIC)
    with cupy.cuda.Device(1):
        assert_algorithm(standin, PERSISTENT, STANDARD)
    assert_algorithm(standin, PERSISTENT, PERSIST_STATIC)


def test_a_training_step_takes_one(standin):
    """Where inference would take another, and where backward runs forward once more."""
    problem = SMALL.twin(hidden_size=150)
    arrays = moved(*problem.inputs)
    workspace = rnnkit.forward(problem.desc, *arrays).workspace
    for _ in range(2):
        rnnkit.backward(problem.desc, arrays[0], workspace, *moved(problem.dy))
    assert standin.algorithms == [STANDARD] * 6
