"""What only a device can show: bits, streams, threads, long sequences, memory, and PyTorch in the same process."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import gpu as on_gpu
import numpy as np
import pytest
from gpu import assert_as_on_the_host, has_gpu, moved
from optional import needs
from problems import Problem
from tolerances import GRADIENTS, OUTPUTS, assert_close_on_gpu, assert_gradient_close_on_gpu, assert_same_results

import rnnkit
from rnnkit.call.options import MAX_CUDNN_STEPS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="no GPU that CuPy can use")]

MODES = ["rnn_relu", "rnn_tanh", "lstm", "gru"]


def problem_of(mode, hidden_size=64, **options):
    """A float32 problem of a size that people use."""
    sizes = dict(input_size=48, seq_len=20, batch_size=8, num_layers=2, dtype="float32")
    return Problem(mode=mode, hidden_size=hidden_size, **{**sizes, **options})


def assert_same_step(found, expected):
    assert_same_results(found[0], expected[0], OUTPUTS)
    assert_same_results(found[1], expected[1], GRADIENTS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("hidden_size", [32, 128, 200, 512])
@pytest.mark.parametrize("mode", ["rnn_tanh", "lstm", "gru"])
def test_common_sizes_equal_the_host(mode, hidden_size, dtype):
    assert_as_on_the_host(problem_of(mode, hidden_size, dtype=dtype))


COARSE = [dict(allow_tf32=True), dict(dtype="float16"), dict(dtype="bfloat16")]


@pytest.mark.parametrize("options", COARSE, ids=str)
@pytest.mark.parametrize("hidden_size", [64, 256, 512])
@pytest.mark.parametrize("mode", MODES)
def test_every_algorithm_stays_near_float32(mode, hidden_size, options):
    """The one for small layers takes 64 (vanilla: 256), the one that keeps weights in registers 256 in float16."""
    problem = problem_of(mode, hidden_size, input_size=128, num_layers=1)
    desc = rnnkit.RNNDescriptor(mode, 128, hidden_size, **options)
    kind = options.get("dtype", "tf32")
    w, x, dy = moved(*(array.astype(desc.np_dtype) for array in (problem.w, problem.x, problem.dy)))
    result = rnnkit.forward(desc, w, x)
    gradients = rnnkit.backward(desc, w, result.workspace, dy)
    expected = rnnkit.forward(problem.desc, problem.w, problem.x)
    assert_close_on_gpu("y", result.y.get(), expected.y, kind)
    if mode != "rnn_relu":  # whose units may round to the other side of the kink
        expected = rnnkit.backward(problem.desc, problem.w, expected.workspace, problem.dy)
        assert_gradient_close_on_gpu("dx", gradients.dx.get(), expected.dx, kind)
        assert_gradient_close_on_gpu("dw", gradients.dw.get(), expected.dw, kind)


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("lengths", [None, tuple(range(13, 21))])
@pytest.mark.parametrize("mode", MODES)
def test_same_bits_in_every_run(mode, lengths, tf32):
    problem = problem_of(mode, bidirectional=True, lengths=lengths, allow_tf32=tf32)
    first = on_gpu.step(problem)
    for _ in range(20):
        assert_same_step(on_gpu.step(problem), first)


@pytest.mark.parametrize("mode", MODES)
def test_new_memory_is_written_before_it_is_read(mode):
    import cupy

    problem = problem_of(mode, lengths=tuple(range(13, 21)))
    expected = on_gpu.step(problem)
    for nbytes in (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26):
        cupy.full(nbytes, 0xFF, np.uint8)  # NaN in every type; it goes back to the pool at once
    assert_same_step(on_gpu.step(problem), expected)


def test_threads_with_their_own_streams_give_the_same_bits():
    import cupy

    problem, results = problem_of("lstm"), []
    expected = on_gpu.step(problem)

    def work():
        with cupy.cuda.Stream(non_blocking=True):
            results.extend(on_gpu.step(problem) for _ in range(10))

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result()
    for found in results:
        assert_same_step(found, expected)


def test_longest_sequence_equals_the_host():
    problem = Problem(mode="lstm", dtype="float32", seq_len=MAX_CUDNN_STEPS, batch_size=1)
    found, expected = on_gpu.infer(problem), problem.infer()
    assert_close_on_gpu("y", found.y, expected.y, "tf32")  # rounding adds up over the steps


@pytest.mark.parametrize("dropout", [0.0, 1.0])
def test_dropout_of_0_and_1_equals_the_host(dropout):
    problem = problem_of("lstm", dropout=dropout)
    assert_close_on_gpu("y", on_gpu.step(problem)[0].y, problem.forward().y, "float32")


SHARED = """
import cupy
import rnnkit
def ours():
    net = rnnkit.LSTM(3, 4, seed=0).to(cupy)
    net.infer(cupy.ones((2, 1, 3), "float32"))
def theirs():
    import torch
    layer = torch.nn.LSTM(3, 4).cuda()
    layer(torch.ones(2, 1, 3, device="cuda"))
{first}()
{second}()
loaded = {{line.split()[-1] for line in open("/proc/self/maps") if "libcudnn.so" in line}}
print(len(loaded))
"""


@pytest.mark.parametrize("names", [("theirs", "ours"), ("ours", "theirs")])
def test_pytorch_and_rnnkit_load_one_libcudnn(names):
    if not needs("torch").cuda.is_available():
        pytest.skip("PyTorch without CUDA")
    program = SHARED.format(first=names[0], second=names[1])
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "1"), run.stderr
