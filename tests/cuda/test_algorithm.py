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


def networks(problem, expected, *changes):
    return [pytest.param(problem.twin(**one), expected, id=f"{problem.hidden_size} {one}") for one in changes]


BY_OPTIONS = [
    *networks(SMALL, SMALL_H, dict(), dict(num_layers=2, bidirectional=True), dict(lengths=(4, 4, 4))),
    *networks(SMALL, SMALL_H, dict(allow_tf32=False), dict(allow_tf32=False, dtype="float16")),
    *networks(SMALL, STANDARD, *(dict(allow_tf32=False, dtype=dtype) for dtype in ("float64", "bfloat16"))),
    *networks(SMALL, STANDARD, *(dict(bias=bias) for bias in ("none", "input", "recurrent")), dict(proj_size=5)),
    *networks(SMALL, STANDARD, dict(input_mode="skip", input_size=128), dict(cell_clip=BOUNDS)),
    *networks(SMALL, STANDARD, dict(lengths=(4, 3, 2))),
    *networks(PERSISTENT, PERSIST_STATIC, dict(), dict(hidden_size=1024), dict(input_size=256), dict(batch_size=128)),
    *networks(PERSISTENT, PERSIST_STATIC, dict(batch_size=96, hidden_size=896)),
    *networks(PERSISTENT, STANDARD, dict(dtype="float32", allow_tf32=True), dict(num_layers=2), dict(mode="gru")),
    *networks(PERSISTENT, STANDARD, dict(bidirectional=True), dict(bias="none"), dict(lengths=(4,) * 7 + (3,))),
    *networks(PERSISTENT, STANDARD, dict(hidden_size=320), dict(hidden_size=1152), dict(input_size=192)),
    *networks(PERSISTENT, STANDARD, *(dict(batch_size=size) for size in (9, 12, 136))),
    *networks(SIMPLE, PERSIST_STATIC, dict(), dict(mode="rnn_relu"), dict(batch_size=88, hidden_size=896)),
    *networks(SIMPLE, PERSIST_STATIC, dict(batch_size=96, hidden_size=768)),
    *networks(SIMPLE, STANDARD, *(dict(batch_size=96, hidden_size=896) | mode for mode in ({}, dict(mode="rnn_relu")))),
]


@pytest.mark.parametrize(("problem", "expected"), BY_OPTIONS)
def test_algorithm_by_options_and_sizes(standin, problem, expected):
    assert_algorithm(standin, problem, expected)


LIMITS = [("rnn_relu", 256, 384), ("rnn_tanh", 256, 384), ("lstm", 128, 192), ("gru", 128, 192)]


@pytest.mark.parametrize(("mode", "training", "inference"), LIMITS)
def test_small_networks_end_at_a_size_by_mode(standin, mode, training, inference):
    """A training step takes one algorithm for both ways, so backward's limit is that of forward too."""
    problem = SMALL.twin(mode=mode)
    for call, limit in ((rnnkit.forward, training), (rnnkit.infer, inference)):
        assert algorithm_of(standin, problem.twin(hidden_size=limit), call) == SMALL_H
        assert algorithm_of(standin, problem.twin(hidden_size=limit + 1), call) == STANDARD


# Compute capability, multiprocessors, the algorithms of a small network and of one with its weights in registers.
BY_DEVICE = [
    *((capability, 132, SMALL_H, STANDARD) for capability in ("60", "75", "86")),
    *(("53", 132, STANDARD, STANDARD), ("90", 97, SMALL_H, STANDARD)),
    *((*kind, SMALL_H, PERSIST_STATIC) for kind in (("80", 108), ("89", 132), ("90", 98), ("120", 170))),
]


@pytest.mark.parametrize(("capability", "processors", "small", "persistent"), BY_DEVICE)
def test_algorithm_by_device(standin, monkeypatch, capability, processors, small, persistent):
    monkeypatch.setitem(cupy.kinds, 0, cupy.Kind(capability, processors))
    assert_algorithm(standin, SMALL, small)
    assert_algorithm(standin, PERSISTENT, persistent)


def test_algorithm_of_each_of_two_devices(standin, monkeypatch):
    monkeypatch.setitem(cupy.kinds, 1, cupy.Kind("75", 40))
    assert_algorithm(standin, PERSISTENT, PERSIST_STATIC)
    with cupy.cuda.Device(1):
        assert_algorithm(standin, PERSISTENT, STANDARD)
    assert_algorithm(standin, PERSISTENT, PERSIST_STATIC)


def test_training_step_takes_one_algorithm(standin):
    """Where inference would take another, and where backward runs forward once more."""
    problem = SMALL.twin(hidden_size=150)
    arrays = moved(*problem.inputs)
    workspace = rnnkit.forward(problem.desc, *arrays).workspace
    for _ in range(2):
        rnnkit.backward(problem.desc, arrays[0], workspace, *moved(problem.dy))
    assert standin.algorithms == [STANDARD] * 6
