"""The losses: against PyTorch, central differences, their own equations, and themselves on parts of a batch."""

import numpy as np
import pytest
from gradcheck import assert_gradients
from messages import says
from tolerances import assert_close, assert_same_bits

from rnnkit.training import sigmoid_cross_entropy, softmax_cross_entropy, squared_error

DTYPES = ("float32", "float64")
SEQ_LEN, BATCH_SIZE, NUM_CLASSES = 6, 4, 7
LENGTHS = (6, 0, 3, 1)
SHAPE = SEQ_LEN, BATCH_SIZE, NUM_CLASSES
LOSSES = {"softmax": softmax_cross_entropy, "sigmoid": sigmoid_cross_entropy, "squared": squared_error}
every_loss = pytest.mark.parametrize("name", LOSSES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def problem(name, dtype="float64", shape=SHAPE, seed=0):
    """Scores and targets."""
    rng = np.random.default_rng(seed)
    scores = (3 * rng.normal(size=shape)).astype(dtype)
    if name == "softmax":
        return scores, rng.integers(shape[-1], size=shape[:-1])
    return scores, (rng.uniform(size=shape) if name == "sigmoid" else rng.normal(size=shape)).astype(dtype)


def valid(lengths, losses):
    """The mask of an array (T, N, ...) by lengths."""
    mask = np.arange(SEQ_LEN)[:, None] < (SEQ_LEN if lengths is None else np.asarray(lengths))
    return np.broadcast_to(mask.reshape(*mask.shape, *(1,) * (losses.ndim - 2)), losses.shape)


def twin(name, scores, targets, lengths, count):
    """(loss, gradient, losses) entry by entry, as the equations are written."""
    if name == "softmax":
        p = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
        losses = -np.log(np.take_along_axis(p, targets[..., None], -1))[..., 0]
        gradient = p - (np.arange(scores.shape[-1]) == targets[..., None])
    elif name == "sigmoid":
        p = 1 / (1 + np.exp(-scores))
        losses, gradient = -targets * np.log(p) - (1 - targets) * np.log(1 - p), p - targets
    else:
        losses, gradient = (scores - targets) ** 2, 2 * (scores - targets)
    mask = valid(lengths, losses)
    count = count or mask.sum()
    return (losses * mask).sum() / count, gradient * valid(lengths, gradient) / count, losses * mask


@every_dtype
@every_loss
@pytest.mark.parametrize("lengths", [None, LENGTHS, (6, 6, 6, 6)])
@pytest.mark.parametrize("count", [None, 5, 2.5])
def test_equals_the_equations(name, lengths, count, dtype):
    scores, targets = problem(name, dtype)
    expected = twin(name, scores.astype(np.float64), targets, lengths, count)
    found = LOSSES[name](scores, targets, lengths, count=count)
    assert type(found.loss) is float
    for part, actual, wanted in zip(found._fields, found, expected, strict=True):
        assert_close(part, actual, wanted, dtype)
    assert found.gradient.dtype == found.losses.dtype == dtype


@every_dtype
@every_loss
def test_equals_pytorch(name, dtype):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    scores, targets = problem(name, dtype)
    tensor, wanted = torch.tensor(scores, requires_grad=True), torch.from_numpy(targets)
    if name == "softmax":
        loss = functional.cross_entropy(tensor.reshape(-1, NUM_CLASSES), wanted.reshape(-1))
    elif name == "sigmoid":
        loss = functional.binary_cross_entropy_with_logits(tensor, wanted)
    else:
        loss = functional.mse_loss(tensor, wanted)
    loss.backward()
    found = LOSSES[name](scores, targets)
    assert_close("loss", found.loss, loss.item(), dtype)
    assert_close("gradient", found.gradient, tensor.grad.numpy(), dtype)


@every_loss
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_the_gradient_is_that_of_the_loss(name, lengths):
    scores, targets = problem(name)

    def loss(blocks):
        return LOSSES[name](blocks["scores"], targets, lengths, count=1).loss

    def gradients(blocks):
        return {"scores": LOSSES[name](blocks["scores"], targets, lengths, count=1).gradient}

    assert_gradients(loss, gradients, {"scores": scores}, 0)


@every_loss
def test_the_gradient_in_place_and_elsewhere_has_the_same_bits(name):
    for lengths in (None, LENGTHS):
        scores, targets = problem(name)
        before = scores.copy()
        expected = LOSSES[name](scores, targets, lengths)
        assert_same_bits("scores", scores, before)
        for out in (np.full_like(scores, np.nan), scores):
            found = LOSSES[name](scores, targets, lengths, out=out)
            assert found.gradient is out
            assert found.loss == expected.loss
            assert_same_bits("gradient", out, expected.gradient)
            assert_same_bits("losses", found.losses, expected.losses)


@every_loss
def test_padding_is_never_read(name):
    scores, targets = problem(name)
    expected = LOSSES[name](scores, targets, LENGTHS)
    scores[~valid(LENGTHS, scores)] = np.nan
    targets[~valid(LENGTHS, targets)] = -1 if name == "softmax" else np.nan
    found = LOSSES[name](scores, targets, LENGTHS)
    assert found.loss == expected.loss
    assert_same_bits("gradient", found.gradient, expected.gradient)
    assert_same_bits("losses", found.losses, expected.losses)


@every_loss
def test_parts_of_a_batch_add_up(name):
    scores, targets = problem(name)
    whole = LOSSES[name](scores, targets, LENGTHS)
    count = int(valid(LENGTHS, whole.losses).sum())
    parts = [LOSSES[name](scores[:, n], targets[:, n], LENGTHS[n], count=count) for n in (slice(0, 1), slice(1, 4))]
    assert_close("loss", sum(part.loss for part in parts), whole.loss, "float64")
    assert_close("gradient", np.concatenate([part.gradient for part in parts], 1), whole.gradient, "float64")


NOTHING = [(SHAPE, (0, 0, 0, 0)), ((0, 4, 7), None), ((6, 0, 7), ()), ((0, 7), None)]


@every_loss
@pytest.mark.parametrize(("shape", "lengths"), NOTHING)
def test_without_a_valid_entry_all_is_zero(name, shape, lengths):
    scores, targets = problem(name, shape=shape)
    loss, gradient, losses = LOSSES[name](scores, targets, lengths)
    assert loss == 0.0
    assert_same_bits("gradient", gradient, np.zeros(shape))
    assert_same_bits("losses", losses, np.zeros(targets.shape))


@every_loss
def test_one_row_and_many_dimensions_are_as_good(name):
    scores, targets = problem(name, shape=(2, 3, 4, 5))
    expected = LOSSES[name](scores, targets)
    flat = LOSSES[name](scores.reshape(24, 5), targets.reshape(24, *targets.shape[3:]))
    assert flat.loss == expected.loss
    assert_same_bits("gradient", flat.gradient.reshape(scores.shape), expected.gradient)
    one = LOSSES[name](scores[0, 0, 0], np.asarray(targets[0, 0, 0]), count=24 if name == "softmax" else 120)
    assert_same_bits("gradient", one.gradient, expected.gradient[0, 0, 0])
    masked = LOSSES[name](scores, targets, [1, 2, 0])
    for n, length in enumerate([1, 2, 0]):
        assert_same_bits("losses", masked.losses[:length, n], expected.losses[:length, n])
        assert_same_bits("padding", masked.losses[length:, n], np.zeros_like(masked.losses[length:, n]))


@every_loss
def test_an_input_with_gaps(name):
    scores, targets = problem(name)
    expected = LOSSES[name](scores, targets)
    wide = np.repeat(scores, 2, axis=-1)[..., ::2]
    assert_same_bits("gradient", LOSSES[name](wide, targets).gradient, expected.gradient)


@every_dtype
def test_extreme_scores_of_softmax(dtype):
    largest = np.finfo(dtype).max
    scores = np.array([[0.9 * largest, 0, -largest], [1000, 999, -1000], [-1000, -1000, -1000]], dtype)
    found = softmax_cross_entropy(scores, np.array([1, 1, 1]), count=1)
    assert_close("losses", found.losses[1:], [1 + np.log1p(np.exp(-1)), np.log(3)], dtype)
    assert found.losses[0] == scores[0, 0]
    assert_close("gradient", found.gradient[0], [1, -1, 0], dtype)


@every_dtype
def test_extreme_scores_of_the_logistic_function(dtype):
    scores = np.array([1e4, 1e4, -1e4, -1e4, 60, -60], dtype)
    found = sigmoid_cross_entropy(scores, np.array([1, 0, 1, 0, 1, 0]), count=1)
    small = np.exp(-60.0)
    assert_close("losses", found.losses, [0, 1e4, 1e4, 0, small, small], dtype)
    assert_close("gradient", found.gradient, [0, 1, -1, 0, 0, 0], dtype)
    assert found.losses[4] / small == pytest.approx(1, abs=1e-5)  # log1p keeps what 1 + small would lose


@every_loss
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_entry(name, bad):
    scores, targets = problem(name)
    expected = LOSSES[name](scores, targets)
    scores[2, 1, 3] = bad
    if name == "sigmoid":
        targets[2, 1, 3] = 0
    found = LOSSES[name](scores, targets)
    others = np.ones((SEQ_LEN, BATCH_SIZE), bool)
    others[2, 1] = False
    assert not np.isfinite(found.loss) and not np.isfinite(found.losses[2, 1]).all()
    assert_same_bits("losses", found.losses[others], expected.losses[others])
    assert_same_bits("gradient", found.gradient[others], expected.gradient[others])


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i4", "u8"])
def test_classes_of_any_integer_dtype(dtype):
    scores, targets = problem("softmax")
    expected = softmax_cross_entropy(scores, targets)
    assert_same_bits("gradient", softmax_cross_entropy(scores, targets.astype(dtype)).gradient, expected.gradient)


def test_many_classes_of_a_narrow_dtype():
    """Places in the scores are no uint8."""
    rng = np.random.default_rng(0)
    scores, targets = rng.normal(size=(300, 256)), rng.integers(256, size=300)
    expected = softmax_cross_entropy(scores, targets)
    assert_same_bits("losses", softmax_cross_entropy(scores, targets.astype("u1")).losses, expected.losses)


@pytest.mark.parametrize("dtype", [bool, "i1", "float16", "float64"])
def test_yes_or_no_of_any_dtype(dtype):
    scores, _ = problem("sigmoid", "float32")
    targets = scores > 1
    found = sigmoid_cross_entropy(scores, targets.astype(dtype))
    assert found.gradient.dtype == np.float32
    assert_same_bits("gradient", found.gradient, sigmoid_cross_entropy(scores, targets.astype("f4")).gradient)


SCORES, CLASSES = np.zeros((4, 3, 5)), np.zeros((4, 3), int)
READ_ONLY = np.zeros((4, 3, 5))
READ_ONLY.flags.writeable = False
WIDE = np.zeros((4, 3, 10))
BAD = {
    "list of scores": (dict(scores=[[1.0]]), TypeError, "scores", ["numpy.ndarray", "cupy.ndarray", "list"]),
    "integer scores": (dict(scores=SCORES.astype(int)), TypeError, "scores", ["float32", "float64", "int64"]),
    "half scores": (dict(scores=SCORES.astype("f2")), TypeError, "scores", ["float32", "float64", "float16"]),
    "masked scores": (dict(scores=np.ma.array(SCORES)), TypeError,
                      "scores", ["numpy.ndarray", "numpy.ma.MaskedArray", "mask"]),
    "list of targets": (dict(targets=[[1.0]]), TypeError, "targets", ["numpy.ndarray", "list"]),
    "shape of targets": (dict(targets=np.zeros((3, 4), int)), ValueError, "targets", ["(4, 3", "scores", (3, 4)]),
    "lengths": (dict(lengths=[4, 5, 1]), ValueError, "lengths[1]", ["0..seq_len=4", 5]),
    "number of lengths": (dict(lengths=[4, 1]), ValueError, "lengths", ["(batch_size=3,)", (2,)]),
    "count 0": (dict(count=0), ValueError, "count", ["finite", 0]),
    "count inf": (dict(count=np.inf), ValueError, "count", ["finite", 0, "inf"]),
    "count huge": (dict(count=10**400), ValueError, "count", ["float64"]),
    "count tiny": (dict(count=1e-310), ValueError, "count", [1.1125369292536007e-308, "float64", "1e-310"]),
    "count text": (dict(count="1"), TypeError, "count", ["number", "str"]),
    "count array": (dict(count=CLASSES), TypeError, "count", ["number", "numpy.ndarray"]),
    "out list": (dict(out=[1.0]), TypeError, "out", ["numpy.ndarray", "list"]),
    "out dtype": (dict(out=SCORES.astype("f4")), TypeError, "out", ["float64", "scores", "float32"]),
    "out shape": (dict(out=np.zeros((4, 3, 6))), ValueError, "out", [(4, 3, 5), "scores", (4, 3, 6)]),
    "out with gaps": (dict(out=WIDE[..., ::2]), ValueError, "out", ["C-contiguous", (240, 80, 16)]),
    "read-only out": (dict(out=READ_ONLY), ValueError, "out", ["writeable"]),
}


@every_loss
@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(name, case):
    wrong, error, argument, facts = BAD[case]
    scores, targets = SCORES.copy(), CLASSES if name == "softmax" else SCORES.copy()
    values = {"scores": scores, "targets": targets, **wrong}
    if name == "squared":
        argument, *facts = ("y" if fact == "scores" else fact for fact in (argument, *facts))
    with pytest.raises(error, match=says(f"{LOSSES[name].__name__}: {argument}", *facts)):
        LOSSES[name](values.pop("scores"), values.pop("targets"), **values)


@every_loss
def test_the_least_count_gives_numbers(name):
    """Divided by less, a gradient of 0 would be 0 times infinity."""
    scores = np.array([[0, 200]], np.float32)
    targets = np.array([1]) if name == "softmax" else np.array([[0.5, 1]], np.float32)
    targets = scores.copy() if name == "squared" else targets
    expected = says(f"{LOSSES[name].__name__}: count", 5.877472104436075e-39, "float32", 5.8e-39)
    with pytest.raises(ValueError, match=expected):
        LOSSES[name](scores, targets, count=5.8e-39)
    assert np.isfinite(LOSSES[name](scores, targets, count=5.877472104436075e-39).gradient).all()


@every_loss
def test_an_out_that_is_half_the_input(name):
    room = np.zeros(2 * SCORES.size)
    scores, out = (room[start : start + SCORES.size].reshape(SCORES.shape) for start in (0, 5))
    targets = CLASSES if name == "softmax" else SCORES.copy()
    own = "y" if name == "squared" else "scores"
    with pytest.raises(ValueError, match=says(f"{LOSSES[name].__name__}: out", "memory", own)):
        LOSSES[name](scores, targets, out=out)


@pytest.mark.parametrize("name", ["sigmoid", "squared"])
def test_an_out_in_the_targets(name):
    targets = np.zeros_like(SCORES)
    with pytest.raises(ValueError, match=says(f"{LOSSES[name].__name__}: out", "memory", "targets")):
        LOSSES[name](SCORES, targets, out=targets)


@pytest.mark.parametrize(
    ("function", "scores", "targets", "error", "argument", "facts"),
    [
        (softmax_cross_entropy, SCORES, SCORES[..., 0], TypeError, "targets", ["integers", "float64"]),
        (softmax_cross_entropy, SCORES, CLASSES + 5, ValueError, "targets", ["0..num_classes-1=4", 5]),
        (softmax_cross_entropy, SCORES, CLASSES - 1, ValueError, "targets", ["0..num_classes-1=4", -1]),
        (softmax_cross_entropy, SCORES[..., :0], CLASSES, ValueError, "scores", ["(..., num_classes)", (4, 3, 0)]),
        (softmax_cross_entropy, np.array(1.0), CLASSES, ValueError, "scores", ["(..., num_classes)", ()]),
        (sigmoid_cross_entropy, SCORES, SCORES + 1.5, ValueError, "targets", ["0..1", 1.5]),
        (sigmoid_cross_entropy, SCORES, SCORES - 1, ValueError, "targets", ["0..1", -1.0]),
        (sigmoid_cross_entropy, SCORES, SCORES * np.nan, ValueError, "targets", ["0..1", "nan"]),
        (sigmoid_cross_entropy, SCORES, SCORES * 1j, TypeError,
         "targets", ["bools", "integers", "floats", "complex128"]),
        (squared_error, SCORES, SCORES.astype("f4"), TypeError, "targets", ["float64", "y", "float32"]),
    ],
)
def test_targets_that_are_refused(function, scores, targets, error, argument, facts):
    out = scores.copy()
    with pytest.raises(error, match=says(f"{function.__name__}: {argument}", *facts)):
        function(scores, targets, out=out)
    assert_same_bits("out", out, scores)


def test_lengths_of_what_has_no_steps():
    with pytest.raises(ValueError, match=says("softmax_cross_entropy: targets", "(seq_len, batch_size, ...)", (3,))):
        softmax_cross_entropy(np.zeros((3, 5)), np.zeros(3, int), [1, 1, 1])
