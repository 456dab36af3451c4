"""Every wrong argument of a call on streams is refused by name, and changes nothing."""

import re

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from test_stream import drawn, plan_of
from tolerances import assert_same_bits

OUT = np.zeros(40, np.float32)
X, HOST = np.zeros((4, 3), np.float32), "None or an integer array on the host"
ROWS = [
    (3, TypeError, f"rows must be {HOST}, got int"),
    ("0", TypeError, f"rows must be {HOST}, got str"),
    ({0, 1}, TypeError, f"rows must be {HOST}, got set"),
    (np.ma.array([0, 1], mask=[0, 1]), TypeError, f"rows must be {HOST}, got numpy.ma.MaskedArray"),
    ([0.0, 1.0], TypeError, "rows must hold integers, or be a mask of booleans, got dtype float64"),
    ([0, None], TypeError, "rows must hold integers, or be a mask of booleans, got dtype object"),
    ([[0], [1, 2]], TypeError, "rows must hold integers, or be a mask of booleans, got what is no array"),
    (np.array(2), ValueError, "rows must have shape (number of rows,), got ()"),
    ([[0, 1]], ValueError, "rows must have shape (number of rows,), got (1, 2)"),
    ([True, False], ValueError, "rows must have shape (num_streams=4,), got (2,)"),
    ([0, 4], ValueError, "rows[1] must be in 0..num_streams-1=3, got 4"),
    ([0, -1], ValueError, "rows[1] must be in 0..num_streams-1=3, got -1"),
    (np.array([2**63, 0], np.uint64), ValueError, "rows[0] must be in 0..num_streams-1=3, got 9223372036854775808"),
    ([2, 0, 1, 0], ValueError, "rows must name no stream twice, got 0 at 1 and at 3"),
]
STEPPED = [
    (dict(x=[[1.0] * 3] * 4), TypeError, "x must be a numpy.ndarray, got list"),
    (dict(x=X.astype("f8")), TypeError, "x must be float32 as the descriptor says, got float64"),
    (dict(x=X[:3]), ValueError, "x must have shape (num_streams=4, input_size=3), got (3, 3)"),
    (dict(x=X[None]), ValueError, "x must have shape (num_streams=4, input_size=3), got (1, 4, 3)"),
    (dict(x=X, rows=[1, 0]), ValueError, "x must have shape (number of rows=2, input_size=3), got (4, 3)"),
    (dict(x=X, rows=X[:, 0] > 0), ValueError, "x must have shape (number of rows=0, input_size=3), got (4, 3)"),
    (dict(x=X, out=[0.0]), TypeError, "out must be a numpy.ndarray, got list"),
    (dict(x=X, out=np.zeros((4, 5))), TypeError, "out must be float32 as the descriptor says, got float64"),
    (dict(x=X, out=X), ValueError, "out must have shape (num_streams=4, hidden_size=5), got (4, 3)"),
    (dict(x=X, out=np.broadcast_to(X[:, :1], (4, 5))), ValueError, "out must be writeable, got a read-only array"),
    (dict(x=X, out=as_strided(OUT, (4, 5), (0, 4))), ValueError,
     "out must have memory of its own for each element, got strides (0, 4)"),
    (dict(x=X, out=as_strided(OUT, (4, 5), (4, 4))), ValueError, "out must have memory of its own for each element, "),
    (dict(x=X, out=as_strided(OUT, (4, 5), (16, 4))), ValueError, "out must have memory of its own for each element, "),
    (dict(x=X, out=as_strided(OUT[10:], (4, 5), (20, -8))), ValueError, "out must have memory of its own for each ele"),
    *((dict(x=X, rows=rows), error, text) for rows, error, text in ROWS),
]
RUN = [
    (dict(x=X), ValueError, "x must have shape (seq_len, num_streams=4, input_size=3), got (4, 3)"),
    (dict(x=X[None], rows=[0]), ValueError,
     "x must have shape (seq_len, number of rows=1, input_size=3), got (1, 4, 3)"),
    (dict(x=X[None].astype("f8")), TypeError, "x must be float32 as the descriptor says, got float64"),
    (dict(x=X[None], lengths=[1]), ValueError, "lengths must have shape (batch_size=4,), got (1,)"),
    (dict(x=X[None], lengths=[1, 0, 2, 1]), ValueError, "lengths[2] must be in 0..seq_len=1, got 2"),
    *((dict(x=X[None], rows=rows), error, text) for rows, error, text in ROWS),
]
HX, CX = np.zeros((2, 4, 5), np.float32), np.zeros((2, 4, 5), np.float32)
RESTORED = [
    (dict(state=3), TypeError, "state must be a mapping of names to arrays, got int"),
    (dict(state=dict(hx=HX)), ValueError, "state must hold ['cx', 'hx'] as the network says, got ['hx']"),
    (dict(state=dict(hx=HX, cx=CX, dx=CX)), ValueError,
     "state must hold ['cx', 'hx'] as the network says, got ['cx', 'dx', 'hx']"),
    (dict(state=dict(hx=HX, cx=[0.0])), TypeError, "state['cx'] must be a numpy.ndarray, got list"),
    (dict(state=dict(hx=HX, cx=CX.astype("f8"))), TypeError,
     "state['cx'] must be float32 as the descriptor says, got float64"),
    (dict(state=dict(hx=HX, cx=CX[:, :3])), ValueError,
     "state['cx'] must have shape (num_layers=2, num_streams=4, hidden_size=5), got (2, 3, 5)"),
    (dict(state=dict(hx=HX[:1], cx=CX)), ValueError,
     "state['hx'] must have shape (num_layers=2, num_streams=4, hidden_size=5), got (1, 4, 5)"),
]
REFUSED = [("step", *each) for each in STEPPED] + [("run", *each) for each in RUN]
REFUSED += [("restore", *each) for each in RESTORED] + [("reset", dict(rows=rows), *each) for rows, *each in ROWS]


@pytest.mark.parametrize(("function", "arguments", "error", "text"), REFUSED)
def test_what_is_refused_changes_nothing(function, arguments, error, text):
    plan = plan_of()
    x, stream = drawn(plan.desc, 6, 4), plan.stream(4)
    stream.run(x[:3])
    before = stream.state
    with pytest.raises(error, match=rf"\A{function}: {re.escape(text)}"):
        getattr(stream, function)(**arguments)
    for name, array in before.items():
        assert_same_bits(name, stream.state[name], array)
    assert_same_bits("y", stream.run(x[3:]), plan.infer(x).y[3:])


def test_a_projected_state_is_refused_by_its_size():
    stream = plan_of(proj_size=2).stream(4)
    with pytest.raises(ValueError, match=r"state\['hx'\] must have shape \(num_layers=2, num_streams=4, proj_size=2\)"):
        stream.restore(dict(hx=HX, cx=CX))
    with pytest.raises(ValueError, match=r"step: out must have shape \(num_streams=4, proj_size=2\), got \(4, 5\)"):
        stream.step(X, out=np.zeros((4, 5), np.float32))


@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        (2.0, TypeError, "num_streams must be an int, got float"),
        (True, TypeError, "num_streams must be an int, got bool"),
        (None, TypeError, "num_streams must be an int, got NoneType"),
        (0, ValueError, "num_streams must be at least 1, got 0"),
        (-3, ValueError, "num_streams must be at least 1, got -3"),
        (10**20, ValueError, "num_streams must be at most 2147483647, got 100000000000000000000"),
    ],
)
def test_a_number_of_streams_that_is_refused(number, error, text):
    with pytest.raises(error, match=rf"\Astream: {re.escape(text)}\Z"):
        plan_of().stream(number)


@pytest.mark.parametrize("rows", [None, [2], []])
def test_every_view_with_memory_for_each_element_is_written(rows):
    plan, room = plan_of(), np.zeros((5, 8, 2), np.float32)
    count = 4 if rows is None else len(rows)
    x = drawn(plan.desc, 1, count)[0]
    expected = plan.stream(4).step(x, rows=rows)
    for out in (room[:, ::2, 0].T, room[::-1, ::-2, 1].T, as_strided(room, (4, 5), (4, 16))):
        assert np.array_equal(plan.stream(4).step(x, rows=rows, out=out[:count]), expected)


def test_two_directions_have_no_streams():
    with pytest.raises(ValueError, match=r"\Astream: desc.bidirectional must be False, got True; the reverse dir"):
        plan_of(bidirectional=True).stream(4)
