"""Files of safetensors: PyTorch's names there and back, and files that lie."""

import json
import os
import struct
import tracemalloc

import numpy as np
import pytest
import safetensors
from messages import says
from optional import needs
from refused import refusals
from tolerances import assert_close, assert_same_bits

import rnnkit
from rnnkit.interop.safetensors import load_safetensors, save_safetensors

library = needs("safetensors.numpy")

NETS = {
    "rnn": lambda: rnnkit.RNN(3, 5, seed=0),
    "relu": lambda: rnnkit.RNN(3, 5, nonlinearity="relu", num_layers=2, seed=0),
    "gru": lambda: rnnkit.GRU(3, 5, bidirectional=True, bias="none", dropout=0.5, num_layers=2, seed=0),
    "gru-before": lambda: rnnkit.GRU(3, 5, reset_after=False, bias="recurrent", seed=0),
    "lstm": lambda: rnnkit.LSTM(3, 5, proj_size=2, cell_clip=(-1, float("inf")), dtype="float64", seed=0),
    "skip": lambda: rnnkit.LSTM(5, 5, input_mode="skip", bias="input", seed=0),
}


def named(prefix="", **more):
    return {prefix + name: view for name, view in rnnkit.LSTM(3, 5, seed=0).views.items()} | more


def plain(path, tensors, metadata=None):
    """A file that another program wrote."""
    library.save_file(tensors, path, metadata)
    return path


def with_header(header, data=b""):
    """The bytes of a file."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def assert_refused(path, *facts, kind=ValueError, **options):
    with pytest.raises(kind, match=says(f"load_safetensors: path {os.fspath(path)!r}", *facts)):
        load_safetensors(path, **options)


@pytest.mark.parametrize("prefix", ["", "encoder.rnn", "encoder.rnn."])
@pytest.mark.parametrize("kind", NETS)
def test_round_trip_keeps_weights_and_options(kind, prefix, tmp_path):
    net, path = NETS[kind](), tmp_path / "net"
    save_safetensors(net, path, prefix)
    back = load_safetensors(path, prefix)
    assert back.desc == net.desc and type(back) is type(net)
    assert_same_bits("weights", back.weights, net.weights)
    before = "encoder.rnn." if prefix else ""
    assert library.load_file(path).keys() == {before + name for name in net.views}


def test_files_are_exchanged_with_pytorch(tmp_path):
    torch = needs("torch")
    from safetensors.torch import load_file, save_file

    net = rnnkit.LSTM(3, 5, num_layers=2, bidirectional=True, seed=0)
    save_safetensors(net, tmp_path / "net")
    module = torch.nn.LSTM(3, 5, num_layers=2, bidirectional=True)
    module.load_state_dict(load_file(tmp_path / "net"))
    x = torch.rand(4, 2, 3)
    assert_close("y", net.infer(x.numpy()).y, module(x)[0].detach().numpy(), "float32")
    model = torch.nn.ModuleDict({"rnn": torch.nn.RNN(3, 5, nonlinearity="relu"), "head": torch.nn.Linear(5, 2).half()})
    save_file(model.state_dict(), tmp_path / "model")
    back = load_safetensors(tmp_path / "model", "rnn", nonlinearity="relu")
    assert_close("y", back.infer(x.numpy()).y, model["rnn"](x)[0].detach().numpy(), "float32")


def test_file_of_another_program_names_its_prefix(tmp_path):
    path = plain(tmp_path / "net", named("rnn.") | {"head.weight": np.ones((2, 5), np.float16)})
    assert_refused(path, "from_torch: source", "weight_hh_l0", 5, "prefix='rnn'")
    assert load_safetensors(path, "rnn", dropout=0.5).desc.dropout == 0.5
    assert_refused(path, "from_torch: nonlinearity", 'mode="lstm"', "relu", prefix="rnn", nonlinearity="relu")


def peak_of(call, *args, **options):
    """The most bytes that a call had at once."""
    tracemalloc.start()
    call(*args, **options)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_tensors_outside_of_the_prefix_are_not_read(tmp_path):
    path = plain(tmp_path / "net", named("rnn.", table=np.ones((1000, 1000), np.float32)))
    assert peak_of(load_safetensors, path, "rnn") < 1_000_000


def test_other_dtypes_are_refused_by_name(tmp_path):
    path = plain(tmp_path / "net", named(bias_hh_l0=np.ones(20, np.float16)))
    with pytest.raises(TypeError, match=says("load_safetensors: the tensor 'bias_hh_l0'", "F32", "F64", "F16")):
        load_safetensors(path)
    path = plain(path, named(bias_hh_l0=np.ones(20)))
    assert_refused(path, "from_torch: bias_ih_l0", "float64", "bias_hh_l0", "float32", kind=TypeError)
    header = {"weight_hh_l0": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}
    path.write_bytes(with_header(header, bytes(2)))
    with pytest.raises(TypeError, match=says("load_safetensors: the tensor 'weight_hh_l0'", "F32", "F64", "BF16")):
        load_safetensors(path)


def written(folder):
    save_safetensors(rnnkit.LSTM(3, 5, seed=0), folder / "net")
    return folder / "net"


def changed(**fields):
    """The descriptor that a file has, with other fields."""

    def text(path):
        with safetensors.safe_open(os.fspath(path), framework="numpy") as file:
            return json.dumps(json.loads(file.metadata()["rnnkit"]) | fields)

    return text


DESCRIPTORS = [
    (changed(hidden_size=6), ["pack_weights: named", "weight_layout(desc)"]),
    (changed(hidden_size=2**31), ["RNNDescriptor: hidden_size", 2147483647, 2**31]),
    (changed(more=1), ["missing fields []", "unknown fields ['more']"]),
    (lambda path: "", ["Expecting value"]),  # as json says
]


@pytest.mark.parametrize(("text", "facts"), DESCRIPTORS, ids=range(len(DESCRIPTORS)))
def test_unfit_descriptor_is_refused(text, facts, tmp_path):
    path = written(tmp_path)
    assert_refused(plain(path, named(), {"rnnkit": text(path)}), *facts)


def test_file_of_rnnkit_takes_no_options_and_names_its_tensors(tmp_path):
    save_safetensors(rnnkit.RNN(3, 5), tmp_path / "net", "one")
    assert_refused(tmp_path / "net", "dropout", prefix="one", dropout=0)
    assert_refused(tmp_path / "net", "prefix='two.'", "one.", prefix="two")


HOSTILE = {
    "long header": struct.pack("<Q", 2**62) + b"{}",
    "no header": b"",
    "deep": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "too much": with_header({"weight_hh_l0": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}),
    "other size": with_header({"weight_hh_l0": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)),
}


@pytest.mark.parametrize("claim", HOSTILE)
def test_hostile_header_is_refused_before_memory_is_taken(claim, tmp_path):
    (tmp_path / "net").write_bytes(HOSTILE[claim])
    assert peak_of(assert_refused, tmp_path / "net", "safetensors", "damaged") < 1 << 20


HALF = rnnkit.GRU(3, 2, dtype="float16")
REFUSED = [
    (lambda path: load_safetensors(path, 1), "TypeError load_safetensors: prefix | str | int"),
    (lambda path: save_safetensors(HALF, path, None), "TypeError save_safetensors: prefix | str | NoneType"),
    (lambda path: save_safetensors({}, path), "TypeError save_safetensors: net | rnnkit.RNN | GRU | LSTM | dict"),
    (lambda path: save_safetensors(HALF, path), "save_safetensors: net.desc.dtype | float32 | float64 | float16"),
]


@refusals(anywhere=REFUSED)
def test_unfit_arguments_are_refused_unwritten(call, kind, expected, tmp_path):
    with pytest.raises(kind, match=expected):
        call(tmp_path / "none")
    assert os.listdir(tmp_path) == []
