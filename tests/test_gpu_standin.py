"""The GPU engine on stand-ins for CuPy and libcudnn: what it asks of cuDNN, and what it makes of the answers.

The stand-in computes with the CPU engine, so results must be those of NumPy arrays; what cuDNN refuses, it refuses.
"""

import gc
import threading

import numpy as np
import pytest
import standin_cupy as cupy
from gpu_standin import standin_gpu
from problems import CELLS, CLIP, Problem
from standin_cudnn import PERSIST_STATIC, SMALL_H, STANDARD
from tolerances import GRADIENTS, OUTPUTS, assert_gradient_close, assert_same_bits, assert_same_results

import rnnkit

CELLS = {name: cell for name, cell in CELLS.items() if name != "gru-reset-before"}
TWO_LAYERS = Problem(mode="lstm", num_layers=2, bidirectional=True, lengths=(2, 0, 4))
ONE_CALL = ["cudnnRNNForward"]
A_STEP = [*ONE_CALL, "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"]


@pytest.fixture
def standin():
    with standin_gpu() as found:
        yield found


def moved(*arrays):
    return [None if array is None else cupy.asarray(array) for array in arrays]


def on_gpu(problem, **options):
    """forward and backward of a problem on the GPU, as arrays on the host, and the workspace."""
    options = {"lengths": problem.lengths_array, "seed": problem.seed, **options}
    forward = rnnkit.forward(problem.desc, *moved(*problem.inputs), **options)
    return fetched(forward), backward(problem, forward.workspace), forward.workspace


def backward(problem, workspace, **options):
    return fetched(rnnkit.backward(problem.desc, *moved(problem.w), workspace, *moved(*problem.cotangents), **options))


def fetched(result):
    return type(result)(*(array.get() if isinstance(array, cupy.ndarray) else array for array in result))


def assert_as_on_the_host(problem):
    """The same results as on NumPy arrays, of every call."""
    expected = problem.forward()
    gradients = problem.backward(expected.workspace)
    forward, found, _ = on_gpu(problem)
    assert_same_results(forward, expected, OUTPUTS)
    for name in GRADIENTS:
        assert_gradient_close(name, getattr(found, name), getattr(gradients, name), problem.dtype)
    inferred = rnnkit.infer(problem.desc, *moved(*problem.inputs), lengths=problem.lengths_array)
    assert_same_results(fetched(inferred), problem.infer(), OUTPUTS)


LENGTHS = {"full": None, "sorted": (4, 3, 3), "unsorted": (2, 4, 3), "empty": (2, 0, 4), "all-empty": (0, 0, 0)}


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_every_cell(standin, cell, directions, lengths):
    options = dict(num_layers=2, bidirectional=directions == 2, lengths=LENGTHS[lengths])
    assert_as_on_the_host(Problem(**CELLS[cell], **options))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bias", ["both", "input", "recurrent", "none"])
@pytest.mark.parametrize("mode", ["rnn_tanh", "lstm", "gru"])
def test_every_bias(standin, mode, bias, dtype):
    assert_as_on_the_host(Problem(mode=mode, bias=bias, dtype=dtype, lengths=(4, 1, 3)))


@pytest.mark.parametrize("mode", ["rnn_relu", "lstm", "gru"])
def test_skip_input(standin, mode):
    assert_as_on_the_host(Problem(mode=mode, input_mode="skip", input_size=4, num_layers=2))


@pytest.mark.parametrize("options", [dict(seq_len=0), dict(batch_size=0), dict(seq_len=1, batch_size=1)])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_extreme_sizes(standin, mode, options):
    assert_as_on_the_host(Problem(mode=mode, **options))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_states_and_gradients_that_are_not_given(standin, lengths):
    problem = Problem(mode="lstm", num_layers=2, states=False, lengths=LENGTHS[lengths])
    assert_as_on_the_host(problem)
    expected = problem.forward().workspace
    workspace = on_gpu(problem)[2]
    found = fetched(rnnkit.backward(problem.desc, *moved(problem.w), workspace))
    assert_same_results(found, rnnkit.backward(problem.desc, problem.w, expected), GRADIENTS)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("lengths", [None, (2, 0, 4)])
def test_half_precision(standin, dtype, lengths):
    problem = Problem(mode="lstm", dtype="float32", lengths=lengths)
    desc = rnnkit.RNNDescriptor("lstm", 3, 4, dtype=dtype)
    arrays = moved(*(array.astype(desc.np_dtype) for array in problem.inputs))
    forward = rnnkit.forward(desc, *arrays, lengths=lengths)
    gradients = rnnkit.backward(desc, arrays[0], forward.workspace, forward.y)
    assert {array.dtype for array in (*forward[:3], *gradients)} == {desc.np_dtype}
    bound = 2e-2  # a few units in the last place of bfloat16, which has 8 bits
    assert np.abs(forward.y.get().astype("float32") - problem.forward().y).max() < bound


def test_padding_is_never_read(standin):
    problem = TWO_LAYERS
    expected = on_gpu(problem)
    x, dy = problem.x.copy(), problem.dy.copy()
    x[~problem.valid] = dy[~problem.valid] = np.nan
    w, hx, cx, x, dy = moved(problem.w, problem.hx, problem.cx, x, dy)
    forward = rnnkit.forward(problem.desc, w, x, hx, cx, lengths=problem.lengths)
    gradients = rnnkit.backward(problem.desc, w, forward.workspace, dy, *moved(problem.dhy, problem.dcy))
    assert_same_results(fetched(forward), expected[0], OUTPUTS)
    assert_same_results(fetched(gradients), expected[1], GRADIENTS)


def test_arrays_that_are_not_dense_or_aligned(standin):
    problem = Problem(mode="lstm", num_layers=2)
    expected = on_gpu(problem)

    def shifted(array):
        room = cupy.zeros(array.size + 1, array.dtype)
        room[1:] = cupy.asarray(array.reshape(-1))
        return room[1:].reshape(array.shape)

    w, hx, cx, dhy, dcy = map(shifted, (problem.w, problem.hx, problem.cx, problem.dhy, problem.dcy))
    x, dy = (cupy.asarray(a.swapaxes(0, 1).copy()).swapaxes(0, 1) for a in (problem.x, problem.dy))
    assert not x.flags.c_contiguous
    forward = rnnkit.forward(problem.desc, w, x, hx, cx)
    dw = shifted(np.ones_like(problem.w))
    gradients = rnnkit.backward(problem.desc, w, forward.workspace, dy, dhy, dcy, dw=dw)
    assert_same_results(fetched(forward), expected[0], OUTPUTS)
    assert_same_results(fetched(gradients), expected[1], GRADIENTS[:3])
    assert gradients.dw is dw
    assert_gradient_close("dw", dw.get(), expected[1].dw + 1, "float64")


def test_the_gradient_of_weights_is_added(standin):
    dw = cupy.asarray(np.ones_like(TWO_LAYERS.w))
    _, gradients, workspace = on_gpu(TWO_LAYERS)
    backward(TWO_LAYERS, workspace, dw=dw)
    backward(TWO_LAYERS, workspace, dw=dw)
    assert_gradient_close("dw", dw.get(), 2 * gradients.dw + 1, "float64")


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_backward_any_number_of_times(standin, dropout):
    """cuDNN's reserve space is good for one: the others run forward once more."""
    problem = TWO_LAYERS.twin(dropout=dropout, lengths=None)
    _, first, workspace = on_gpu(problem)
    assert [name for name in standin.calls if "Dropout" not in name] == A_STEP
    for _ in range(2):
        assert_same_results(backward(problem, workspace), first, GRADIENTS)
    assert [name for name in standin.calls if "Dropout" not in name] == A_STEP * 3


def test_dropout_is_that_of_the_seed(standin):
    problem = TWO_LAYERS.twin(dropout=0.5, lengths=None)
    assert_same_bits("y", on_gpu(problem)[0].y, problem.forward().y)
    assert_same_results(on_gpu(problem)[0], on_gpu(problem)[0], OUTPUTS)
    assert not np.array_equal(on_gpu(problem, seed=1)[0].y, on_gpu(problem, seed=2)[0].y)
    drawn = on_gpu(problem, seed=None)
    assert_same_results(on_gpu(problem, seed=drawn[2].seed)[0], drawn[0], OUTPUTS)


def test_one_layer_has_nothing_to_drop(standin):
    on_gpu(Problem(mode="lstm", dropout=0.5))
    assert standin.calls == A_STEP


def test_states_may_change_after_forward(standin):
    problem = Problem(mode="lstm")
    expected = on_gpu(problem)[1]
    w, x, hx, cx = moved(*problem.inputs)
    workspace = rnnkit.forward(problem.desc, w, x, hx, cx).workspace
    hx[...] = 7
    cx[...] = 7
    assert_same_results(backward(problem, workspace), expected, GRADIENTS)


def test_a_workspace_is_used_again(standin):
    problem = TWO_LAYERS.twin(lengths=None)
    arrays = moved(*problem.inputs)
    first = rnnkit.forward(problem.desc, *arrays)
    reserve, y = first.workspace.record.reserve.data.ptr, first.y.data.ptr
    second = rnnkit.forward(problem.desc, *arrays, workspace=first.workspace)
    assert (second.workspace.record.reserve.data.ptr, second.y.data.ptr) == (reserve, y)
    with pytest.raises(rnnkit.WorkspaceError):
        backward(problem, first.workspace)
    backward(problem, second.workspace)
    with pytest.raises(ValueError, match="x must not view the workspace"):
        rnnkit.forward(problem.twin(input_size=8).desc, *moved(problem.twin(input_size=8).w), second.y, *arrays[2:],
                       workspace=second.workspace)


def test_descriptors_are_kept_and_freed(standin):
    problem = Problem(mode="gru")
    on_gpu(problem)
    kept = len(standin.objects)
    for _ in range(3):
        on_gpu(problem)
    assert len(standin.objects) == kept
    from rnnkit import _gpu_context

    _gpu_context._of_this_thread.__dict__.clear()
    gc.collect()
    assert {found.kind for found in standin.objects.values()} == {"handle"}


def test_states_of_every_step(standin):
    expected = TWO_LAYERS.forward().workspace
    workspace = on_gpu(TWO_LAYERS)[2]
    for direction in range(2):
        assert_same_bits("hidden", workspace.hidden(1, direction).get(), expected.hidden(1, direction))
    with pytest.raises(rnnkit.BackendError, match=r"hidden: .* hidden\(1\), got hidden_l0; cuDNN keeps"):
        workspace.hidden(0)
    with pytest.raises(rnnkit.BackendError, match="cell: .* got cell_2; cuDNN keeps"):
        workspace.cell(1)


@pytest.mark.parametrize("cell", CELLS)
def test_a_plan(standin, cell):
    problem = Problem(**CELLS[cell], num_layers=2)
    w, x, hx, cx = moved(*problem.inputs)
    plan = rnnkit.prepare(problem.desc, w)
    w[...] = 0  # later changes do not reach it
    expected = problem.infer()
    assert_same_results(fetched(plan.infer(x, hx, cx)), expected, OUTPUTS)
    for t in range(problem.seq_len):
        y, hx, cx = plan.step(x[t], hx, cx)
        assert_same_bits("y", y.get(), expected.y[t])
    assert_same_bits("hy", hx.get(), expected.hy)


def test_a_network_moves_between_devices(standin, tmp_path):
    net = rnnkit.LSTM(3, 4, num_layers=2, seed=0)
    x = np.ones((5, 2, 3), "float32")
    expected = net.infer(x).y
    net.weights = cupy.asarray(net.weights)
    result = net.forward(cupy.asarray(x))
    assert_same_bits("y", result.y.get(), expected)
    net.weights[...] = 0
    net.views["bias_ih_l0"][...] = 1
    assert (net.views["bias_ih_l0"].get() == 1).all()
    net.save(tmp_path / "net")
    assert_same_bits("weights", rnnkit.load(tmp_path / "net").weights, net.weights.get())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_saved(tmp_path, dtype):
    net = rnnkit.GRU(3, 4, dtype=dtype, seed=0)
    net.save(tmp_path / "net")
    twin = rnnkit.load(tmp_path / "net")
    assert twin.desc == net.desc
    assert_same_bits("weights", twin.weights, net.weights)


# What is refused


def test_arrays_of_both_libraries(standin):
    problem = Problem(mode="lstm", dtype="float32")
    w, x, hx, cx = moved(*problem.inputs)
    text = r"forward: {} must be a \w+.ndarray as the others are, got .*ndarray; move it with cupy.as{}"
    for name, wrong in (("w", dict(w=problem.w)), ("hx", dict(hx=problem.hx)), ("cx", dict(cx=problem.cx))):
        with pytest.raises(TypeError, match=text.format(name, "array")):
            rnnkit.forward(problem.desc, **{"w": w, "x": x, "hx": hx, "cx": cx, **wrong})
    with pytest.raises(TypeError, match=text.format("w", "numpy")):
        rnnkit.forward(problem.desc, w, problem.x)
    workspace = rnnkit.forward(problem.desc, w, x).workspace
    with pytest.raises(TypeError, match=r"backward: dy must be a \w+cupy.ndarray as the others are"):
        rnnkit.backward(problem.desc, w, workspace, problem.dy)
    with pytest.raises(TypeError, match="step: x must be a numpy.ndarray as the others are"):
        rnnkit.prepare(problem.desc, problem.w).step(x[0], None)
    with pytest.raises(TypeError, match=r"step: x must be a \w+cupy.ndarray as the others are"):
        rnnkit.prepare(problem.desc, w).step(problem.x[0], problem.hx, problem.cx)
    with pytest.raises(ValueError, match=r"workspace must be on the host \(NumPy\) as x is, got one on GPU 0"):
        problem.forward(workspace=workspace)


def test_arrays_on_two_devices(standin):
    problem = Problem(mode="gru")
    w, x, hx, _ = moved(*problem.inputs)
    with cupy.cuda.Device(1):
        there = moved(*problem.inputs)
        result = rnnkit.forward(problem.desc, *there[:3])
    assert {array.device.id for array in (result.y, result.hy)} == {1}
    assert rnnkit.forward(problem.desc, *there[:3]).y.device.id == 1  # whatever the current device
    expected = r"forward: hx must be on GPU 0 \(CuPy\) as the others are, got GPU 1 \(CuPy\)"
    with pytest.raises(ValueError, match=expected):
        rnnkit.forward(problem.desc, w, x, there[2])
    with pytest.raises(ValueError, match=r"workspace must be on GPU 0 \(CuPy\) as x is, got one on GPU 1 \(CuPy\)"):
        rnnkit.forward(problem.desc, w, x, workspace=result.workspace)


def test_the_other_formula_of_the_gru(standin):
    problem = Problem(mode="gru", reset_after=False)
    for call in (rnnkit.forward, rnnkit.infer):
        with pytest.raises(rnnkit.BackendError, match="desc.reset_after must be True on CuPy arrays, got False; cuDNN"):
            call(problem.desc, *moved(problem.w, problem.x))
    with pytest.raises(rnnkit.BackendError, match="prepare: desc.reset_after"):
        rnnkit.prepare(problem.desc, *moved(problem.w))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_on_the_host(dtype):
    desc = rnnkit.RNNDescriptor("gru", 3, 4, dtype=dtype)
    w, x = rnnkit.init_weights(desc, seed=0), np.ones((2, 1, 3), desc.np_dtype)
    assert w.dtype == desc.np_dtype
    expected = f"desc.dtype must be float32 or float64 on NumPy arrays, got {dtype}; half precision runs on a GPU"
    for call in (lambda: rnnkit.forward(desc, w, x), lambda: rnnkit.infer(desc, w, x), lambda: rnnkit.prepare(desc, w)):
        with pytest.raises(TypeError, match=expected):
            call()


# Algorithms, streams, threads


def algorithm_of(problem, standin, call=rnnkit.forward):
    call(problem.desc, *moved(*problem.inputs), lengths=problem.lengths)
    return [found.algorithm for found in standin.objects.values() if found.kind == "RNN"][-1]


SMALL = Problem(mode="lstm", hidden_size=128, dtype="float32")


@pytest.mark.parametrize(
    ("changes", "training", "inference"),
    [
        (dict(), SMALL_H, SMALL_H),
        (dict(hidden_size=129), STANDARD, SMALL_H),
        (dict(hidden_size=193), STANDARD, STANDARD),
        (dict(mode="rnn_relu", hidden_size=256), SMALL_H, SMALL_H),
        (dict(mode="rnn_relu", hidden_size=257), STANDARD, SMALL_H),
        (dict(bias="none"), STANDARD, STANDARD),
        (dict(dtype="float64"), STANDARD, STANDARD),
        (dict(proj_size=5), STANDARD, STANDARD),
        (dict(cell_clip=CLIP), STANDARD, STANDARD),
        (dict(lengths=(4, 3, 2)), STANDARD, STANDARD),
        (dict(dtype="float16", hidden_size=256, input_size=128, batch_size=8), PERSIST_STATIC, PERSIST_STATIC),
        (dict(dtype="float16", hidden_size=256, input_size=128, batch_size=9), STANDARD, STANDARD),
        (dict(dtype="float16", hidden_size=256, input_size=128, batch_size=8, mode="gru"), STANDARD, STANDARD),
        (dict(dtype="float16", hidden_size=256, input_size=120, batch_size=8), STANDARD, STANDARD),
    ],
)
def test_the_algorithm(standin, changes, training, inference):
    problem = SMALL.twin(**changes)
    assert algorithm_of(problem, standin) == training
    assert algorithm_of(problem, standin, rnnkit.infer) == inference


def test_an_algorithm_that_the_device_refuses(standin):
    """The standard one takes its place, and is taken at once the next time."""
    standin.unsupported.add(SMALL_H)
    problem = SMALL.twin(hidden_size=4)
    assert_as_on_the_host(problem)
    assert standin.calls == [*ONE_CALL, *A_STEP, *ONE_CALL, *ONE_CALL]
    standin.calls.clear()
    on_gpu(problem)
    assert standin.calls == A_STEP


def test_what_no_algorithm_does_is_an_error(standin):
    standin.unsupported.update((SMALL_H, STANDARD))
    with pytest.raises(rnnkit.BackendError, match=r"cudnnRNNForward: cuDNN 91900 answered CUDNN_STATUS_NOT_SUPPORTED"):
        on_gpu(SMALL)


def test_the_current_stream(standin):
    problem = Problem(mode="gru")
    for number in (7, 0, 9):
        with cupy.cuda.Stream(number):
            on_gpu(problem)  # the stand-in compares each call's stream with the current one


def test_threads_have_their_own_handles(standin):
    problem, results = Problem(mode="gru"), []

    def work():
        results.append(on_gpu(problem)[0])

    def handles():
        return sum(found.kind == "handle" for found in standin.objects.values())

    for _ in range(3):  # one after the other: a handle is used again
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        gc.collect()
    assert handles() == 1
    work()
    assert handles() == 1
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handles() == 2
    for result in results:
        assert_same_results(result, results[0], OUTPUTS)


@pytest.mark.parametrize("wrong", ["bytes", "order"])
def test_another_layout_of_the_weights_is_noticed(standin, monkeypatch, wrong):
    import standin_cudnn

    blocks = standin_cudnn.weight_blocks

    def other(fields):
        found = list(blocks(fields))
        return found + found[-1:] if wrong == "bytes" else found[::-1]

    monkeypatch.setattr(standin_cudnn, "weight_blocks", other)
    with pytest.raises(rnnkit.BackendError, match="the weights must have"):
        on_gpu(Problem(mode="lstm"))
