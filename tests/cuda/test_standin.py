"""What the GPU engine asks of cuDNN, seen by the stand-ins: calls, algorithms, streams, handles, devices."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import gpu as on_gpu
import numpy as np
import pytest
import standin_cudnn
import standin_cupy as cupy
from gpu import assert_as_on_the_host, fetched, moved
from messages import says
from problems import Problem
from standin_rules import SMALL_H, STANDARD
from tolerances import GRADIENTS, OUTPUTS, assert_close_on_gpu, assert_gradient_close_on_gpu, assert_same_results

import rnnkit
from rnnkit.cuda.cudnn import DEFAULT_MATH, FMA_MATH, TENSOR_OP_MATH

TWO_LAYERS = Problem(mode="lstm", num_layers=2, bidirectional=True, lengths=(2, 0, 4))
SMALL = Problem(mode="lstm", hidden_size=128, dtype="float32", allow_tf32=True)
ONE_CALL = ["cudnnRNNForward"]
A_STEP = [*ONE_CALL, "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"]
KINDS = "numpy.ndarray", "standin_cupy.ndarray"


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def calls_of_a_step(standin, problem):
    standin.calls.clear()
    on_gpu.step(problem)
    return standin.calls


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_repeated_backward_runs_forward_again(standin, dropout):
    """cuDNN's reserve space is good for one: the others run forward once more."""
    problem = TWO_LAYERS.twin(dropout=dropout, lengths=None)
    _, _, workspace = on_gpu.step(problem)
    assert [name for name in standin.calls if "Dropout" not in name] == A_STEP
    for _ in range(2):
        on_gpu.backward(problem, workspace)
    assert [name for name in standin.calls if "Dropout" not in name] == A_STEP * 3


def test_one_layer_asks_for_no_dropout(standin):
    assert calls_of_a_step(standin, Problem(mode="lstm", dropout=0.5)) == A_STEP


def test_descriptors_are_kept_and_freed(standin):
    problem = Problem(mode="gru")
    on_gpu.step(problem)
    kept = len(standin.objects)
    for _ in range(3):
        on_gpu.step(problem)
    assert len(standin.objects) == kept
    from rnnkit.cuda import context

    context._of_this_thread.__dict__.clear()
    gc.collect()
    assert {found.kind for found in standin.objects.values()} == {"handle"}


def test_arrays_of_both_libraries_are_refused(standin):
    problem = Problem(mode="lstm", dtype="float32")
    desc, (w, x, hx, cx) = problem.desc, moved(*problem.inputs)
    workspace = rnnkit.forward(desc, w, x).workspace
    refused = [
        ("forward: w", "asarray", lambda: rnnkit.forward(desc, problem.w, x, hx, cx)),
        ("forward: hx", "asarray", lambda: rnnkit.forward(desc, w, x, problem.hx, cx)),
        ("forward: cx", "asarray", lambda: rnnkit.forward(desc, w, x, hx, problem.cx)),
        ("forward: w", "asnumpy", lambda: rnnkit.forward(desc, w, problem.x)),
        ("backward: dy", "asarray", lambda: rnnkit.backward(desc, w, workspace, problem.dy)),
        ("step: x", "asnumpy", lambda: rnnkit.prepare(desc, problem.w).step(x[0], None)),
        ("step: x", "asarray", lambda: rnnkit.prepare(desc, w).step(problem.x[0], problem.hx, problem.cx)),
    ]
    for where, cure, call in refused:
        with pytest.raises(TypeError, match=says(where, *KINDS, f"cupy.{cure}")):
            call()
    with pytest.raises(ValueError, match=says("forward: workspace", "host (NumPy)", "x", "GPU 0 (CuPy)")):
        problem.forward(workspace=workspace)


def test_results_are_on_the_device_of_the_arrays(standin):
    """Results are where the arrays are, whatever the current device."""
    problem = Problem(mode="gru")
    desc, (w, x) = problem.desc, moved(problem.w, problem.x)
    with cupy.cuda.Device(1):
        there = moved(*problem.inputs)[:3]
        first = rnnkit.forward(desc, *there)
    result = rnnkit.forward(desc, *there)
    gradients = rnnkit.backward(desc, there[0], result.workspace, result.y)
    inferred, plan = rnnkit.infer(desc, *there, lengths=(2, 0, 4)), rnnkit.prepare(desc, there[0])
    made = [first.y, first.hy, plan.step(there[1][0], there[2]).y, plan.infer(*there[1:]).y, result.y, result.hy]
    made += [inferred.y, inferred.hy, *gradients[:2], gradients.dw]
    assert {array.device.id for array in made} == {1}
    with pytest.raises(ValueError, match=says("forward: hx", "GPU 0 (CuPy)", "GPU 1 (CuPy)")):
        rnnkit.forward(desc, w, x, there[2])
    with pytest.raises(ValueError, match=says("forward: workspace", "GPU 0 (CuPy)", "x", "GPU 1 (CuPy)")):
        rnnkit.forward(desc, w, x, workspace=result.workspace)


ARITHMETIC = [(dict(), FMA_MATH), (dict(allow_tf32=True), DEFAULT_MATH), (dict(dtype="float64"), DEFAULT_MATH)]
ARITHMETIC += [(dict(dtype=dtype), TENSOR_OP_MATH) for dtype in ("float16", "bfloat16")]


@pytest.mark.parametrize(("options", "math"), ARITHMETIC)
def test_math_type_by_dtype(standin, options, math):
    desc = rnnkit.RNNDescriptor("gru", 3, 4, **options)
    rnnkit.infer(desc, cupy.zeros(rnnkit.num_weights(desc), desc.np_dtype), cupy.zeros((2, 1, 3), desc.np_dtype))
    assert [found.math for found in standin.objects.values() if found.kind == "RNN"] == [math]


def test_standard_algorithm_replaces_a_refused_one(standin):
    """The standard one takes its place, and is taken at once the next time."""
    standin.unsupported.add(SMALL_H)
    problem = SMALL.twin(hidden_size=4)
    assert_as_on_the_host(problem)
    assert standin.calls == [*ONE_CALL, *A_STEP, *ONE_CALL, *ONE_CALL]
    assert calls_of_a_step(standin, problem) == A_STEP
    assert calls_of_a_step(standin, problem.twin(seq_len=5)) == [*ONE_CALL, *A_STEP]  # of another nothing is known


@pytest.mark.parametrize("refused", A_STEP[1:])
def test_forward_runs_again_where_backward_refuses(standin, refused):
    """Forward runs again with the standard one, which takes its place the next time."""
    standin.unsupported.add((refused, SMALL_H))
    problem = SMALL.twin(hidden_size=4)
    assert_as_on_the_host(problem)
    assert standin.calls == [*A_STEP[: A_STEP.index(refused) + 1], *A_STEP, *ONE_CALL]
    assert calls_of_a_step(standin, problem) == A_STEP


def test_network_that_every_algorithm_refuses_is_an_error(standin):
    standin.unsupported.update((SMALL_H, STANDARD))
    with pytest.raises(rnnkit.BackendError, match=says("cudnnRNNForward: cuDNN 91900", "CUDNN_STATUS_NOT_SUPPORTED")):
        on_gpu.step(SMALL)


def test_calls_run_on_the_current_stream(standin):
    problem = Problem(mode="gru")
    for number in (7, 0, 9):
        with cupy.cuda.Stream(number):
            on_gpu.step(problem)
    on_gpu.step(problem.twin(num_layers=2, dropout=0.5))  # which seeds a generator, too
    assert standin.streams == [7] * 3 + [0] * 3 + [9] * 3 + [0] * 4


def test_threads_and_devices_have_their_own_handles(standin):
    results = []

    def work(device=0):
        with cupy.cuda.Device(device):
            results.append(on_gpu.step(Problem(mode="gru"))[0])

    def devices():
        return sorted(found.device for found in standin.objects.values() if found.kind == "handle")

    for _ in range(3):  # one after the other: a handle is used again
        in_a_thread(work)
    assert devices() == [0]
    work()
    assert devices() == [0]
    in_a_thread(work)
    assert devices() == [0, 0]
    in_a_thread(lambda: work(1))  # the handles that the threads have left are of no use there
    assert devices() == [0, 0, 1]
    for result in results:
        assert_same_results(result, results[0], OUTPUTS)


def test_libraries_for_different_versions_of_cuda_are_warned_of(standin, monkeypatch):
    monkeypatch.setattr(cupy.cuda.runtime, "runtimeGetVersion", lambda: 12090)
    with pytest.warns(RuntimeWarning, match=says("", "cuDNN", "CUDA 13", "CuPy", "CUDA 12")):
        on_gpu.infer(Problem(mode="gru"))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("wrong", ["bytes", "order"])
def test_other_layout_of_the_weights_is_noticed(standin, monkeypatch, wrong, dropout):
    blocks = standin_cudnn.weight_blocks

    def other(fields):
        found = list(blocks(fields))
        return found + found[-1:] if wrong == "bytes" else found[::-1]

    monkeypatch.setattr(standin_cudnn, "weight_blocks", other)
    with pytest.raises(rnnkit.BackendError, match=says("cudnnGetRNNWeightParams: the weights")):
        on_gpu.step(TWO_LAYERS.twin(dropout=dropout))


@pytest.mark.parametrize("seed", [5, 2**32 + 5, 2**64 - 1])
def test_dropout_takes_all_bits_of_the_seed(standin, seed):
    """The stand-in draws as the CPU engine does, so all bits of the seed must have come through."""
    problem = TWO_LAYERS.twin(num_layers=3, dropout=0.5, lengths=None)
    expected, found = problem.forward(seed=seed), on_gpu.forward(problem, seed=seed)
    on_gpu.assert_outputs_as_on_the_host(fetched(found), expected, "float64")
    gradients = on_gpu.backward(problem, found.workspace)
    on_gpu.assert_gradients_as_on_the_host(gradients, problem.backward(expected.workspace), "float64")
    assert standin.seeds == [seed]


def test_simultaneous_backward_calls_run_forward_once_more(standin):
    """One takes the reserve space of forward, the other runs forward once more, however close they come."""
    from rnnkit.cuda import modes

    problem = TWO_LAYERS.twin(dropout=0.5, lengths=None)
    _, expected, _ = on_gpu.step(problem)
    workspace, readers, both = on_gpu.forward(problem).workspace, [], threading.Event()

    class Record(modes._Record):
        """Who reads whether the reserve space is spent waits for another who does, if there can be one."""

        @property
        def spent(self):
            found = self.__dict__["spent"]
            readers.append(found)
            if len(readers) == 2:
                both.set()
            both.wait(0.5)
            return found

        @spent.setter
        def spent(self, value):
            self.__dict__["spent"] = value

    workspace.record.__class__ = Record
    standin.calls.clear()
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: on_gpu.backward(problem, workspace), range(2)))
    assert sorted(readers) == [False, True]
    assert standin.calls.count("cudnnRNNForward") == 1
    for found in results:
        assert_same_results(found, expected, GRADIENTS)


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_learned_initial_states_are_given_to_cudnn_and_get_their_gradients(standin, mode):
    """cuDNN reads the part of the flat buffer before them."""
    host = rnnkit.Network(mode, 3, 5, 2, True, learned_initial_state=True, seed=0)
    start = rnnkit.num_weights(rnnkit.RNNDescriptor(mode, 3, 5, 2, True))
    host.weights[start:] = np.random.default_rng(0).normal(size=host.weights.size - start)
    net, x = host.to(cupy), np.random.default_rng(1).standard_normal((4, 2, 3), np.float32)
    found, expected = net.forward(cupy.asarray(x), lengths=[4, 0]), host.forward(x, lengths=[4, 0])
    gradients, wanted = net.backward(found.workspace, found.y), host.backward(expected.workspace, expected.y)
    assert_close_on_gpu("y", found.y.get(), expected.y, "float32")
    assert_gradient_close_on_gpu("dw", gradients.dw.get(), wanted.dw, "float32")
    assert wanted.dw[start:].all()
