"""The optimizers: their equations, PyTorch's, resuming, several buffers, and everything that they refuse."""

import numpy as np
import pytest
from messages import says
from tolerances import assert_close, assert_same_bits

from rnnkit.training import SGD, Adam

DTYPES = ("float32", "float64")
OPTIMIZERS = {
    "adam": lambda w, **options: Adam(w, 0.9, 0.99, **options),
    "sgd": lambda w, **options: SGD(w, **options),
    "momentum": lambda w, **options: SGD(w, 0.9, **options),
    "nesterov": lambda w, **options: SGD(w, 0.9, nesterov=True, **options),
}
SIZES = (0, 1, 15, 16, 17, 31, 33, 64, 1000)
STEPS = 5


def problem(size, dtype="float64", seed=0):
    """Parameters, and the gradients of some steps."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=size).astype(dtype), rng.normal(size=(STEPS, size)).astype(dtype)


def rates():
    return 0.1 / np.arange(1, STEPS + 1)


def run(optimizer, gradients):
    for gradient, rate in zip(gradients, rates(), strict=True):
        optimizer.step(gradient, rate)


def adam_twin(w, gradients, beta1, beta2, epsilon, decay):
    """The equations of the two papers, one number at a time."""
    found = []
    for value, column in zip(w.tolist(), gradients.T.tolist(), strict=True):
        mean = square = 0.0
        for t, (g, rate) in enumerate(zip(column, rates(), strict=True), 1):
            mean = beta1 * mean + (1 - beta1) * g
            square = beta2 * square + (1 - beta2) * g**2
            value -= rate * decay * value
            value -= rate * mean / (1 - beta1**t) / ((square / (1 - beta2**t)) ** 0.5 + epsilon)
        found.append(value)
    return np.array(found)


def sgd_twin(w, gradients, momentum, nesterov, decay):
    found = []
    for value, column in zip(w.tolist(), gradients.T.tolist(), strict=True):
        velocity = 0.0
        for g, rate in zip(column, rates(), strict=True):
            velocity = momentum * velocity + g
            value -= rate * decay * value
            value -= rate * (g + momentum * velocity if nesterov else velocity)
        found.append(value)
    return np.array(found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_adam_equals_its_equations(size, dtype):
    w, gradients = problem(size, dtype)
    expected = adam_twin(w, gradients, 0.8, 0.95, 1e-2, 0.3)
    run(Adam(w, 0.8, 0.95, 1e-2, weight_decay=0.3), gradients)
    assert_close("w", w, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_equals_its_equations(size, momentum, nesterov, dtype):
    w, gradients = problem(size, dtype)
    expected = sgd_twin(w, gradients, momentum, nesterov, 0.3)
    run(SGD(w, momentum, nesterov, weight_decay=0.3), gradients)
    assert_close("w", w, expected, dtype)


def torch_run(w, gradients, make):
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.from_numpy(w.copy()))
    optimizer = make(torch.optim, [parameter])
    for gradient, rate in zip(gradients, rates(), strict=True):
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    return parameter.detach().numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("epsilon", [1e-8, 0.1])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adam_equals_pytorch(decay, epsilon, dtype):
    w, gradients = problem(100, dtype)
    options = {"betas": (0.9, 0.99), "eps": epsilon, "weight_decay": decay}
    expected = torch_run(w, gradients, lambda optim, parameters: optim.AdamW(parameters, **options))
    run(Adam(w, 0.9, 0.99, epsilon, decay), gradients)
    assert_close("w", w, expected, dtype)


def test_the_defaults_of_adam_are_pytorchs():
    w, gradients = problem(100)
    expected = torch_run(w, gradients, lambda optim, parameters: optim.Adam(parameters))
    run(Adam(w), gradients)
    assert_close("w", w, expected, "float64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_equals_pytorch(momentum, nesterov, dtype):
    w, gradients = problem(100, dtype)
    options = {"lr": 1.0, "momentum": momentum, "nesterov": nesterov}
    expected = torch_run(w, gradients, lambda optim, parameters: optim.SGD(parameters, **options))
    run(SGD(w, momentum, nesterov), gradients)
    assert_close("w", w, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resuming_is_bit_equal(name, dtype):
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
    assert first.state.keys() == straight.state.keys()
    for key, value in straight.state.items():
        assert_same_bits(key, first.state[key], value)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restored_state_is_copied(name):
    w, gradients = problem(10)
    optimizer = OPTIMIZERS[name](w)
    optimizer.step(gradients[0], 0.1)
    saved = optimizer.state
    optimizer.restore(saved)
    before = {key: value.copy() for key, value in saved.items()}
    optimizer.step(gradients[1], 0.1)
    for key, value in before.items():
        assert_same_bits(key, saved[key], value)


STATES = {
    "adam": {"mean": (10,), "square": (10,), "steps": ()},
    "sgd": {},
    "momentum": {"velocity": (10,)},
    "nesterov": {"velocity": (10,)},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_holds_what_must_be_saved_and_nothing_else(name):
    state = OPTIMIZERS[name](problem(10)[0]).state
    assert {key: value.shape for key, value in state.items()} == STATES[name]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_views_of_one_buffer_are_as_the_buffer(name):
    """And a state goes from the one to the other."""
    make = OPTIMIZERS[name]
    whole, gradients = problem(60)
    cut = whole.copy()
    parts = [cut[:10], cut[10:10], cut[10:40].reshape(5, 6), cut[40:]]
    straight, pieces = make(whole, weight_decay=0.1), make(parts, weight_decay=[0.1] * 4)
    for gradient in gradients:
        straight.step(gradient, 0.1)
        pieces.step([gradient[:10], gradient[10:10], gradient[10:40].reshape(5, 6), gradient[40:]], 0.1)
    assert_same_bits("w", cut, whole)
    straight.restore(pieces.state)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_decay_acts_on_its_own_array_alone(name):
    one, other = np.ones(3), np.ones(3)
    optimizer = OPTIMIZERS[name]([one, other], weight_decay=np.array([0.5, 0.0]))
    optimizer.step((np.zeros(3), np.zeros(3)), 0.1)
    assert_close("decayed", one, np.full(3, 0.95), "float64")
    assert_same_bits("kept", other, np.ones(3))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_gradient_is_not_changed(name):
    w, gradients = problem(100)
    before = gradients.copy()
    run(OPTIMIZERS[name](w), gradients)
    assert_same_bits("gradients", gradients, before)


READ_ONLY = np.ones(3)
READ_ONLY.flags.writeable = False
WHOLE = np.ones(6)
SINGLE = np.ones(6, np.float32)
CONSTRUCTED = [
    (Adam, ([],), {}, ValueError, "parameters", ["array", "none"]),
    (Adam, (3.0,), {}, TypeError, "parameters", ["numpy.ndarray", "cupy.ndarray", "sequence", "float"]),
    (SGD, ({"w": WHOLE},), {}, TypeError, "parameters", ["sequence", "dict"]),
    (SGD, ([WHOLE, 1.0],), {}, TypeError, "parameters[1]", ["numpy.ndarray", "cupy.ndarray", "float"]),
    (Adam, (WHOLE.astype("f2"),), {}, TypeError, "parameters", ["float32", "float64", "float16"]),
    (Adam, ([WHOLE, WHOLE.astype("f4")],), {}, TypeError, "parameters[1]", ["float64", "parameters[0]", "float32"]),
    (Adam, (WHOLE[::2],), {}, ValueError, "parameters", ["C-contiguous", (16,)]),
    (SGD, (READ_ONLY,), {}, ValueError, "parameters", ["writeable"]),
    (SGD, ([WHOLE[:4], WHOLE[3:]],), {}, ValueError, "parameters[1]", ["memory", "parameters[0]"]),
    (Adam, (WHOLE, 1.0), {}, ValueError, "beta1", ["0 <= beta1 < 1", 1.0]),
    (Adam, (WHOLE, 0.9, -0.1), {}, ValueError, "beta2", ["0 <= beta2 < 1", -0.1]),
    (Adam, (WHOLE, "0.9"), {}, TypeError, "beta1", ["number", "str"]),
    (Adam, (WHOLE,), {"epsilon": 0}, ValueError, "epsilon", ["finite", 0]),
    (Adam, (WHOLE,), {"epsilon": np.nan}, ValueError, "epsilon", ["finite", 0, "nan"]),
    (Adam, (WHOLE,), {"epsilon": 10**400}, ValueError, "epsilon", ["float64"]),
    (Adam, (SINGLE,), {"epsilon": 1e-60}, ValueError, "epsilon", ["4.4e-44", "float32", "beta2=0.999", "1e-60"]),
    (Adam, (SINGLE, 0.9, 0.0, 7e-46), {}, ValueError, "epsilon", ["1.4e-45", "float32", "beta2=0.0", "7e-46"]),
    (Adam, (WHOLE,), {"epsilon": 5e-324}, ValueError, "epsilon", ["1.6e-322", "float64", "beta2=0.999", "5e-324"]),
    (Adam, (WHOLE,), {"weight_decay": -1}, ValueError, "weight_decay", ["finite", 0, -1]),
    (SGD, (WHOLE,), {"weight_decay": np.inf}, ValueError, "weight_decay", ["finite", 0, "inf"]),
    (SGD, (WHOLE,), {"weight_decay": "1"}, TypeError, "weight_decay", ["number", "sequence", "str"]),
    (SGD, (WHOLE,), {"weight_decay": np.array(1.0)}, TypeError,
     "weight_decay", ["number", "sequence", "numpy.ndarray"]),
    (SGD, (WHOLE,), {"weight_decay": True}, TypeError, "weight_decay", ["number", "bool"]),
    (SGD, (WHOLE,), {"weight_decay": [1, 1]}, ValueError, "weight_decay", ["1 arrays", 2]),
    (SGD, (WHOLE,), {"weight_decay": 10**400}, ValueError, "weight_decay", ["float64"]),
    (SGD, ([WHOLE],), {"weight_decay": [-1]}, ValueError, "weight_decay[0]", ["finite", 0, -1]),
    (SGD, (WHOLE, 1), {}, ValueError, "momentum", ["0 <= momentum < 1", 1]),
    (SGD, (WHOLE, 0.5), {"nesterov": 1}, TypeError, "nesterov", ["bool", "int"]),
    (SGD, (WHOLE,), {"nesterov": True}, ValueError, "nesterov", ["False", "momentum=0", "True"]),
]


@pytest.mark.parametrize(("make", "arguments", "options", "error", "argument", "facts"), CONSTRUCTED)
def test_what_a_constructor_refuses(make, arguments, options, error, argument, facts):
    with pytest.raises(error, match=says(f"{make.__name__}: {argument}", *facts)):
        make(*arguments, **options)


STEPPED = [
    ([np.ones(3)], 0.1, ValueError, "gradients", ["2 arrays", "parameters", 1]),
    (np.ones(6), 0.1, ValueError, "gradients", ["2 arrays", "parameters", "one array"]),
    (3.0, 0.1, TypeError, "gradients", ["numpy.ndarray", "cupy.ndarray", "sequence", "float"]),
    ([np.ones(3), np.ones(4)], 0.1, ValueError, "gradients[1]", [(3,), (4,)]),
    ([np.ones(3, "f4")] * 2, 0.1, TypeError, "gradients[0]", ["float64", "float32"]),
    ([np.ones(3), np.ones(6)[::2]], 0.1, ValueError, "gradients[1]", ["C-contiguous", (16,)]),
    ([np.ones(3)] * 2, -0.1, ValueError, "learning_rate", ["finite", 0, -0.1]),
    ([np.ones(3)] * 2, np.nan, ValueError, "learning_rate", ["finite", 0, "nan"]),
    ([np.ones(3)] * 2, 10**400, ValueError, "learning_rate", ["float64"]),
    ([np.ones(3)] * 2, np.ones(1), TypeError, "learning_rate", ["number", "numpy.ndarray"]),
]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("gradients", "rate", "error", "argument", "facts"), STEPPED)
def test_what_a_step_refuses(name, gradients, rate, error, argument, facts):
    """And a refused step changes nothing."""
    parameters = np.ones(3), np.ones(3)
    optimizer = OPTIMIZERS[name](parameters)
    optimizer.step([np.ones(3)] * 2, 0.1)
    before = [w.copy() for w in parameters], optimizer.state
    with pytest.raises(error, match=says(f"step: {argument}", *facts)):
        optimizer.step(gradients, rate)
    for w, expected in zip(parameters, before[0], strict=True):
        assert_same_bits("w", w, expected)
    for key, value in before[1].items():
        assert_same_bits(key, optimizer.state[key], value)


def test_one_array_takes_no_sequence():
    with pytest.raises(ValueError, match=says("step: gradients", "one array", "parameters", "sequence of 1")):
        Adam(np.ones(3)).step([np.ones(3)], 0.1)


RESTORED = [
    (3, TypeError, "state", ["mapping", "int"]),
    ({}, ValueError, "state", ["['mean', 'square', 'steps']", "Adam", "[]"]),
    ({"velocity": np.ones(3)}, ValueError, "state", ["['mean', 'square', 'steps']", "Adam", "['velocity']"]),
    ({"mean": [1.0]}, TypeError, "state['mean']", ["numpy.ndarray", "list"]),
    ({"mean": np.ones(3, "f4")}, TypeError, "state['mean']", ["float64", "float32"]),
    ({"square": np.ones(4)}, ValueError, "state['square']", [(3,), (4,)]),
    ({"steps": np.array(1.0)}, TypeError, "state['steps']", ["int64", "float64"]),
    ({"steps": np.array(-1)}, ValueError, "state['steps']", [0, -1]),
]


@pytest.mark.parametrize(("wrong", "error", "argument", "facts"), RESTORED)
def test_what_restore_refuses(wrong, error, argument, facts):
    """And a refused state changes nothing."""
    optimizer = Adam(np.ones(3))
    optimizer.step(np.ones(3), 0.1)
    before = optimizer.state
    named = isinstance(wrong, dict) and wrong.keys() & before.keys()
    with pytest.raises(error, match=says(f"restore: {argument}", *facts)):
        optimizer.restore({**Adam(np.ones(3)).state, **wrong} if named else wrong)
    for key, value in before.items():
        assert_same_bits(key, optimizer.state[key], value)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("decay", [0.0, 2e10])
def test_a_rate_that_the_dtype_does_not_hold(name, decay):
    """What is infinite makes a NaN of a gradient, or of a parameter, that is 0."""
    w = np.zeros(3, np.float32)
    optimizer = OPTIMIZERS[name](w, weight_decay=decay)
    before, rate = optimizer.state, 1e30 if decay else 1e39
    with pytest.raises(ValueError, match=says("step: learning_rate", "float32", rate)):
        optimizer.step(np.zeros_like(w), rate)
    for key, value in before.items():
        assert_same_bits(key, optimizer.state[key], value)
    optimizer.step(np.zeros_like(w), 1e28 if decay else 3e38)
    assert (w == 0).all()


def test_the_least_epsilon_divides():
    w = np.zeros(3, np.float32)
    Adam(w, epsilon=4.4e-44).step(np.zeros_like(w), 0.1)
    assert (w == 0).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_gradient_that_is_no_number_makes_its_parameter_none(name):
    w = np.ones(40, np.float32)
    gradient = np.ones_like(w)
    gradient[7] = np.nan
    OPTIMIZERS[name](w).step(gradient, 0.1)
    assert np.flatnonzero(np.isnan(w)).tolist() == [7]
