"""Every wrong argument of a call on streams is refused by name, and changes nothing."""

import numpy as np
import pytest
from messages import raises
from numpy.lib.stride_tricks import as_strided
from streams import drawn, plan_of
from tolerances import assert_same_bits

OUT, X = np.zeros(40, np.float32), np.zeros((4, 3), np.float32)
HOST, INDEX = "rows | None | integer array | host", "0..num_streams-1=3"
ROWS = [
    (3, TypeError, f"{HOST} | int"),
    ("0", TypeError, f"{HOST} | str"),
    ({0, 1}, TypeError, f"{HOST} | set"),
    (np.ma.array([0, 1], mask=[0, 1]), TypeError, f"{HOST} | numpy.ma.MaskedArray"),
    ([0.0, 1.0], TypeError, "rows | integers | mask | float64"),
    ([0, None], TypeError, "rows | integers | mask | object"),
    ([[0], [1, 2]], TypeError, "rows | integers | mask"),
    (np.array(2), ValueError, "rows | (number of rows,) | ()"),
    ([[0, 1]], ValueError, "rows | (number of rows,) | (1, 2)"),
    ([True, False], ValueError, "rows | (num_streams=4,) | (2,)"),
    ([0, 4], ValueError, f"rows[1] | {INDEX} | 4"),
    ([0, -1], ValueError, f"rows[1] | {INDEX} | -1"),
    (np.array([2**63, 0], np.uint64), ValueError, f"rows[0] | {INDEX} | 9223372036854775808"),
    ([2, 0, 1, 0], ValueError, "rows | 0 | 1 | 3"),
]
SHAPE = "x | (num_streams=4, input_size=3)"
STEPPED = [
    (dict(x=[[1.0] * 3] * 4), TypeError, "x | numpy.ndarray | list"),
    (dict(x=X.astype("f8")), TypeError, "x | float32 | float64"),
    (dict(x=X[:3]), ValueError, f"{SHAPE} | (3, 3)"),
    (dict(x=X[None]), ValueError, f"{SHAPE} | (1, 4, 3)"),
    (dict(x=X, rows=[1, 0]), ValueError, "x | (number of rows=2, input_size=3) | (4, 3)"),
    (dict(x=X, rows=X[:, 0] > 0), ValueError, "x | (number of rows=0, input_size=3) | (4, 3)"),
    (dict(x=X, out=[0.0]), TypeError, "out | numpy.ndarray | list"),
    (dict(x=X, out=np.zeros((4, 5))), TypeError, "out | float32 | float64"),
    (dict(x=X, out=X), ValueError, "out | (num_streams=4, hidden_size=5) | (4, 3)"),
    (dict(x=X, out=np.broadcast_to(X[:, :1], (4, 5))), ValueError, "out | writeable"),
    (dict(x=X, out=as_strided(OUT[10:], (4, 5), (20, -8))), ValueError, "out | memory | (20, -8)"),
    *(
        (dict(x=X, out=as_strided(OUT, (4, 5), strides)), ValueError, f"out | memory | {strides}")
        for strides in ((0, 4), (4, 4), (16, 4))
    ),
]
RUN = [
    (dict(x=X), ValueError, "x | (seq_len, num_streams=4, input_size=3) | (4, 3)"),
    (dict(x=X[None], rows=[0]), ValueError, "x | (seq_len, number of rows=1, input_size=3) | (1, 4, 3)"),
    (dict(x=X[None].astype("f8")), TypeError, "x | float32 | float64"),
    (dict(x=X[None], lengths=[1]), ValueError, "lengths | (batch_size=4,) | (1,)"),
    (dict(x=X[None], lengths=[1, 0, 2, 1]), ValueError, "lengths[2] | 0..seq_len=1 | 2"),
]
HX = CX = np.zeros((2, 4, 5), np.float32)
STATE = "(num_layers=2, num_streams=4, hidden_size=5)"
RESTORED = [
    (3, TypeError, "state | mapping | int"),
    (dict(hx=HX), ValueError, "state | ['cx', 'hx'] | ['hx']"),
    (dict(hx=HX, cx=CX, dx=CX), ValueError, "state | ['cx', 'hx'] | ['cx', 'dx', 'hx']"),
    (dict(hx=HX, cx=[0.0]), TypeError, "state['cx'] | numpy.ndarray | list"),
    (dict(hx=HX, cx=CX.astype("f8")), TypeError, "state['cx'] | float32 | float64"),
    (dict(hx=HX, cx=CX[:, :3]), ValueError, f"state['cx'] | {STATE} | (2, 3, 5)"),
    (dict(hx=HX[:1], cx=CX), ValueError, f"state['hx'] | {STATE} | (1, 4, 5)"),
]
REFUSED = [("step", *each) for each in STEPPED] + [("run", *each) for each in RUN]
REFUSED += [("restore", dict(state=state), *each) for state, *each in RESTORED]
for function, given in (("step", dict(x=X)), ("run", dict(x=X[None])), ("reset", {})):
    REFUSED += [(function, given | dict(rows=rows), *each) for rows, *each in ROWS]


@pytest.mark.parametrize(("function", "arguments", "error", "text"), REFUSED)
def test_refused_call_on_streams_changes_nothing(function, arguments, error, text):
    plan = plan_of()
    x, stream = drawn(plan.desc, 6, 4), plan.stream(4)
    stream.run(x[:3])
    before = stream.state
    with raises(error, f"{function}: {text}"):
        getattr(stream, function)(**arguments)
    for name, array in before.items():
        assert_same_bits(name, stream.state[name], array)
    assert_same_bits("y", stream.run(x[3:]), plan.infer(x).y[3:])


def test_shapes_with_a_projection_are_refused_by_proj_size():
    stream = plan_of(proj_size=2).stream(4)
    with raises(ValueError, "restore: state['hx'] | (num_layers=2, num_streams=4, proj_size=2) | (2, 4, 5)"):
        stream.restore(dict(hx=HX, cx=CX))
    with raises(ValueError, "step: out | (num_streams=4, proj_size=2) | (4, 5)"):
        stream.step(X, out=np.zeros((4, 5), np.float32))


NUMBERS = [
    (2.0, TypeError, "int | float"),
    (True, TypeError, "int | bool"),
    (None, TypeError, "int | NoneType"),
    (0, ValueError, "1 | 0"),
    (-3, ValueError, "1 | -3"),
    (10**20, ValueError, "2147483647 | 100000000000000000000"),
]


@pytest.mark.parametrize(("number", "error", "text"), NUMBERS)
def test_wrong_number_of_streams_is_refused(number, error, text):
    with raises(error, f"stream: num_streams | {text}"):
        plan_of().stream(number)
