"""The gradient checker itself, by planted errors: each must go red and name the block."""

import numpy as np
import pytest
from gradcheck import assert_gradients
from problems import Problem, gradient_problem

PROBLEM = Problem(mode="lstm", num_layers=2, bidirectional=True, lengths=(4, 2, 0))
H = PROBLEM.hidden_size
every_seed = pytest.mark.parametrize("seed", range(5))


def scaled(block):
    """A relative error of one in a thousand in every element."""
    return 1.001 * block


def swapped_gates(block):
    """The gradients of gates i and f exchanged."""
    return np.concatenate([block[H : 2 * H], block[:H], block[2 * H :]])


def not_reversed_back(block):
    """A gradient over time left in the order of the reverse direction."""
    return block[::-1]


def wrong_row(block):
    """The state gradients of the two directions exchanged."""
    return block[[1, 0, 3, 2]]


ERRORS = [(name, scaled) for name in ("x", "hx", "cx", *PROBLEM.views)]
ERRORS += [(name, swapped_gates) for name in PROBLEM.views]
ERRORS += [("x", not_reversed_back), ("hx", wrong_row), ("cx", wrong_row)]


def assert_checked(seed=0, **planted):
    """Run the checker with functions that spoil the gradients of the blocks of these names."""
    loss, gradients, blocks = gradient_problem(PROBLEM)

    def spoiled(arrays):
        return {name: planted.get(name, np.copy)(block) for name, block in gradients(arrays).items()}

    assert_gradients(loss, spoiled, blocks, seed)


@every_seed
def test_right_gradients_pass(seed):
    assert_checked(seed)


@every_seed
@pytest.mark.parametrize(("name", "error"), ERRORS)
def test_planted_error_is_found(name, error, seed):
    with pytest.raises(AssertionError, match=rf"\A{name}: gradient gives \S+, central difference \S+, more than"):
        assert_checked(seed, **{name: error})


def test_every_wrong_block_is_named():
    with pytest.raises(AssertionError, match=r"(?s)\Ahx: .*\n  bias_ih_l1: "):
        assert_checked(hx=scaled, bias_ih_l1=scaled)


def test_missing_blocks_wrong_shapes_and_nan_are_found():
    loss, gradients, blocks = gradient_problem(PROBLEM)
    with pytest.raises(AssertionError, match="expected those of"):
        assert_gradients(loss, lambda arrays: dict(list(gradients(arrays).items())[1:]), blocks, 0)
    with pytest.raises(AssertionError, match=r"x: gradient has shape \(3, 3, 3\), the block \(4, 3, 3\)"):
        assert_checked(x=lambda block: block[1:])
    with pytest.raises(AssertionError, match=r"\Acx: gradient gives nan"):
        assert_checked(cx=lambda block: block * np.nan)
