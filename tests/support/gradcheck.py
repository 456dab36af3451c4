"""Gradients against central differences: one random unit direction for every named block.

One direction a block and not one for all of them: pooled, a small block's error drowns in the others' rounding. No
component of a direction is tiny, so no element's error can hide.
"""

import numpy as np
from tolerances import FINITE_DIFFERENCE

EPS = 6e-6  # the cube root of the float64 machine epsilon balances truncation and rounding


def unit_direction(rng, shape):
    direction = rng.choice([-1.0, 1.0], shape) * rng.uniform(0.5, 1.5, shape)
    return direction / np.linalg.norm(direction)


def central_difference(loss, blocks, name, direction):
    above = loss({**blocks, name: blocks[name] + EPS * direction})
    below = loss({**blocks, name: blocks[name] - EPS * direction})
    return (above - below) / (2 * EPS)


def block_error(loss, blocks, name, gradient, rng):
    """What is wrong with the gradient of one block, in words, or None."""
    if gradient.shape != blocks[name].shape:
        return f"{name}: gradient has shape {gradient.shape}, the block {blocks[name].shape}"
    direction = unit_direction(rng, blocks[name].shape)
    numeric = central_difference(loss, blocks, name, direction)
    analytic = float(np.vdot(gradient, direction))
    bound = FINITE_DIFFERENCE * max(1.0, np.linalg.norm(gradient))
    if abs(numeric - analytic) <= bound:  # false for NaN
        return None
    return f"{name}: gradient gives {analytic!r}, central difference {numeric!r}, more than {bound:.1e} apart"


def assert_gradients(loss, gradients, blocks, seed):
    """Raise AssertionError that names every block whose gradient is wrong, with both values.

    Parameters
    ----------
    loss : callable
        Takes a dict of named float64 arrays, returns a float.
    gradients : callable
        Takes the same dict, returns a dict of the derivatives of `loss` by the same names.
    blocks : dict of ndarray, float64
        Where to check.
    seed : int
        Draws the directions.
    """
    rng = np.random.default_rng(seed)
    found = gradients(blocks)
    assert found.keys() == blocks.keys(), f"gradients of {sorted(found)}, expected those of {sorted(blocks)}"
    errors = [block_error(loss, blocks, name, found[name], rng) for name in blocks]
    assert not any(errors), "\n".join(error for error in errors if error)
