"""The losses: against their equations; in padding, at the ends of the formats, and what is refused."""

import numpy as np
import pytest
from messages import raises, says
from tolerances import assert_close, assert_same_bits

from rnnkit.training import sigmoid_cross_entropy, softmax_cross_entropy, squared_error

SHAPE = 6, 4, 7  # steps, sequences, classes
LENGTHS = (6, 0, 3, 1)
LOSSES = {"softmax": softmax_cross_entropy, "sigmoid": sigmoid_cross_entropy, "squared": squared_error}
every_loss = pytest.mark.parametrize("name", LOSSES)
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def problem(name, dtype="float64", shape=SHAPE, seed=0):
    """Scores and targets."""
    rng = np.random.default_rng(seed)
    scores = (3 * rng.normal(size=shape)).astype(dtype)
    if name == "softmax":
        return scores, rng.integers(shape[-1], size=shape[:-1])
    return scores, (rng.uniform(size=shape) if name == "sigmoid" else rng.normal(size=shape)).astype(dtype)


def valid(lengths, losses):
    """The mask of an array (T, N, ...) by lengths."""
    mask = np.arange(6)[:, None] < (6 if lengths is None else np.asarray(lengths))
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


@every_loss
def test_out_has_the_same_bits_in_place_and_elsewhere(name):
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
    wide = np.repeat(problem(name)[0], 2, axis=-1)[..., ::2]
    assert_same_bits("gradient", LOSSES[name](wide, targets, lengths).gradient, expected.gradient)


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
@pytest.mark.parametrize(
    ("shape", "lengths"), [(SHAPE, (0, 0, 0, 0)), ((0, 4, 7), None), ((6, 0, 7), ()), ((0, 7), None)]
)
def test_loss_without_a_valid_entry_is_zero(name, shape, lengths):
    scores, targets = problem(name, shape=shape)
    loss, gradient, losses = LOSSES[name](scores, targets, lengths)
    assert loss == 0.0
    assert_same_bits("gradient", gradient, np.zeros(shape))
    assert_same_bits("losses", losses, np.zeros(targets.shape))


@every_loss
def test_any_number_of_dimensions_is_taken(name):
    scores, targets = problem(name, shape=(2, 3, 4, 5))
    expected = LOSSES[name](scores, targets)
    flat = LOSSES[name](scores.reshape(24, 5), targets.reshape(24, *targets.shape[3:]))
    assert flat.loss == expected.loss
    assert_same_bits("gradient", flat.gradient.reshape(scores.shape), expected.gradient)
    one = LOSSES[name](scores[0, 0, 0], np.asarray(targets[0, 0, 0]), count=24 if name == "softmax" else 120)
    assert_same_bits("gradient", one.gradient, expected.gradient[0, 0, 0])
    masked = LOSSES[name](scores, targets, [2, 1, 0])
    assert_same_bits("losses", masked.losses[:, 0], expected.losses[:, 0])
    assert not masked.losses[1:, 1:].any() and not masked.losses[:, 2].any()


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
def test_nan_and_infinity_stay_in_their_entry(name, bad):
    scores, targets = problem(name)
    expected = LOSSES[name](scores, targets)
    scores[2, 1, 3] = bad
    if name == "sigmoid":
        targets[2, 1, 3] = 0
    found = LOSSES[name](scores, targets)
    others = np.ones(SHAPE[:2], bool)
    others[2, 1] = False
    assert not np.isfinite(found.loss) and not np.isfinite(found.losses[2, 1]).all()
    assert_same_bits("losses", found.losses[others], expected.losses[others])
    assert_same_bits("gradient", found.gradient[others], expected.gradient[others])


@pytest.mark.parametrize("dtype", ["u1", "i4", "u8"])
def test_classes_are_of_any_integer_dtype(dtype):
    """An index into the scores exceeds a narrow one."""
    rng = np.random.default_rng(0)
    scores, targets = rng.normal(size=(300, 256)), rng.integers(256, size=300)
    found, expected = (softmax_cross_entropy(scores, one) for one in (targets.astype(dtype), targets))
    assert_same_bits("losses", found.losses, expected.losses)
    assert_same_bits("gradient", found.gradient, expected.gradient)


@pytest.mark.parametrize("dtype", [bool, "i1", "float16", "float64"])
def test_binary_targets_are_of_any_dtype(dtype):
    scores, _ = problem("sigmoid", "float32")
    targets = scores > 1
    found = sigmoid_cross_entropy(scores, targets.astype(dtype))
    assert found.gradient.dtype == np.float32
    assert_same_bits("gradient", found.gradient, sigmoid_cross_entropy(scores, targets.astype("f4")).gradient)


SCORES, CLASSES, BUFFER = np.zeros((4, 3, 5)), np.zeros((4, 3), int), np.zeros(65)
OVERLAPPING = {name: BUFFER[start:][:60].reshape(4, 3, 5) for name, start in (("scores", 0), ("out", 5))}
REFUSED = [
    (dict(scores=[[1.0]]), TypeError, "scores | numpy.ndarray | cupy.ndarray | list"),
    (dict(scores=SCORES.astype(int)), TypeError, "scores | float32 | float64 | int64"),
    (dict(scores=np.ma.array(SCORES)), TypeError, "scores | numpy.ndarray | numpy.ma.MaskedArray | mask"),
    (dict(targets=[[1.0]]), TypeError, "targets | numpy.ndarray | list"),
    (dict(targets=np.zeros((3, 4), int)), ValueError, "targets | (4, 3 | scores | (3, 4)"),
    (dict(lengths=[4, 5, 1]), ValueError, "lengths[1] | 0..seq_len=4 | 5"),
    (dict(lengths=[4, 1]), ValueError, "lengths | (batch_size=3,) | (2,)"),
    (dict(count=0), ValueError, "count | finite | 0"),
    (dict(count=np.inf), ValueError, "count | finite | 0 | inf"),
    (dict(count=1e-310), ValueError, "count | 1.1125369292536007e-308 | float64 | 1e-310"),
    (dict(count="1"), TypeError, "count | number | str"),
    (dict(out=[1.0]), TypeError, "out | numpy.ndarray | list"),
    (dict(out=np.zeros((4, 3, 6))), ValueError, "out | (4, 3, 5) | scores | (4, 3, 6)"),
    (OVERLAPPING, ValueError, "out | memory | scores"),
]


@every_loss
@pytest.mark.parametrize(("wrong", "error", "message"), REFUSED)
def test_wrong_argument_is_refused(name, wrong, error, message):
    values = {"scores": SCORES.copy(), "targets": CLASSES if name == "softmax" else SCORES.copy(), **wrong}
    argument, *facts = ("y" if name == "squared" and one == "scores" else one for one in message.split(" | "))
    with pytest.raises(error, match=says(f"{LOSSES[name].__name__}: {argument}", *facts)):
        LOSSES[name](values.pop("scores"), values.pop("targets"), **values)


@every_loss
def test_least_count_gives_finite_gradients(name):
    """Divided by less, a gradient of 0 would be 0 times infinity."""
    scores = np.array([[0, 200]], np.float32)
    targets = np.array([1]) if name == "softmax" else np.array([[0.5, 1]], np.float32)
    targets = scores.copy() if name == "squared" else targets
    expected = says(f"{LOSSES[name].__name__}: count", 5.877472104436075e-39, "float32", 5.8e-39)
    with pytest.raises(ValueError, match=expected):
        LOSSES[name](scores, targets, count=5.8e-39)
    assert np.isfinite(LOSSES[name](scores, targets, count=5.877472104436075e-39).gradient).all()


@pytest.mark.parametrize("name", ["sigmoid", "squared"])
def test_out_may_not_share_memory_with_targets(name):
    targets = np.zeros_like(SCORES)
    with pytest.raises(ValueError, match=says(f"{LOSSES[name].__name__}: out", "memory", "targets")):
        LOSSES[name](SCORES, targets, out=targets)


TARGETS = [
    ("softmax", SCORES, SCORES[..., 0], TypeError, "targets | integers | float64"),
    ("softmax", SCORES, CLASSES + 5, ValueError, "targets | 0..num_classes-1=4 | 5"),
    ("softmax", SCORES, CLASSES - 1, ValueError, "targets | 0..num_classes-1=4 | -1"),
    ("softmax", SCORES[..., :0], CLASSES, ValueError, "scores | (..., num_classes) | (4, 3, 0)"),
    ("softmax", np.array(1.0), CLASSES, ValueError, "scores | (..., num_classes) | ()"),
    ("sigmoid", SCORES, SCORES + 1.5, ValueError, "targets | 0..1 | 1.5"),
    ("sigmoid", SCORES, SCORES - 1, ValueError, "targets | 0..1 | -1.0"),
    ("sigmoid", SCORES, SCORES * np.nan, ValueError, "targets | 0..1 | nan"),
    ("sigmoid", SCORES, SCORES * 1j, TypeError, "targets | bools | integers | floats | complex128"),
    ("squared", SCORES, SCORES.astype("f4"), TypeError, "targets | float64 | y | float32"),
]


@pytest.mark.parametrize(("name", "scores", "targets", "error", "message"), TARGETS)
def test_refused_targets_leave_out_as_it_is(name, scores, targets, error, message):
    out = scores.copy()
    with raises(error, f"{LOSSES[name].__name__}: {message}"):
        LOSSES[name](scores, targets, out=out)
    assert_same_bits("out", out, scores)


def test_lengths_need_scores_with_steps():
    with pytest.raises(ValueError, match=says("softmax_cross_entropy: targets", "(seq_len, batch_size, ...)", (3,))):
        softmax_cross_entropy(np.zeros((3, 5)), np.zeros(3, int), [1, 1, 1])
