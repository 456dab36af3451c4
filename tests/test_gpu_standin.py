"""What the GPU engine asks of cuDNN, seen by the stand-ins: calls, algorithms, streams, handles, devices."""

import gc
import threading

import gpu as on_gpu
import pytest
import standin_cudnn
import standin_cupy as cupy
from gpu import BOUNDS, assert_as_on_the_host, moved
from problems import Problem
from standin_cudnn import PERSIST_STATIC, SMALL_H, STANDARD
from tolerances import OUTPUTS, assert_same_bits, assert_same_results

import rnnkit
from rnnkit._cudnn import DEFAULT_MATH, FMA_MATH, TENSOR_OP_MATH

TWO_LAYERS = Problem(mode="lstm", num_layers=2, bidirectional=True, lengths=(2, 0, 4))
SMALL = Problem(mode="lstm", hidden_size=128, dtype="float32", allow_tf32=True)
HALF = dict(allow_tf32=False, dtype="float16", hidden_size=256)
ONE_CALL = ["cudnnRNNForward"]
A_STEP = [*ONE_CALL, "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_backward_any_number_of_times(standin, dropout):
    """cuDNN's reserve space is good for one: the others run forward once more."""
    problem = TWO_LAYERS.twin(dropout=dropout, lengths=None)
    _, _, workspace = on_gpu.step(problem)
    assert [name for name in standin.calls if "Dropout" not in name] == A_STEP
    for _ in range(2):
        on_gpu.backward(problem, workspace)
    assert [name for name in standin.calls if "Dropout" not in name] == A_STEP * 3


def test_one_layer_has_nothing_to_drop(standin):
    on_gpu.step(Problem(mode="lstm", dropout=0.5))
    assert standin.calls == A_STEP


def test_descriptors_are_kept_and_freed(standin):
    problem = Problem(mode="gru")
    on_gpu.step(problem)
    kept = len(standin.objects)
    for _ in range(3):
        on_gpu.step(problem)
    assert len(standin.objects) == kept
    from rnnkit import _gpu_context

    _gpu_context._of_this_thread.__dict__.clear()
    gc.collect()
    assert {found.kind for found in standin.objects.values()} == {"handle"}


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
    result = rnnkit.forward(problem.desc, *there[:3])  # whatever the current device
    gradients = rnnkit.backward(problem.desc, there[0], result.workspace)
    inferred = rnnkit.infer(problem.desc, *there[:3], lengths=(2, 0, 4))
    plan = rnnkit.prepare(problem.desc, there[0])
    stepped = plan.step(there[1][0], there[2])
    made = (stepped.y, plan.infer(*there[1:3]).y, result.y, result.hy, inferred.y, inferred.hy, *gradients[:2])
    made += (gradients.dw,)
    assert {array.device.id for array in made} == {1}
    expected = r"forward: hx must be on GPU 0 \(CuPy\) as the others are, got GPU 1 \(CuPy\)"
    with pytest.raises(ValueError, match=expected):
        rnnkit.forward(problem.desc, w, x, there[2])
    with pytest.raises(ValueError, match=r"workspace must be on GPU 0 \(CuPy\) as x is, got one on GPU 1 \(CuPy\)"):
        rnnkit.forward(problem.desc, w, x, workspace=result.workspace)


def algorithm_of(problem, standin, call=rnnkit.forward):
    call(problem.desc, *moved(*problem.inputs), lengths=problem.lengths)
    return [found.algorithm for found in standin.objects.values() if found.kind == "RNN"][-1]


@pytest.mark.parametrize(
    ("changes", "training", "inference"),
    [
        (dict(), SMALL_H, SMALL_H),
        (dict(allow_tf32=False), STANDARD, STANDARD),
        (dict(input_mode="skip", input_size=128), STANDARD, STANDARD),
        (dict(allow_tf32=False, dtype="bfloat16"), STANDARD, STANDARD),
        (dict(hidden_size=129), STANDARD, SMALL_H),
        (dict(hidden_size=193), STANDARD, STANDARD),
        (dict(mode="rnn_relu", hidden_size=256), SMALL_H, SMALL_H),
        (dict(mode="rnn_relu", hidden_size=257), STANDARD, SMALL_H),
        (dict(bias="none"), STANDARD, STANDARD),
        (dict(allow_tf32=False, dtype="float64"), STANDARD, STANDARD),
        (dict(proj_size=5), STANDARD, STANDARD),
        (dict(cell_clip=BOUNDS), STANDARD, STANDARD),
        (dict(lengths=(4, 3, 2)), STANDARD, STANDARD),
        (dict(**HALF, input_size=128, batch_size=8), PERSIST_STATIC, PERSIST_STATIC),
        (dict(**HALF, input_size=128, batch_size=9), STANDARD, STANDARD),
        (dict(**HALF, input_size=128, batch_size=8, mode="gru"), STANDARD, STANDARD),
        (dict(**HALF, input_size=120, batch_size=8), STANDARD, STANDARD),
    ],
)
def test_the_algorithm(standin, changes, training, inference):
    problem = SMALL.twin(**changes)
    assert algorithm_of(problem, standin) == training
    assert algorithm_of(problem, standin, rnnkit.infer) == inference
    assert not standin.refusals


def test_the_algorithm_of_a_long_sequence(standin):
    problem = SMALL.twin(hidden_size=2, batch_size=1)
    assert algorithm_of(problem.twin(seq_len=65535), standin, rnnkit.infer) == SMALL_H
    assert algorithm_of(problem.twin(seq_len=65536), standin, rnnkit.infer) == STANDARD
    assert not standin.refusals


@pytest.mark.parametrize(
    ("options", "math"),
    [
        (dict(), FMA_MATH),
        (dict(allow_tf32=True), DEFAULT_MATH),
        (dict(dtype="float64"), DEFAULT_MATH),
        (dict(dtype="float16"), TENSOR_OP_MATH),
        (dict(dtype="bfloat16"), TENSOR_OP_MATH),
    ],
)
def test_the_kind_of_arithmetic(standin, options, math):
    desc = rnnkit.RNNDescriptor("gru", 3, 4, **options)
    rnnkit.infer(desc, cupy.zeros(rnnkit.num_weights(desc), desc.np_dtype), cupy.zeros((2, 1, 3), desc.np_dtype))
    assert [found.math for found in standin.objects.values() if found.kind == "RNN"] == [math]


def test_an_algorithm_that_the_device_refuses(standin):
    """The standard one takes its place, and is taken at once the next time."""
    standin.unsupported.add(SMALL_H)
    problem = SMALL.twin(hidden_size=4)
    assert_as_on_the_host(problem)
    assert standin.calls == [*ONE_CALL, *A_STEP, *ONE_CALL, *ONE_CALL]
    standin.calls.clear()
    on_gpu.step(problem)
    assert standin.calls == A_STEP


def test_what_no_algorithm_does_is_an_error(standin):
    standin.unsupported.update((SMALL_H, STANDARD))
    with pytest.raises(rnnkit.BackendError, match=r"cudnnRNNForward: cuDNN 91900 answered CUDNN_STATUS_NOT_SUPPORTED"):
        on_gpu.step(SMALL)


def test_the_current_stream(standin):
    problem = Problem(mode="gru")
    for number in (7, 0, 9):
        with cupy.cuda.Stream(number):
            on_gpu.step(problem)  # the stand-in compares each call's stream with the current one


def test_threads_have_their_own_handles(standin):
    problem, results = Problem(mode="gru"), []

    def work():
        results.append(on_gpu.step(problem)[0])

    def handles():
        return sum(found.kind == "handle" for found in standin.objects.values())

    for _ in range(3):  # one after the other: a handle is used again
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert handles() == 1
    work()
    assert handles() == 1
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handles() == 2
    for result in results:
        assert_same_results(result, results[0], OUTPUTS)


def test_libraries_for_different_versions_of_cuda(standin, monkeypatch):
    monkeypatch.setattr(cupy.cuda.runtime, "runtimeGetVersion", lambda: 12090)
    with pytest.warns(RuntimeWarning, match="cuDNN is for CUDA 13 and CuPy for CUDA 12: install matching ones"):
        on_gpu.infer(Problem(mode="gru"))


@pytest.mark.parametrize("wrong", ["bytes", "order"])
def test_another_layout_of_the_weights_is_noticed(standin, monkeypatch, wrong):
    blocks = standin_cudnn.weight_blocks

    def other(fields):
        found = list(blocks(fields))
        return found + found[-1:] if wrong == "bytes" else found[::-1]

    monkeypatch.setattr(standin_cudnn, "weight_blocks", other)
    with pytest.raises(rnnkit.BackendError, match="the weights must have"):
        on_gpu.step(Problem(mode="lstm"))


def test_dropout_by_the_seed(standin):
    """The stand-in draws as the CPU engine does, so the seed must have come through."""
    problem = TWO_LAYERS.twin(dropout=0.5, lengths=None)
    assert_same_bits("y", on_gpu.step(problem)[0].y, problem.forward().y)
