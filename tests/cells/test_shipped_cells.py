"""Cells that no mode names, shipped and users' own: values, gradients and bits, and the laws every network keeps."""

import json
import re

import numba
import numpy as np
import pytest
from gradcheck import assert_gradients
from messages import raises, says
from several_states import assert_same
from shipped_networks import KINDS, LENGTHS, OWN, SIZES, Network, arrays_of, as_given, cases, whole_heads
from tolerances import GRADIENTS, OUTPUTS, assert_close, assert_gradient_close, assert_same_bits

import rnnkit
from rnnkit import cells
from rnnkit.descriptor.saved import descriptor_json, descriptor_of

in_each_dtype = pytest.mark.parametrize(("kind", "dtype"), cases())
in_float64 = pytest.mark.parametrize("kind", cases(["float64"]))


@pytest.fixture(params=SIZES)
def size(request):
    return request.param


def columns(result, rows, time=slice(None)):
    """Those of some sequences, and some steps."""
    cut = {name: getattr(result, name)[time, rows] for name in ("y", "dx") if hasattr(result, name)}
    for name in ("hy", "dhx"):
        cut |= {name: getattr(result, name)[:, rows]} if hasattr(result, name) else {}
    for name in ("cy", "dcx"):
        cut |= {name: as_given([one[:, rows] for one in arrays_of(getattr(result, name, None))])}
    return type(result)(**{name: cut.get(name) for name in result._fields})


# Values and gradients


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", (KINDS | OWN).values(), ids=KINDS | OWN)
def test_gradients_of_the_equations_are_right(kind, seed):
    assert all(row.right for row in rnnkit.check_cell(kind, seed))


@in_each_dtype
def test_values_equal_the_twin(kind, size, dtype):
    net = Network(kind, size, dtype)
    y, hy, states = net.reference()
    found = net.forward()
    assert_close("y", found.y, y, dtype)
    assert_close("hy", found.hy, hy, dtype)
    for name, ours, expected in zip(net.desc.states, arrays_of(found.cy), states, strict=True):
        assert_close(name, ours, expected, dtype)


@in_float64
def test_gradients_equal_central_differences(kind, size):
    net = Network(kind, size)
    names = [f"state {name}" for name in net.desc.states]

    def run(blocks):
        net.w = rnnkit.pack_weights(net.desc, {key: blocks[key] for key in rnnkit.weight_views(net.desc, net.w)})
        net.x, net.hx, net.states = blocks["x"], blocks["hx"], [blocks[name] for name in names]
        return net.forward()

    def loss(blocks):
        found = run(blocks)
        ends = zip(arrays_of(found.cy), net.dstates, strict=True)
        return float((found.y * net.dy).sum() + (found.hy * net.dhy).sum() + sum((c * d).sum() for c, d in ends))

    def gradients(blocks):
        dx, dhx, dcx, dw = net.backward(run(blocks).workspace)
        return {"x": dx, "hx": dhx} | dict(zip(names, arrays_of(dcx), strict=True)) | rnnkit.weight_views(net.desc, dw)

    given = {"x": net.x, "hx": net.hx} | dict(zip(names, net.states, strict=True))
    assert_gradients(loss, gradients, given | rnnkit.weight_views(net.desc, net.w), seed=5)


# Bits


@in_each_dtype
def test_every_way_to_run_has_the_same_bits(kind, size, dtype):
    net = Network(kind, size, dtype)
    expected = net.forward()
    gradients, plan = net.backward(expected.workspace), rnnkit.prepare(net.desc, net.w)
    assert_same(plan.infer(net.x, net.hx, as_given(net.states), lengths=LENGTHS), expected, OUTPUTS)
    kept = net.forward(checkpoint_steps=2)
    assert_same(kept, expected, OUTPUTS)
    assert_same(net.backward(kept.workspace), gradients)
    again = net.forward(workspace=kept.workspace)
    assert_same(again, expected, OUTPUTS)
    assert_same(net.backward(again.workspace), gradients)
    if not net.desc.bidirectional:
        whole, hx, cx = plan.infer(net.x, net.hx, as_given(net.states)), net.hx, as_given(net.states)
        for row, values in zip(net.x, whole.y, strict=True):
            found, hx, cx = plan.step(row, hx, cx)
            assert_same_bits("y", found, values)
        assert_same(rnnkit.Infer(whole.y, hx, cx), whole)


@pytest.mark.cores(2)
@in_float64
@pytest.mark.usefixtures("threads_as_before")
def test_threads_change_no_bit(kind):
    results, x = [], np.random.default_rng(0).normal(size=(40, 9, 16))
    desc = rnnkit.RNNDescriptor(kind, 16, whole_heads(kind, 70), 2, True, dtype="float64")
    w = rnnkit.init_weights(desc, 0)
    for threads in (1, 2):
        numba.set_num_threads(threads)
        found = rnnkit.forward(desc, w, x)
        results.append((found, rnnkit.backward(desc, w, found.workspace, found.y)))
    assert_same(results[0][0], results[1][0])
    assert_same(results[0][1], results[1][1])


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activations", [(), (cells.Sigmoid(), cells.Tanh(), cells.Tanh())])
def test_activated_lstm_has_the_bits_of_the_built_in_one(dtype, activations):
    net = Network(cells.ActivatedLSTM(*activations), "stack", dtype)
    found = net.forward()
    gradients = net.backward(found.workspace)
    net.desc = rnnkit.RNNDescriptor("lstm", 3, 17, 2, dtype=dtype)
    expected = net.forward()
    assert_same(found, expected)
    assert_same(gradients, net.backward(expected.workspace))


# Laws


@in_each_dtype
def test_batch_equals_its_sequences(kind, dtype):
    net = Network(kind, "two-directions", dtype)
    found, dw = net.forward(), np.zeros(net.w.shape)
    gradients = net.backward(found.workspace)
    for row, length in enumerate(LENGTHS):
        alone = net.rows(slice(row, row + 1), slice(length))
        own = alone.forward()
        back = alone.backward(own.workspace)
        assert_same(columns(found, slice(row, row + 1), slice(length)), own)
        assert_same(columns(gradients, slice(row, row + 1), slice(length)), back, GRADIENTS[:3])
        assert not found.y[length:, row].any() and not gradients.dx[length:, row].any()
        dw += back.dw
    assert_gradient_close("dw", gradients.dw, dw, dtype)


@in_each_dtype
@pytest.mark.parametrize("cut", [1, 4])
def test_chunks_with_carried_state_equal_one_run(kind, dtype, cut):
    net = Network(kind, "stack", dtype, lengths=None)
    whole = net.forward()
    gradients = net.backward(whole.workspace)
    early, late = net.rows(slice(None), slice(cut)), net.rows(slice(None), slice(cut, None))
    first = early.forward()
    late.hx, late.states = first.hy, arrays_of(first.cy)
    second = late.forward()
    back = late.backward(second.workspace)
    early.dhy, early.dstates = back.dhx, arrays_of(back.dcx)
    front = early.backward(first.workspace)
    assert_same_bits("y", np.concatenate([first.y, second.y]), whole.y)
    assert_same(second, whole, ("hy", "cy"))
    assert_gradient_close("dx", np.concatenate([front.dx, back.dx]), gradients.dx, dtype)
    assert_gradient_close("dw", front.dw + back.dw, gradients.dw, dtype)
    states = ([one.dhx, *arrays_of(one.dcx)] for one in (front, gradients))
    for ours, expected in zip(*states, strict=True):
        assert_gradient_close("of the states", ours, expected, dtype)


@in_each_dtype
def test_missing_state_is_zeros(kind, dtype):
    absent, zeros = (Network(kind, "two-directions", dtype) for _ in range(2))
    absent.hx, absent.states = None, []
    zeros.hx, zeros.states = np.zeros_like(zeros.hx), [np.zeros_like(one) for one in zeros.states]
    found, expected = absent.forward(), zeros.forward()
    assert_same(found, expected)
    assert_same(absent.backward(found.workspace), zeros.backward(expected.workspace))
    assert all(np.isfinite(one).all() for one in (found.y, found.hy, *arrays_of(found.cy)))


@in_each_dtype
@pytest.mark.parametrize("garbage", [np.nan, 1e30])
def test_padding_is_ignored(kind, dtype, garbage):
    clean, dirty = (Network(kind, "two-directions", dtype) for _ in range(2))
    padding = np.arange(len(dirty.x))[:, None] >= LENGTHS
    dirty.x[padding] = dirty.dy[padding] = garbage
    found, expected = dirty.forward(), clean.forward()
    assert_same(found, expected)
    assert_same(dirty.backward(found.workspace), clean.backward(expected.workspace))


@in_each_dtype
@pytest.mark.parametrize("lengths", [LENGTHS, (0,) * 5])
def test_length_zero_passes_state_and_gradient_through(kind, dtype, lengths):
    net = Network(kind, "two-directions", dtype, lengths=lengths)
    found = net.forward()
    gradients = net.backward(found.workspace)
    empty = [n for n, length in enumerate(lengths) if length == 0]
    before = [net.hx, *net.states, net.dhy, *net.dstates]
    after = [found.hy, *arrays_of(found.cy), gradients.dhx, *arrays_of(gradients.dcx)]
    for ours, passed in zip(after, before, strict=True):
        assert_same_bits("passed", ours[:, empty], passed[:, empty])
    assert not found.y[:, empty].any() and not gradients.dx[:, empty].any()
    assert gradients.dw.any() == any(lengths)


@in_each_dtype
def test_arrays_may_be_in_any_memory_order(kind, dtype):
    plain, other = (Network(kind, "two-directions", dtype) for _ in range(2))

    def strided(array):
        return np.repeat(array.swapaxes(0, 1), 2, axis=-1)[..., ::2].swapaxes(0, 1)

    for name in ("x", "hx", "dy", "dhy"):
        setattr(other, name, strided(getattr(other, name)))
    other.states, other.dstates = list(map(strided, other.states)), list(map(strided, other.dstates))
    found, expected = other.forward(), plain.forward()
    assert_same(found, expected)
    assert_same(other.backward(found.workspace), plain.backward(expected.workspace))


# What they are given


def test_vector_of_the_indrnn_is_drawn_from_zero_to_one():
    u = rnnkit.weight_views(desc := rnnkit.RNNDescriptor(cells.IndRNN, 3, 500), rnnkit.init_weights(desc, 0))["u_l0"]
    assert [block.name for block in rnnkit.weight_layout(desc)] == ["weight_ih_l0", "bias_ih_l0", "u_l0"]
    assert 0 <= u.min() < 0.01 and 0.99 < u.max() <= 1


KNOWN = "Sigmoid, Tanh, Relu, Affine, LeakyRelu, ThresholdedRelu, ScaledTanh, HardSigmoid, Elu, Softsign, Softplus"
REFUSED = [
    (cells.PeepholeLSTM(gate="tanh"), TypeError, f"PeepholeLSTM's gate | {KNOWN} | str"),
    (cells.IndRNN(cells.LeakyRelu("a")), TypeError, "IndRNN's activation, alpha | float | str"),
    (cells.IndRNN(cells.LeakyRelu(True)), TypeError, "IndRNN's activation, alpha | float | bool"),
    (cells.IndRNN(cells.Elu(0)), ValueError, "IndRNN's activation, alpha | finite | 0"),
    (cells.IndRNN(cells.Affine(1, float("nan"))), ValueError, "IndRNN's activation, beta | finite | nan"),
    (cells.SLSTM(sigmoid_forget=1), TypeError, "SLSTM's sigmoid_forget | bool | int"),
]


@pytest.mark.parametrize(("kind", "error", "message"), REFUSED)
def test_wrong_parameter_of_a_cell_is_refused(kind, error, message):
    with raises(error, f"RNNDescriptor: mode, {message}"):
        rnnkit.RNNDescriptor(kind, 3, 4)


def test_activations_tell_cells_apart():
    activations = cells.Tanh, cells.Softsign(), cells.Tanh()
    first, second, third = (rnnkit.RNNDescriptor(cells.IndRNN(one), 3, 4) for one in activations)
    assert first == third != second and hash(first) == hash(third) and cells.Tanh() != cells.Softsign() != ()
    assert repr(second) == "RNNDescriptor(IndRNN(activation=Softsign()), 3, 4)"
    w, x = rnnkit.init_weights(first, 0), np.ones((2, 1, 3), np.float32)
    whole, real = (rnnkit.RNNDescriptor(cells.IndRNN(cells.Affine(a, b)), 3, 4) for a, b in ((2, 1), (2.0, 1.0)))
    assert whole == real and rnnkit.infer(whole, w, x).y.dtype == "float32"
    assert not np.array_equal(rnnkit.infer(first, w, x).y, rnnkit.infer(second, w, x).y)


@pytest.mark.parametrize("gate", [[], ["Swish"], [["Tanh"]], ["Tanh", 1.0], ["LeakyRelu"]], ids=str)
def test_wrong_activation_in_a_file_is_refused(gate):
    text = descriptor_json(rnnkit.RNNDescriptor(cells.PeepholeLSTM, 3, 4))
    assert '"gate": ["Sigmoid"]' in text
    with pytest.raises(ValueError, match=re.escape(f"activation {gate}")):
        descriptor_of(text.replace('["Sigmoid"]', json.dumps(gate)), cells.PeepholeLSTM)


def test_wrong_number_of_an_activation_in_a_file_is_refused():
    text = descriptor_json(rnnkit.RNNDescriptor(cells.IndRNN(cells.Elu(0.5)), 3, 4)).replace("0.5", "-0.5")
    with pytest.raises(ValueError, match=says("RNNDescriptor: mode, IndRNN's activation, alpha", "finite", 0, -0.5)):
        descriptor_of(text, cells.IndRNN)
