"""Problems on CuPy arrays: the real ones, or the stand-in's where a test's fixture has put that in their place."""

import sys

import numpy as np
from problems import CELLS
from tolerances import GRADIENTS, OUTPUTS, assert_close_on_gpu, assert_gradient_close_on_gpu

import rnnkit

# cuDNN has the one GRU, and clips to float32 numbers.
BOUNDS = (-0.25, 0.3125)
CELLS = {name: cell for name, cell in CELLS.items() if cell.get("reset_after", True)}
CELLS = {name: {**cell, "cell_clip": BOUNDS} if "cell_clip" in cell else cell for name, cell in CELLS.items()}
LENGTHS = {"full": None, "sorted": (4, 3, 3), "unsorted": (2, 4, 3), "empty": (2, 0, 4), "all-empty": (0, 0, 0)}


def has_gpu():
    try:
        import cupy
    except ImportError:
        return False
    return cupy.cuda.is_available()


def inside(problem):
    """The problem with initial cells within its clip: cuDNN clips them too."""
    if problem.cell_clip is not None and problem.cx is not None:
        problem.__dict__["cx"] = np.clip(problem.cx, *(0.9 * bound for bound in problem.cell_clip))
    return problem


def moved(*arrays):
    """The arrays on the GPU; None stays None."""
    return [None if array is None else sys.modules["cupy"].asarray(array) for array in arrays]


def fetched(result):
    """A result with its arrays on the host."""
    return type(result)(*(array.get() if hasattr(array, "get") else array for array in result))


def forward(problem, **options):
    options = {"lengths": problem.lengths_array, "seed": problem.seed, **options}
    return rnnkit.forward(problem.desc, *moved(*problem.inputs), **options)


def backward(problem, workspace, **options):
    return fetched(rnnkit.backward(problem.desc, *moved(problem.w), workspace, *moved(*problem.cotangents), **options))


def step(problem, **options):
    """forward and backward, on the host, and the workspace."""
    result = forward(problem, **options)
    return fetched(result), backward(problem, result.workspace), result.workspace


def infer(problem):
    return fetched(rnnkit.infer(problem.desc, *moved(*problem.inputs), lengths=problem.lengths_array))


def assert_outputs_as_on_the_host(found, expected, dtype):
    for name in OUTPUTS:
        assert_close_on_gpu(name, getattr(found, name), getattr(expected, name), dtype)


def assert_gradients_as_on_the_host(found, expected, dtype):
    for name in GRADIENTS:
        assert_gradient_close_on_gpu(name, getattr(found, name), getattr(expected, name), dtype)


def assert_as_on_the_host(problem):
    """The same results as on NumPy arrays, of every call, up to the order of sums."""
    expected = problem.forward()
    gradients = problem.backward(expected.workspace)
    found, found_gradients, _ = step(problem)
    assert_outputs_as_on_the_host(found, expected, problem.dtype)
    assert_gradients_as_on_the_host(found_gradients, gradients, problem.dtype)
    assert_outputs_as_on_the_host(infer(problem), expected, problem.dtype)
