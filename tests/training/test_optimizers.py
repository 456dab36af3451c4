"""The optimizers: their equations, PyTorch's, resuming, several buffers, and everything that they refuse."""

from functools import partial

import numpy as np
import pytest
from messages import raises, says
from optional import needs
from tolerances import assert_close, assert_same_bits

from rnnkit.training import SGD, Adam

OPTIMIZERS = {
    "adam": lambda w, **options: Adam(w, 0.8, 0.95, 1e-2, **options),
    "sgd": lambda w, **options: SGD(w, **options),
    "momentum": lambda w, **options: SGD(w, 0.9, **options),
    "nesterov": lambda w, **options: SGD(w, 0.9, nesterov=True, **options),
}
STEPS = 5
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def problem(size, dtype="float64", seed=0):
    """Parameters, and the gradients of some steps."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=size).astype(dtype), rng.normal(size=(STEPS, size)).astype(dtype)


def rates():
    return 0.1 / np.arange(1, STEPS + 1)


def run(optimizer, gradients):
    for gradient, rate in zip(gradients, rates(), strict=True):
        optimizer.step(gradient, rate)


def assert_same_state(actual, expected):
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert_same_bits(key, actual[key], value)


def adam_updates(gradients, beta1=0.8, beta2=0.95, epsilon=1e-2):
    """The equations of the paper, for one number."""
    mean = square = 0.0
    for t, g in enumerate(gradients, 1):
        mean = beta1 * mean + (1 - beta1) * g
        square = beta2 * square + (1 - beta2) * g**2
        yield mean / (1 - beta1**t) / ((square / (1 - beta2**t)) ** 0.5 + epsilon)


def sgd_updates(gradients, momentum=0.0, nesterov=False):
    velocity = 0.0
    for g in gradients:
        velocity = momentum * velocity + g
        yield g + momentum * velocity if nesterov else velocity


def twin(w, gradients, updates, decay):
    found = []
    for value, column in zip(w.tolist(), gradients.T.tolist(), strict=True):
        for rate, update in zip(rates(), updates(column), strict=True):
            value -= rate * decay * value
            value -= rate * update
        found.append(value)
    return np.array(found)


UPDATES = {
    "adam": adam_updates,
    "sgd": sgd_updates,
    "momentum": partial(sgd_updates, momentum=0.9),
    "nesterov": partial(sgd_updates, momentum=0.9, nesterov=True),
}


@every_dtype
@pytest.mark.parametrize("size", (0, 1, 15, 16, 17, 31, 33, 64, 1000))
@pytest.mark.parametrize("name", UPDATES)
def test_steps_equal_the_equations(name, size, dtype):
    w, gradients = problem(size, dtype)
    expected, before = twin(w, gradients, UPDATES[name], 0.3), gradients.copy()
    run(OPTIMIZERS[name](w, weight_decay=0.3), gradients)
    assert_close("w", w, expected, dtype)
    assert_same_bits("gradients", gradients, before)


PYTORCH = [
    (Adam, (), "Adam", {}),
    (Adam, (0.9, 0.99, 0.1, 0.3), "AdamW", dict(betas=(0.9, 0.99), eps=0.1, weight_decay=0.3)),
    (SGD, (0.0, False), "SGD", {"lr": 1.0}),
    (SGD, (0.9, False), "SGD", {"lr": 1.0, "momentum": 0.9}),
    (SGD, (0.9, True), "SGD", {"lr": 1.0, "momentum": 0.9, "nesterov": True}),
]


@every_dtype
@pytest.mark.parametrize(("make", "arguments", "theirs", "options"), PYTORCH)
def test_steps_equal_pytorch(make, arguments, theirs, options, dtype):
    torch = needs("torch")
    w, gradients = problem(100, dtype)
    parameter = torch.nn.Parameter(torch.from_numpy(w.copy()))
    optimizer = getattr(torch.optim, theirs)([parameter], **options)
    for gradient, rate in zip(gradients, rates(), strict=True):
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    run(make(w, *arguments), gradients)
    assert_close("w", w, parameter.detach().numpy(), dtype)


STATES = {
    "adam": {"mean": (1001,), "square": (1001,), "steps": ()},
    "sgd": {},
    "momentum": {"velocity": (1001,)},
    "nesterov": {"velocity": (1001,)},
}


@every_dtype
@every_optimizer
def test_resumed_training_is_bit_identical(name, dtype):
    make = OPTIMIZERS[name]
    whole, gradients = problem(1001, dtype)
    w = whole.copy()
    first, straight = make(w, weight_decay=0.1), make(whole, weight_decay=0.1)
    for number in range(STEPS):
        straight.step(gradients[number], 0.01)
        first.step(gradients[number], 0.01)
        saved, w = first.state, w.copy()
        first.step(gradients[0], 1.0)  # what was saved does not change any more
        first = make(w, weight_decay=0.1)
        first.restore(saved)
    assert_same_bits("w", w, whole)
    assert_same_state(first.state, straight.state)
    first.step(gradients[0], 1.0)  # nor does what was restored
    assert_same_state(saved, straight.state)
    assert {key: value.shape for key, value in saved.items()} == STATES[name]


@every_optimizer
def test_views_of_a_buffer_are_as_the_buffer(name):
    """And a state goes from the one to the other."""
    make = OPTIMIZERS[name]
    whole, gradients = problem(60)
    cut = whole.copy()

    def parts(array):
        return [array[:10], array[10:10], array[10:40].reshape(5, 6), array[40:]]

    straight, pieces = make(whole, weight_decay=0.1), make(parts(cut), weight_decay=[0.1] * 4)
    for gradient in gradients:
        straight.step(gradient, 0.1)
        pieces.step(parts(gradient), 0.1)
    assert_same_bits("w", cut, whole)
    straight.restore(pieces.state)


@every_optimizer
def test_decay_acts_on_its_own_array_alone(name):
    one, other = np.ones(3), np.ones(3)
    optimizer = OPTIMIZERS[name]([one, other], weight_decay=np.array([0.5, 0.0]))
    optimizer.step((np.zeros(3), np.zeros(3)), 0.1)
    assert_close("decayed", one, np.full(3, 0.95), "float64")
    assert_same_bits("kept", other, np.ones(3))


WHOLE, SINGLE, SCALAR = np.ones(6), np.ones(6, np.float32), np.array(1.0)
CONSTRUCTED = [
    (lambda: Adam([]), ValueError, "Adam: parameters | array | none"),
    (lambda: Adam(3.0), TypeError, "Adam: parameters | numpy.ndarray | cupy.ndarray | sequence | float"),
    (lambda: SGD([WHOLE[:4], WHOLE[3:]]), ValueError, "SGD: parameters[1] | memory | parameters[0]"),
    (lambda: Adam(WHOLE, 1.0), ValueError, "Adam: beta1 | 0 <= beta1 < 1 | 1.0"),
    (lambda: Adam(WHOLE, 0.9, -0.1), ValueError, "Adam: beta2 | 0 <= beta2 < 1 | -0.1"),
    (lambda: Adam(WHOLE, epsilon=0), ValueError, "Adam: epsilon | finite | 0"),
    (lambda: Adam(WHOLE, epsilon=np.nan), ValueError, "Adam: epsilon | finite | 0 | nan"),
    (lambda: Adam(SINGLE, epsilon=1e-60), ValueError, "Adam: epsilon | 4.4e-44 | float32 | beta2=0.999 | 1e-60"),
    (lambda: Adam(SINGLE, 0.9, 0.0, 7e-46), ValueError, "Adam: epsilon | 1.4e-45 | float32 | beta2=0.0 | 7e-46"),
    (lambda: Adam(WHOLE, epsilon=5e-324), ValueError, "Adam: epsilon | 1.6e-322 | float64 | beta2=0.999 | 5e-324"),
    (lambda: Adam(WHOLE, weight_decay=-1), ValueError, "Adam: weight_decay | finite | 0 | -1"),
    (lambda: SGD(WHOLE, weight_decay=np.inf), ValueError, "SGD: weight_decay | finite | 0 | inf"),
    (lambda: SGD(WHOLE, weight_decay="1"), TypeError, "SGD: weight_decay | number | sequence | str"),
    (lambda: SGD(WHOLE, weight_decay=SCALAR), TypeError, "SGD: weight_decay | number | sequence | numpy.ndarray"),
    (lambda: SGD(WHOLE, weight_decay=[1, 1]), ValueError, "SGD: weight_decay | 1 arrays | 2"),
    (lambda: SGD([WHOLE], weight_decay=[-1]), ValueError, "SGD: weight_decay[0] | finite | 0 | -1"),
    (lambda: SGD(WHOLE, 1), ValueError, "SGD: momentum | 0 <= momentum < 1 | 1"),
    (lambda: SGD(WHOLE, 0.5, nesterov=1), TypeError, "SGD: nesterov | bool | int"),
    (lambda: SGD(WHOLE, nesterov=True), ValueError, "SGD: nesterov | False | momentum=0 | True"),
    (lambda: Adam(WHOLE).step([WHOLE], 0.1), ValueError, "step: gradients | one array | parameters | sequence of 1"),
]


@pytest.mark.parametrize(("call", "error", "message"), CONSTRUCTED)
def test_wrong_constructor_argument_is_refused(call, error, message):
    with raises(error, message):
        call()


ONES = np.ones(3)
STEPPED = [
    ([ONES], 0.1, ValueError, "gradients | 2 arrays | parameters | 1"),
    (np.ones(6), 0.1, ValueError, "gradients | 2 arrays | parameters | one array"),
    ([ONES, np.ones(4)], 0.1, ValueError, "gradients[1] | (3,) | (4,)"),
    ([np.ones(3, "f4")] * 2, 0.1, TypeError, "gradients[0] | float64 | float32"),
    ([ONES, np.ones(6)[::2]], 0.1, ValueError, "gradients[1] | C-contiguous | (16,)"),
    ([ONES] * 2, -0.1, ValueError, "learning_rate | finite | 0 | -0.1"),
    ([ONES] * 2, np.nan, ValueError, "learning_rate | finite | 0 | nan"),
    ([ONES] * 2, np.ones(1), TypeError, "learning_rate | number | numpy.ndarray"),
]


@every_optimizer
@pytest.mark.parametrize(("gradients", "rate", "error", "message"), STEPPED)
def test_refused_step_changes_nothing(name, gradients, rate, error, message):
    parameters = np.ones(3), np.ones(3)
    optimizer = OPTIMIZERS[name](parameters)
    optimizer.step([ONES] * 2, 0.1)
    before, state = [w.copy() for w in parameters], optimizer.state
    with raises(error, f"step: {message}"):
        optimizer.step(gradients, rate)
    for w, expected in zip(parameters, before, strict=True):
        assert_same_bits("w", w, expected)
    assert_same_state(optimizer.state, state)


RESTORED = [
    (3, TypeError, "state | mapping | int"),
    ({}, ValueError, "state | ['mean', 'square', 'steps'] | Adam | []"),
    ({"velocity": np.ones(3)}, ValueError, "state | ['mean', 'square', 'steps'] | Adam | ['velocity']"),
    ({"mean": [1.0]}, TypeError, "state['mean'] | numpy.ndarray | list"),
    ({"mean": np.ones(3, "f4")}, TypeError, "state['mean'] | float64 | float32"),
    ({"square": np.ones(4)}, ValueError, "state['square'] | (3,) | (4,)"),
    ({"steps": np.array(1.0)}, TypeError, "state['steps'] | int64 | float64"),
    ({"steps": np.array(-1)}, ValueError, "state['steps'] | 0 | -1"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), RESTORED)
def test_refused_restore_changes_nothing(wrong, error, message):
    optimizer = Adam(np.ones(3))
    optimizer.step(np.ones(3), 0.1)
    before = optimizer.state
    named = isinstance(wrong, dict) and wrong.keys() & before.keys()
    with raises(error, f"restore: {message}"):
        optimizer.restore({**Adam(np.ones(3)).state, **wrong} if named else wrong)
    assert_same_state(optimizer.state, before)


@every_optimizer
@pytest.mark.parametrize("decay", [0.0, 2e10])
def test_rate_beyond_the_dtype_is_refused(name, decay):
    """What is infinite makes a NaN of a gradient, or of a parameter, that is 0."""
    w = np.zeros(3, np.float32)
    optimizer = OPTIMIZERS[name](w, weight_decay=decay)
    before, rate = optimizer.state, 1e30 if decay else 1e39
    with pytest.raises(ValueError, match=says("step: learning_rate", "float32", rate)):
        optimizer.step(np.zeros_like(w), rate)
    assert_same_state(optimizer.state, before)
    optimizer.step(np.zeros_like(w), 1e28 if decay else 3e38)
    assert (w == 0).all()


def test_least_epsilon_divides():
    w = np.zeros(3, np.float32)
    Adam(w, epsilon=4.4e-44).step(np.zeros_like(w), 0.1)
    assert (w == 0).all()


@every_optimizer
def test_nan_in_a_gradient_stays_in_its_parameter(name):
    w = np.ones(40, np.float32)
    gradient = np.ones_like(w)
    gradient[7] = np.nan
    OPTIMIZERS[name](w).step(gradient, 0.1)
    assert np.flatnonzero(np.isnan(w)).tolist() == [7]
