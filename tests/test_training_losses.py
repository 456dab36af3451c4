"""The losses: against PyTorch, central differences, and themselves on parts of a batch."""

import numpy as np
import pytest
from gradcheck import assert_gradients
from tolerances import assert_close, assert_same_bits

from rnnkit.training import softmax_cross_entropy

DTYPES = ("float32", "float64")
SEQ_LEN, BATCH_SIZE, NUM_CLASSES = 6, 4, 7
LENGTHS = (6, 0, 3, 1)


class Case:
    """A loss, and what it takes, on (T, N, C)."""

    def __init__(self, loss, of_torch, seed=0):
        self.loss, self.of_torch = loss, of_torch
        rng = np.random.default_rng(seed)
        self.scores = 3 * rng.normal(size=(SEQ_LEN, BATCH_SIZE, NUM_CLASSES))
        self.targets = rng.integers(NUM_CLASSES, size=(SEQ_LEN, BATCH_SIZE))


def torch_softmax(functional, scores, targets):
    return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), targets.reshape(-1), reduction="none")


CASES = {"softmax": Case(softmax_cross_entropy, torch_softmax)}
every_loss = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def valid_steps(lengths):
    return np.arange(SEQ_LEN)[:, None] < np.asarray(lengths)


@every_dtype
@every_loss
@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("count", [None, 5])
def test_pytorchs_loss(case, count, lengths, dtype):
    torch = pytest.importorskip("torch")
    scores = torch.tensor(case.scores.astype(dtype), requires_grad=True)
    losses = case.of_torch(torch.nn.functional, scores, torch.from_numpy(case.targets)).reshape(case.targets.shape)
    if lengths is not None:
        losses = losses * torch.from_numpy(valid_steps(lengths).reshape((SEQ_LEN, BATCH_SIZE) + (1,) * (losses.ndim - 2)))
    valid = losses.numel() if lengths is None else sum(lengths) * losses[0, 0].numel()
    mean = losses.sum() / (count or valid)
    mean.backward()
    found = case.loss(case.scores.astype(dtype), case.targets, lengths, count=count)
    assert type(found.loss) is float
    assert_close("loss", found.loss, mean.item(), dtype)
    assert_close("gradient", found.gradient, scores.grad.numpy(), dtype)
    assert_close("losses", found.losses, losses.detach().numpy(), dtype)
    assert found.gradient.dtype == found.losses.dtype == dtype


@every_loss
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_the_gradient_is_that_of_the_loss(case, lengths):
    def loss(blocks):
        return case.loss(blocks["scores"], case.targets, lengths).loss

    def gradients(blocks):
        return {"scores": case.loss(blocks["scores"], case.targets, lengths).gradient}

    assert_gradients(loss, gradients, {"scores": case.scores}, 0)
