"""The gradient checker itself, by planted errors: each must go red and name the block."""

import pytest
from gradcheck import assert_gradients
from problems import Problem, gradient_problem

PROBLEM = Problem(mode="lstm", num_layers=2, bidirectional=True, lengths=(4, 2, 0))
SEEDS = range(5)


def scaled(block):
    """A relative error of one in a thousand in every element."""
    return 1.001 * block


def swapped_gates(block):
    """The gradients of gates i and f exchanged."""
    size = PROBLEM.hidden_size
    swapped = block.copy()
    swapped[:size], swapped[size : 2 * size] = block[size : 2 * size], block[:size]
    return swapped


def not_reversed_back(block):
    """A gradient over time left in the order of the reverse direction."""
    return block[::-1]


def wrong_row(block):
    """The state gradients of the two directions exchanged."""
    return block[[1, 0, 3, 2]]


def assert_checked(planted, seed):
    """Run the checker with `planted`, a dict of block name to a function that spoils that block's gradient."""
    loss, gradients, blocks = gradient_problem(PROBLEM)

    def spoiled(arrays):
        found = gradients(arrays)
        return {name: planted[name](block) if name in planted else block for name, block in found.items()}

    assert_gradients(loss, spoiled, blocks, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_right_gradients_pass(seed):
    assert_checked({}, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["x", "hx", "cx", *PROBLEM.views])
def test_a_scaled_block_is_found(name, seed):
    with pytest.raises(AssertionError, match=rf"\A{name}: gradient gives \S+, central difference \S+, more than"):
        assert_checked({name: scaled}, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [name for name in PROBLEM.views])
def test_swapped_gates_are_found(name, seed):
    with pytest.raises(AssertionError, match=rf"\A{name}: "):
        assert_checked({name: swapped_gates}, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "error"), [("x", not_reversed_back), ("hx", wrong_row), ("cx", wrong_row)])
def test_wrong_order_is_found(name, error, seed):
    with pytest.raises(AssertionError, match=rf"\A{name}: "):
        assert_checked({name: error}, seed)


def test_every_wrong_block_is_named():
    with pytest.raises(AssertionError, match=r"(?s)\Ahx: .*\nbias_ih_l1: "):
        assert_checked({"hx": scaled, "bias_ih_l1": scaled}, 0)


def test_a_missing_block_is_found():
    loss, gradients, blocks = gradient_problem(PROBLEM)

    def without_x(arrays):
        return {name: block for name, block in gradients(arrays).items() if name != "x"}

    with pytest.raises(AssertionError, match="expected those of"):
        assert_gradients(loss, without_x, blocks, 0)


def test_a_wrong_shape_is_found():
    with pytest.raises(AssertionError, match=r"x: gradient has shape \(3, 3, 3\), the block \(4, 3, 3\)"):
        assert_checked({"x": lambda block: block[1:]}, 0)


def test_nan_is_found():
    with pytest.raises(AssertionError, match=r"\Acx: gradient gives nan"):
        assert_checked({"cx": lambda block: block * float("nan")}, 0)
