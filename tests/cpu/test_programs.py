"""Calls as programs of words, which compiled code runs: the results of the engine, bit for bit, also with helpers."""

import ctypes
import threading
from typing import NamedTuple

import numpy as np
import pytest
from combinations import pairs, weekly
from tolerances import assert_same_bits

import rnnkit
from rnnkit.cells import SLSTM, MinGRU
from rnnkit.cpu.kept import kept_nbytes
from rnnkit.cpu.program import Call, Program, has_program, packed_nbytes
from rnnkit_kernels import programs
from rnnkit_kernels.machine.entries import call_from_c
from rnnkit_kernels.machine.jit import kernel
from rnnkit_kernels.machine.sync import CLOSED, TICKET
from rnnkit_kernels.programs import MAX_WORDS, run_program

NETWORKS = [
    *(dict(mode="lstm", num_layers=2), dict(mode="gru", bidirectional=True), dict(mode="rnn_tanh", num_layers=3)),
    *(weekly(dict(mode="lstm", proj_size=4)), weekly(dict(mode=SLSTM(), bidirectional=True))),
    weekly(dict(mode=MinGRU(), num_layers=2)),
]
SIZES = (1, 1, 16), (7, 5, 17), (60, 9, 33), weekly((1, 4, 40)), weekly((300, 3, 15))


@kernel
def _run(program, buffers, words):
    return run_program(program, buffers, words)


def split(desc, states):
    """The states other than h as the functions take them."""
    return states if states is None or len(desc.states) < 2 else tuple(np.split(states, len(desc.states), -1))


class Example(NamedTuple):
    """The arguments of a call and its results by the engine."""

    desc: rnnkit.RNNDescriptor
    seq_len: int
    batch_size: int
    operands: dict
    results: dict
    cotangents: dict
    gradients: dict

    def call(self, kind, packed=False):
        given = "lengths" in self.operands, "resets" in self.operands
        return Call(kind, self.desc, self.seq_len, self.batch_size, *given, packed)


def example(network, size, lengths=False, resets=False, states=True, dtype="float32"):
    (steps, rows, hidden), rng = size, np.random.default_rng(0)
    desc = rnnkit.RNNDescriptor(input_size=5, hidden_size=hidden, dtype=dtype, **network)
    new = lambda *shape: rng.standard_normal(shape).astype(dtype)  # noqa: E731
    layers, w, x = desc.num_pseudo_layers, rnnkit.init_weights(desc, 0), new(steps, rows, 5)
    hx = new(layers, rows, desc.output_size) if states else None
    cx = new(layers, rows, desc.states_size) if states and desc.has_cell_state else None
    options = dict(lengths=rng.integers(0, steps + 1, rows, dtype=np.int32)) if lengths else {}
    options |= dict(resets=rng.random((steps, rows)) < 0.3) if resets else {}
    whole = lambda one: np.concatenate(one, -1) if isinstance(one, tuple) else one  # noqa: E731
    forward = rnnkit.forward(desc, w, x, hx, split(desc, cx), **options)
    results = {"y": forward.y, "hy": forward.hy, "cy": whole(forward.cy)}
    cotangents = {f"d{name}": None if one is None else new(*one.shape) for name, one in results.items()}
    dy, dhy, dcy = cotangents.values()
    dx, dhx, dcx, dw = rnnkit.backward(desc, w, forward.workspace, dy, dhy, split(desc, dcy))
    given, gradients = {"w": w, "x": x, "hx": hx, "cx": cx} | options, {"dw": dw, "dx": dx, "dhx": dhx}
    operands = {name: one for name, one in given.items() if one is not None}
    return Example(desc, steps, rows, operands, results, cotangents, gradients | {"dcx": whole(dcx)})


def as_buffer(array, dtype):
    return np.empty(0, dtype) if array is None else array


def run(call, operands, like, threads=1, runs=2, unwanted=()):
    """Run a program of a call on new arrays like the results, and return these."""
    dtype = call.desc.np_dtype
    results = {name: np.full_like(as_buffer(one, dtype), np.nan) for name, one in like.items()}
    results |= {name: np.empty(0, dtype) for name in unwanted}
    if call.kind == "forward":
        nbytes = kept_nbytes(call.desc, call.seq_len, call.batch_size, call.resets)
        results["kept"] = np.full(nbytes, 255, np.uint8)
    if call.kind == "pack":
        results["packed"] = np.full(packed_nbytes(call.desc) // dtype.itemsize, np.nan, dtype)
    arrays = operands | results
    program = Program(call, {name: (n, one.nbytes) for n, (name, one) in enumerate(arrays.items(), 1)}, threads)
    buffers = np.array([0, *(one.ctypes.data for one in arrays.values())], np.int64)
    for _ in range(runs):
        if not _run(program.words, buffers, np.zeros(MAX_WORDS, np.int64)):
            return None
    return results


def check(name, found, expected):
    for key, one in expected.items():
        if one is not None:
            assert_same_bits(f"{name} {key}", found[key], one)


@pytest.mark.parametrize(
    ("network", "size", "lengths", "resets", "states", "dtype"),
    pairs(NETWORKS, SIZES, [False, True], [False, True], [True, False], ["float32", weekly("float64")]),
)
def test_programs_have_the_engines_bits(network, size, lengths, resets, states, dtype):
    one = example(network, size, lengths, resets, states, dtype)
    check("infer", run(one.call("infer"), one.operands, one.results), one.results)
    packed = run(one.call("pack"), {"w": one.operands["w"]}, {})
    check("packed", run(one.call("infer", True), one.operands | packed, one.results), one.results)
    forward = run(one.call("forward"), one.operands, one.results)
    check("forward", forward, one.results)
    kept = forward["kept"].copy()
    cotangents = {name: as_buffer(array, one.desc.np_dtype) for name, array in one.cotangents.items()}
    operands = one.operands | cotangents | {"kept": kept}
    check("backward", run(one.call("backward"), operands, one.gradients), one.gradients)
    for unwanted in ("dw", "dx"):
        wanted = {name: array for name, array in one.gradients.items() if name != unwanted}
        check("backward", run(one.call("backward"), operands, wanted, unwanted=[unwanted]), wanted)
    np.testing.assert_array_equal(kept, forward["kept"])  # another backward may read it


@pytest.mark.cores(2)
@pytest.mark.parametrize("lengths", [False, True])
def test_a_helper_shares_the_kernel_calls(lengths):
    one = example(dict(mode="lstm"), (60, 16, 128), lengths)
    dtype = one.desc.np_dtype
    helps = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(call_from_c(programs.help_program))
    for kind in ("infer", "forward"):
        arrays = one.operands | {name: as_buffer(array, dtype).copy() for name, array in one.results.items()}
        if kind == "forward":
            arrays["kept"] = np.empty(kept_nbytes(one.desc, 60, 16, False), np.uint8)
        sizes = {name: (n, array.nbytes) for n, (name, array) in enumerate(arrays.items(), 1)}
        program = Program(one.call(kind), sizes, 2)
        buffers = np.array([0, *(array.ctypes.data for array in arrays.values())], np.int64)
        assert _run(program.words, buffers, np.zeros(MAX_WORDS, np.int64)) and not program.is_helped
        helper = program.words[programs.HELPERS]
        words = np.frombuffer((ctypes.c_int64 * programs.HELPER_WORDS).from_address(int(helper)), np.int64)
        tickets = set()
        for _ in range(50):  # a helper leaves if its core or the caller's is taken away for some milliseconds
            words[[programs.BUSY, programs.LAST]] = 1, 1 << 40
            assert program.is_helped and program.words[programs.SHARED] > 0
            thread = threading.Thread(target=helps, args=(int(helper),))
            thread.start()
            while thread.is_alive() and 2 not in tickets:  # the helper had one
                assert _run(program.words, buffers, np.zeros(MAX_WORDS, np.int64))
                tickets.add(program._sync[TICKET] % CLOSED)
            thread.join(20)
            assert not program.is_helped
            if 2 in tickets:
                break
        assert 2 in tickets
        check(kind, arrays, one.results)


def test_lengths_out_of_range_are_not_run():
    one = example(dict(mode="gru"), (7, 5, 17), lengths=True)
    for wrong in (-1, 8):
        one.operands["lengths"][2] = wrong
        assert run(one.call("forward"), one.operands, one.results) is None


def test_what_is_no_program():
    sizes = "lstm", 3, 5
    call = Call("forward", rnnkit.RNNDescriptor(*sizes), 4, 2, False, False)
    assert has_program(call) and has_program(call._replace(kind="infer"))
    others = dict(num_layers=2, dropout=0.5), dict(learned_initial_state=True)
    other_calls = [call._replace(desc=rnnkit.RNNDescriptor(*sizes, **one)) for one in others]
    other_calls += call._replace(seq_len=0), call._replace(batch_size=0), call._replace(kind="infer", seq_len=1 << 20)
    assert not any(map(has_program, other_calls))


def table(*pairs):
    words = np.zeros(programs.PLACES * programs.PLACE_WORDS, np.int64)
    for place, key, copies in pairs:
        words[place * programs.PLACE_WORDS :][:2] = key, copies.ctypes.data
    return words


@kernel
def _take(words, key):
    return programs.take_program(words, key)


@kernel
def _give_back(pair):
    programs.give_back_program(pair)


def test_a_program_is_taken_by_one_at_a_time():
    key, (copies, other) = 7 + 3 * programs.PLACES, np.zeros((2, programs.COPIES_WORDS), np.int64)
    copies[: programs.PAIRS + 6] = 0, 3, 0, 111, 0, 0, 0, 333
    words = table((7, 99, other), (8, key, copies))
    assert _take(words, key + 1) == 0 and _take(words, 99) == 0
    first, second = _take(words, key), _take(words, key)
    assert copies[programs.USED] == 1 and _take(words, key) == 0
    assert [ctypes.c_int64.from_address(one + 8).value for one in (first, second)] == [111, 333]
    _give_back(first)
    assert _take(words, key) == first
