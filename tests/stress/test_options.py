"""Fuzzed descriptors and weight buffers: every field and every array right, wrong or absurd.

They are valid or raise TypeError, ValueError (ImportError: bfloat16 without its package); never anything else.
"""

import pickle

import numpy as np
import pytest
import spoiled
from child import run_children
from guarded import CONTIGUOUS, place
from oracle import random_problem
from spoiled import EITHER, NUMBERS, RIGHT, WRONG, attempt

import rnnkit

SENSIBLE = {
    "mode": ("rnn_relu", "rnn_tanh", "lstm", "gru"),
    "input_size": (1, 3, 4, 17),
    "hidden_size": (2, 4, 5, 17),
    "num_layers": (1, 2, 3),
    "bidirectional": (False, True),
    "bias": ("both", "input", "recurrent", "none"),
    "input_mode": ("linear", "skip"),
    "proj_size": (None, 1, 3),
    "dropout": (0, 0.5, 1.0),
    "cell_clip": (None, (-1, 1), (-np.inf, 0.5)),
    "reset_after": (True, False),
    "dtype": ("float32", "float64", np.float32, np.dtype("float64"), "float16"),
    "allow_tf32": (False, True),
}
ABSURD = (
    *NUMBERS, "LSTM", "lstm\0", "float32 ", "f4", np.str_("lstm"), float, int, ">f4", np.dtype(">f4"), np.dtype("O"),
    np.dtype([("a", "f4")]), np.float128, np.complex64, "x" * 10**5, b"lstm", "bfloat16",
)  # fmt: skip
REFUSALS = (TypeError, ValueError, ImportError)


def drawn(rng, values):
    return values[rng.integers(len(values))]


def described(fields):
    """The descriptor, or None where it was refused."""
    try:
        return rnnkit.RNNDescriptor(**fields)
    except REFUSALS:
        return None


def assert_whole(desc, fields):
    """A descriptor that is born is valid in every way."""
    again = rnnkit.RNNDescriptor(**fields)
    assert again == desc and hash(again) == hash(desc), fields
    assert pickle.loads(pickle.dumps(desc)) == desc, fields
    assert eval(repr(desc), {"RNNDescriptor": rnnkit.RNNDescriptor, "inf": np.inf}) == desc, fields
    if desc.num_layers > 100:
        return
    layout = rnnkit.weight_layout(desc)
    stops = [block.start + int(np.prod(block.shape, dtype=object)) for block in layout]
    assert [block.start for block in layout] == [0, *stops[:-1]], fields
    assert rnnkit.num_weights(desc) == stops[-1], fields
    assert rnnkit.workspace_nbytes(desc, 2, 3) >= rnnkit.workspace_nbytes(desc, 0, 0) >= 0, fields


def fuzz_descriptors(trial):
    rng = trial.rng
    for _ in trial.rounds(500):
        fields = {name: drawn(rng, values) for name, values in SENSIBLE.items() if rng.random() < 0.5}
        fields = {"mode": drawn(rng, SENSIBLE["mode"]), "input_size": 4, "hidden_size": 4} | fields
        for name in rng.choice(list(SENSIBLE), rng.integers(3), replace=False):
            fields[str(name)] = drawn(rng, ABSURD)
        desc = described(fields)
        if desc is not None:
            assert_whole(desc, fields)
        trial.count(descriptors=1, refused=desc is None)


def views(trial, problem, rng):
    """weight_views writes the buffer that it was given, whatever memory that lies in."""
    w, form = place(problem.w, rng, CONTIGUOUS)
    expected = RIGHT
    if rng.random() < 0.5:
        w, expected = spoiled.array(problem.w, rng, [0])
        form = str(w)[:200]
    what = f"weight_views of {problem.desc} with w {form}"
    found = attempt(lambda: rnnkit.weight_views(problem.desc, w), [w], expected, what)
    if found is not None:
        for name, view in problem.views.items():
            assert np.array_equal(found[name], view), name
            assert np.shares_memory(found[name], w), name
    return found


def packed(trial, problem, rng):
    """pack_weights finds all arrays, in whatever memory they lie, and names what is wrong."""
    named = {name: place(view, rng)[0] for name, view in problem.views.items()}
    values = {name: np.array(view, order="C") for name, view in named.items()}
    expected, name = RIGHT, str(rng.choice(list(named)))
    kind = rng.integers(8)
    if kind < 3:
        named[name], expected = spoiled.array(values[name], rng, range(values[name].ndim))
        if expected is WRONG and not isinstance(named[name], np.ndarray):
            expected = EITHER  # array_like is taken where it has the dtype
    elif kind == 3:
        del named[name]
        expected = WRONG
    elif kind == 4:
        named[drawn(rng, ["weight", "", 3, None, ("weight_hh_l0",), b"weight_hh_l0", f"{name} "])] = values[name]
        expected = WRONG
    elif kind == 5:
        named, expected = drawn(rng, [None, [], list(named.items()), "weights", 3, problem.w, set(named)]), WRONG
    spoiled_one = named.get(name) if isinstance(named, dict) else named
    what = f"pack_weights of {problem.desc} with {name} as {type(spoiled_one).__name__} {str(spoiled_one)[:200]}"
    w = attempt(lambda: rnnkit.pack_weights(problem.desc, named), [], expected, what)
    if w is not None:
        for block, (start, size) in zip(named.values(), starts(problem.desc), strict=True):
            assert np.array_equal(w[start : start + size], np.asarray(block).ravel()), what
    return w


def starts(desc):
    return [(block.start, int(np.prod(block.shape))) for block in rnnkit.weight_layout(desc)]


def initial(trial, problem, rng):
    """init_weights takes what NumPy takes as a seed."""
    seed, _ = drawn(rng, spoiled.SEEDS)
    what = f"init_weights with seed {seed!r}"
    w = attempt(lambda: rnnkit.init_weights(problem.desc, seed), [seed], EITHER, what, form="")  # NumPy looks at seeds
    if w is not None:
        assert np.abs(w).max() <= problem.desc.np_dtype.type(1 / np.sqrt(problem.hidden_size))
    return w


def sizes(trial, problem, rng):
    """workspace_nbytes takes integers of at least 0, and of at least 1 between checkpoints, and nothing else."""
    T, N, checkpoint_steps = (drawn(rng, NUMBERS) for _ in range(3))
    numbers = (T, N) if checkpoint_steps is None else (T, N, checkpoint_steps)
    right = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in numbers)
    what = f"workspace_nbytes with {T!r}, {N!r}, {checkpoint_steps!r}"
    expected = RIGHT if right and checkpoint_steps != 0 else WRONG
    given = T, N, checkpoint_steps
    return attempt(lambda: rnnkit.workspace_nbytes(problem.desc, *given), given, expected, what)


def states(trial, problem, rng):
    """workspace.hidden and cell take a layer and a direction that there are."""
    workspace, name = problem.forward().workspace, drawn(rng, ["hidden", "cell"])
    layer, direction = drawn(rng, NUMBERS), drawn(rng, [0, 1, *NUMBERS])
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in (layer, direction))
    right = whole and 0 <= layer < problem.num_layers and 0 <= direction < problem.directions
    right = right and (name == "hidden" or problem.mode == "lstm")
    what = f"{name} with {layer!r}, {direction!r} of {problem}"
    expected = RIGHT if right else WRONG
    return attempt(lambda: getattr(workspace, name)(layer, direction), [layer, direction], expected, what)


def fuzz_weights(trial):
    rng = trial.rng
    for number in trial.rounds(150):
        function = (views, packed, initial, sizes, states)[number % 5]
        found = function(trial, random_problem(rng, steps=3, sizes=(1, 2, 3, 5, 17)), rng)
        trial.count(calls=1, refused=found is None)


@pytest.mark.parametrize("work", [fuzz_descriptors, fuzz_weights])
def test_fuzzed_options_are_valid_or_refused(trial, work):
    run_children(trial, work)
