"""The binding on the real libcudnn, which needs no GPU for this; the stand-in refuses what the library refuses."""

import ctypes
import importlib.util
import os
import subprocess
import sys
from ctypes import byref, c_double, c_int
from pathlib import Path

import cudnn_header
import pytest
from gpu_standin import standin_gpu

from rnnkit import BackendError
from rnnkit.call.options import MAX_CUDNN_STEPS
from rnnkit.cuda import cudnn

P, I = ctypes.c_void_p, ctypes.c_int  # noqa: E741
READ_BACK = {  # prototypes that only this test needs
    "cudnnGetRNNDescriptor_v8": (I, [P] * 15),
    "cudnnRNNGetClip_v9": (I, [P, P, P, P]),
    "cudnnGetRNNDataDescriptor": (I, [P, P, P, P, P, P, I, P, P]),
    "cudnnGetTensorNdDescriptor": (I, [P, I, P, P, P, P]),
}


def installed():
    """The folder of cuDNN's headers and library in this Python, or None."""
    nvidia = importlib.util.find_spec("nvidia")
    roots = [Path(root, "cudnn") for root in (nvidia and nvidia.submodule_search_locations) or ()]
    return next((root for root in roots if (root / "lib" / "libcudnn.so.9").exists()), None)


FOLDER = installed()
# In continuous integration it must be there; elsewhere its half gigabyte is for who wants it.
pytestmark = pytest.mark.skipif(
    FOLDER is None and os.environ.get("CI") != "true", reason="cuDNN is not installed: pip install nvidia-cudnn-cu13"
)


def readable(library, dll):
    """The library, with the functions that only this test needs."""
    for name, (result, arguments) in READ_BACK.items():
        function = getattr(dll, name)
        function.restype, function.argtypes = result, arguments
        library._functions[name] = function
    return library


@pytest.fixture(scope="module")
def library():
    assert FOLDER is not None, "cuDNN is not installed"
    loaded = cudnn.load()
    return readable(loaded, ctypes.CDLL("libcudnn.so.9", mode=os.RTLD_NOLOAD | os.RTLD_NOW))


@pytest.fixture(scope="module")
def header():
    return cudnn_header.read(FOLDER / "include")


@pytest.fixture(params=["library", "stand-in"])
def either(request, library):
    """The real library, and the stand-in, which must answer the same."""
    if request.param == "library":
        yield library
        return
    with standin_gpu() as standin:
        yield readable(cudnn.load(), standin.dll(READ_BACK))


def test_library_is_loaded_once(library, monkeypatch):
    assert library.version // 10000 == 9
    assert library.query("cudnnGetCudartVersion") >= 12000
    assert cudnn.load() is library
    monkeypatch.setattr(cudnn, "_candidates", lambda: iter(()))  # the loaded one is found first
    assert cudnn.load.__wrapped__().version == library.version


def test_prototypes_are_those_of_the_header(header):
    found = cudnn_header.prototypes(header)
    expected = {**cudnn.SIGNATURES, **READ_BACK}
    assert {name: found.get(name) for name in expected} == expected


def test_numbers_are_those_of_the_header(header):
    found = cudnn_header.enumerators(header)
    modes, biases, dtypes = cudnn.MODES, cudnn.BIASES, cudnn.DTYPES
    algorithms, inputs = (cudnn.STANDARD, cudnn.PERSIST_STATIC, cudnn.PERSIST_STATIC_SMALL_H), cudnn.INPUT_MODES
    numbers = {
        "RNN_ALGO_STANDARD RNN_ALGO_PERSIST_STATIC RNN_ALGO_PERSIST_STATIC_SMALL_H": algorithms,
        "FWD_MODE_INFERENCE FWD_MODE_TRAINING": (cudnn.INFERENCE, cudnn.TRAINING),
        "RNN_RELU RNN_TANH LSTM GRU": (modes["rnn_relu"], modes["rnn_tanh"], modes["lstm"], modes["gru"]),
        "RNN_NO_BIAS RNN_DOUBLE_BIAS": (biases["none"], biases["both"]),
        "RNN_SINGLE_INP_BIAS RNN_SINGLE_REC_BIAS": (biases["input"], biases["recurrent"]),
        "UNIDIRECTIONAL BIDIRECTIONAL LINEAR_INPUT SKIP_INPUT": (0, 1, inputs["linear"], inputs["skip"]),
        "RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED": (cudnn.SEQ_MAJOR_UNPACKED,),
        "RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED": (cudnn.SEQ_MAJOR_PACKED,),
        "RNN_CLIP_MINMAX WGRAD_MODE_ADD": (cudnn.CLIP_MINMAX, cudnn.WGRAD_ADD),
        "DEFAULT_MATH TENSOR_OP_MATH FMA_MATH": (cudnn.DEFAULT_MATH, cudnn.TENSOR_OP_MATH, cudnn.FMA_MATH),
        "DATA_FLOAT DATA_DOUBLE": (dtypes["float32"], dtypes["float64"]),
        "DATA_HALF DATA_BFLOAT16": (dtypes["float16"], dtypes["bfloat16"]),
        "STATUS_NOT_SUPPORTED": (1000 * cudnn.NOT_SUPPORTED,),
    }
    for names, values in numbers.items():
        assert tuple(found.get(f"CUDNN_{name}") for name in names.split()) == values, names


# What is set can be read back


RNN = dict(algo=0, mode=2, bias=2, direction=1, input_mode=0, dtype=0, precision=0, math=3)
RNN |= dict(input_size=3, hidden_size=5, proj_size=5, layers=2, dropout=None, flags=0)
ACCEPTED_RNN = [
    *(dict(mode=mode, bias=bias) for mode in range(4) for bias in range(4)),
    *(dict(algo=algo, mode=mode) for mode in range(4) for algo in (1, 3)),
    *(dict(dtype=dtype, precision=precision) for dtype, precision in ((1, 1), (2, 0), (9, 0))),
    *(dict(proj_size=4, bias=1), dict(algo=3, mode=3, math=0, dtype=2), dict(direction=0, layers=1)),
    dict(input_mode=1, input_size=5),
]


def set_rnn(library, **changes):
    descriptor = cudnn.Descriptor(library, "RNN")
    library.call("cudnnSetRNNDescriptor_v8", descriptor, *{**RNN, **changes}.values())
    return descriptor


@pytest.mark.parametrize("changes", ACCEPTED_RNN, ids=str)
def test_rnn_descriptor_is_read_back_as_set(either, changes):
    descriptor = set_rnn(either, **changes)
    found = [c_int(-1) for _ in range(12)]
    dropout, flags = P(7), ctypes.c_uint(7)
    either.call("cudnnGetRNNDescriptor_v8", descriptor, *map(byref, found), byref(dropout), byref(flags))
    values = [number.value for number in found] + [dropout.value, flags.value]
    assert values == list({**RNN, **changes}.values())


@pytest.mark.parametrize("bounds", [(-0.25, 0.5), (float("-inf"), 1.0), (0.0, float("inf"))])
def test_clip_is_read_back_as_set(either, bounds):
    descriptor, mode, low, high = set_rnn(either), c_int(), c_double(), c_double()
    either.call("cudnnRNNSetClip_v9", descriptor, cudnn.CLIP_MINMAX, *bounds)
    either.call("cudnnRNNGetClip_v9", descriptor, byref(mode), byref(low), byref(high))
    assert (mode.value, low.value, high.value) == (cudnn.CLIP_MINMAX, *bounds)


UNPACKED, PACKED = cudnn.SEQ_MAJOR_UNPACKED, cudnn.SEQ_MAJOR_PACKED
SEQUENCES = [(UNPACKED, (5, 5)), (UNPACKED, (0, 3)), (PACKED, (5, 5)), (PACKED, (5, 3, 1))]
REFUSED_SEQUENCES = [
    *((UNPACKED, 4, lengths, 3) for lengths in ((5, 1), (-1, 1), ())),
    *((UNPACKED, 0, (0,), 3), (UNPACKED, 4, (4, 1), 0)),
    *((PACKED, 4, lengths, 3) for lengths in ((3, 4), (4, 0), (3, 2))),
]


@pytest.mark.parametrize("dtype", cudnn.DTYPES)
@pytest.mark.parametrize(("layout", "lengths"), SEQUENCES)
def test_sequences_descriptor_is_read_back_as_set(either, layout, lengths, dtype):
    descriptor, count = cudnn.sequences_descriptor(either, dtype, layout, 5, lengths, 4), len(lengths)
    found, padding = [c_int() for _ in range(5)], c_double(1)
    kept = (c_int * count)(*[-1] * count)
    either.call("cudnnGetRNNDataDescriptor", descriptor, *map(byref, found), count, kept, byref(padding))
    assert [number.value for number in found] == [cudnn.DTYPES[dtype], layout, 5, count, 4]
    itemsize = {"float64": 8, "float32": 4}.get(dtype, 2)
    assert tuple(kept) == lengths and bytes(padding)[:itemsize] == bytes(itemsize)


def test_tensor_descriptor_is_read_back_as_set(either):
    descriptor = cudnn.tensor_descriptor(either, "float64", (4, 3, 5))
    dtype, count, dims, strides = c_int(), c_int(), (c_int * 3)(), (c_int * 3)()
    either.call("cudnnGetTensorNdDescriptor", descriptor, 3, byref(dtype), byref(count), dims, strides)
    assert (dtype.value, count.value) == (1, 3)
    assert (list(dims), list(strides)) == ([4, 3, 5], [15, 5, 1])


# The weight space of every network. Its functions want a handle, but read nothing of it: zeros will do, and no GPU. In
# a process of its own, in case a version does read it.
LAYOUTS = """
import ctypes, itertools
import rnnkit
from rnnkit.cuda import cudnn

library, count = cudnn.load(), 0
zeros = ctypes.create_string_buffer(1 << 16)
handle, start = ctypes.c_void_p(ctypes.addressof(zeros)), 1 << 20
sizes = (1, 3), cudnn.DTYPES, (5, 16), (16, 17), (None, 5)
options = itertools.product(cudnn.MODES, cudnn.BIASES, (False, True), *sizes)
for mode, bias, both, layers, dtype, inputs, hidden, proj in options:
    if proj and mode != "lstm":
        continue
    sizes = dict(num_layers=layers, bidirectional=both, bias=bias, dtype=dtype, proj_size=proj)
    desc, rnn = rnnkit.RNNDescriptor(mode, inputs, hidden, **sizes), cudnn.Descriptor(library, "RNN")
    precision = cudnn.DTYPES["float64" if dtype == "float64" else "float32"]
    library.call(
        "cudnnSetRNNDescriptor_v8", rnn, 0, cudnn.MODES[mode], cudnn.BIASES[bias], int(both), 0, cudnn.DTYPES[dtype],
        precision, 0, inputs, hidden, proj or hidden, layers, None, 0
    )
    size, itemsize = ctypes.c_size_t(), desc.np_dtype.itemsize
    library.call("cudnnGetRNNWeightSpaceSize", handle, rnn, ctypes.byref(size))
    assert size.value == rnnkit.num_weights(desc) * itemsize, desc
    first = {"weight_ih": 0, "weight_hh": desc.num_gates, "weight_hr": 2 * desc.num_gates}
    first |= {"bias_ih": 0, "bias_hh": desc.num_gates}
    for name, shape, at in rnnkit.weight_layout(desc):
        kind, _, place = name.partition("_l")
        layer, reverse = int(place.split("_")[0]), place.endswith("_reverse")
        gates = 1 if kind == "weight_hr" else desc.num_gates
        rows = shape[0] // gates * (shape[1] if len(shape) > 1 else 1)
        for gate in range(gates):
            found = [ctypes.c_void_p() for _ in range(2)]
            tensors = [cudnn.Descriptor(library, "Tensor") for _ in range(2)]
            library.call(
                "cudnnGetRNNWeightParams", handle, rnn, layer * desc.num_directions + reverse, size.value, start,
                first[kind] + gate, tensors[0], ctypes.byref(found[0]), tensors[1], ctypes.byref(found[1])
            )
            assert found[kind.startswith("bias")].value == start + (at + gate * rows) * itemsize, (desc, name, gate)
            count += 1
print(count)
"""


def test_every_matrix_and_bias_is_where_the_library_has_it(library):
    run = subprocess.run([sys.executable, "-c", LAYOUTS], capture_output=True, text=True, check=False)
    assert run.returncode == 0 and int(run.stdout) > 10_000, run.stderr


# What is refused, by both

REFUSED_RNN = [
    (dict(proj_size=0), 2, "projSize <= 0"),
    (dict(proj_size=6), 3, "projSize"),
    (dict(proj_size=4, mode=3), 3, "projSize"),
    (dict(proj_size=4, algo=3), 3, "projSize"),
    (dict(bias=0, algo=1), 3, "biasMode != CUDNN_RNN_DOUBLE_BIAS"),
    (dict(bias=1, algo=3), 3, "biasMode != CUDNN_RNN_DOUBLE_BIAS"),
    *((dict(dtype=1, precision=1, algo=algo), 3, "") for algo in (1, 3)),
    *((dict(dtype=dtype, precision=precision), 3, "") for dtype, precision in ((0, 1), (1, 0), (9, 9))),
    *((one, 2, "") for one in (dict(input_size=0), dict(hidden_size=0), dict(layers=0), dict(flags=2))),
]


@pytest.mark.parametrize(("changes", "status", "reason"), REFUSED_RNN, ids=str)
def test_invalid_rnn_descriptor_is_refused_with_a_reason(either, changes, status, reason):
    kind = cudnn.NotSupportedError if status == cudnn.NOT_SUPPORTED else cudnn.CudnnError
    with pytest.raises(kind) as caught:
        set_rnn(either, **changes)
    assert type(caught.value) is kind and isinstance(caught.value, BackendError)
    assert caught.value.status // 1000 == status and caught.value.function == "cudnnSetRNNDescriptor_v8"
    assert reason in str(caught.value) and "no reason" not in str(caught.value)


@pytest.mark.parametrize("bounds", [(1.0, -1.0), (float("nan"), 1.0), (0.0, float("nan"))])
def test_invalid_clip_is_refused(either, bounds):
    with pytest.raises(cudnn.CudnnError, match="BAD_PARAM"):
        either.call("cudnnRNNSetClip_v9", set_rnn(either), cudnn.CLIP_MINMAX, *bounds)


@pytest.mark.parametrize(("layout", "seq_len", "lengths", "size"), REFUSED_SEQUENCES)
def test_invalid_sequences_are_refused(either, layout, seq_len, lengths, size):
    with pytest.raises(cudnn.CudnnError, match="BAD_PARAM"):
        cudnn.sequences_descriptor(either, "float32", layout, seq_len, lengths, size)


def test_sequences_beyond_the_longest_are_refused(either):
    cudnn.sequences_descriptor(either, "float32", UNPACKED, MAX_CUDNN_STEPS, (MAX_CUDNN_STEPS,), 3)
    with pytest.raises(cudnn.NotSupportedError, match="maxSeqLength"):
        cudnn.sequences_descriptor(either, "float32", UNPACKED, MAX_CUDNN_STEPS + 1, (1,), 3)


# Errors and loading


def test_asking_for_a_reason_leaves_the_callback_of_the_process(library):
    heard = []
    kind = ctypes.CFUNCTYPE(None, c_int, P, P, P)
    callback = kind(lambda *arguments: heard.append(arguments))
    mine = ctypes.cast(callback, P)

    def registered():
        mask, data, function = ctypes.c_uint(), P(), P()
        library.query("cudnnGetCallback", byref(mask), byref(data), byref(function))
        return mask.value, data.value, function.value

    library.query("cudnnSetCallback", 0b1100, 5, mine)
    try:
        before = registered()
        assert before[1:] == (5, mine.value)
        with pytest.raises(cudnn.NotSupportedError):
            set_rnn(library, bias=0, algo=1)
        assert registered() == before
    finally:
        library.query("cudnnSetCallback", 0, None, None)


def test_library_is_looked_for_in_wheels_conda_system_variable(monkeypatch):
    """The wheels first, then conda, the system, CUDNN_PATH."""
    monkeypatch.setenv("CONDA_PREFIX", "/conda")
    monkeypatch.setenv("CUDNN_PATH", "/cudnn")
    *wheels, conda, system, variable = cudnn._candidates()
    assert str(FOLDER / "lib" / "libcudnn.so.9") in wheels
    assert (conda, system, variable) == ("/conda/lib/libcudnn.so.9", "libcudnn.so.9", "/cudnn/lib/libcudnn.so.9")
