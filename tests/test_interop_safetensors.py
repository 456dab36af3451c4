"""Files of safetensors: PyTorch's names there and back, and files that lie."""

import json
import os
import struct
import sys
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from messages import says
from tolerances import assert_close, assert_same_bits

import rnnkit
from rnnkit.interop.safetensors import load_safetensors, save_safetensors

safetensors = pytest.importorskip("safetensors")
library = pytest.importorskip("safetensors.numpy")

NETS = {
    "rnn": lambda: rnnkit.RNN(3, 5, seed=0),
    "relu": lambda: rnnkit.RNN(3, 5, nonlinearity="relu", num_layers=2, seed=0),
    "gru": lambda: rnnkit.GRU(3, 5, bidirectional=True, bias="none", dropout=0.5, num_layers=2, seed=0),
    "gru-before": lambda: rnnkit.GRU(3, 5, reset_after=False, bias="recurrent", seed=0),
    "lstm": lambda: rnnkit.LSTM(3, 5, proj_size=2, cell_clip=(-1, float("inf")), dtype="float64", seed=0),
    "skip": lambda: rnnkit.LSTM(5, 5, input_mode="skip", bias="input", seed=0),
}


def named(net=None):
    return dict((rnnkit.LSTM(3, 5, seed=0) if net is None else net).views)


def plain(path, tensors, metadata=None):
    """A file that another program wrote."""
    library.save_file(tensors, path, metadata)
    return path


def with_header(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def assert_refused(path, *facts, kind=ValueError, **options):
    with pytest.raises(kind, match=says(f"load_safetensors: path {os.fspath(path)!r}", *facts)):
        load_safetensors(path, **options)


@pytest.mark.parametrize("prefix", ["", "encoder.rnn", "encoder.rnn."])
@pytest.mark.parametrize("kind", NETS)
def test_there_and_back_keeps_weights_and_options(kind, prefix, tmp_path):
    net, path = NETS[kind](), tmp_path / "net"
    save_safetensors(net, path, prefix)
    back = load_safetensors(path, prefix)
    assert back.desc == net.desc and type(back) is type(net)
    assert_same_bits("weights", back.weights, net.weights)
    before = "encoder.rnn." if prefix else ""
    assert library.load_file(path).keys() == {before + name for name in net.views}


def test_pytorch_loads_what_is_written_and_is_loaded(tmp_path):
    torch = pytest.importorskip("torch")
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


def test_a_file_of_others_says_where_its_networks_are(tmp_path):
    tensors = {f"rnn.{name}": array for name, array in named().items()} | {"head.weight": np.ones((2, 5), np.float16)}
    path = plain(tmp_path / "net", tensors)
    assert_refused(path, "from_torch: source", "weight_hh_l0", 5, "prefix='rnn'")
    assert load_safetensors(path, "rnn", dropout=0.5).desc.dropout == 0.5
    assert_refused(path, "from_torch: nonlinearity", 'mode="lstm"', "relu", prefix="rnn", nonlinearity="relu")


def test_what_does_not_stand_at_the_prefix_is_not_read(tmp_path):
    tensors = {f"rnn.{name}": array for name, array in named().items()}
    tensors["table"] = np.ones((1000, 1000), np.float32)
    path = plain(tmp_path / "net", tensors)
    tracemalloc.start()
    load_safetensors(path, "rnn")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


UNFIT = {
    "missing": (lambda t: t.pop("bias_hh_l0"), ["source", 4, "RNNDescriptor('lstm', 3, 5)", 3, "bias_hh_l0"]),
    "extra": (lambda t: t.update(bias_l0=np.ones(3, np.float32)), ["source", "nn.RNN", "bias_l0"]),
    "misshapen": (lambda t: t.update(bias_hh_l0=np.ones(3, np.float32)), ["bias_hh_l0", "(4*hidden_size=20,)", (3,)]),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_tensors_that_are_no_network_are_refused(kind, tmp_path):
    change, (argument, *facts) = UNFIT[kind]
    tensors = named()
    change(tensors)
    assert_refused(plain(tmp_path / "net", tensors), f"from_torch: {argument}", *facts)


def test_other_dtypes_are_refused_by_name(tmp_path):
    tensors = named() | {"bias_hh_l0": np.ones(20, np.float16)}
    path = plain(tmp_path / "net", tensors)
    with pytest.raises(TypeError, match=says("load_safetensors: the tensor 'bias_hh_l0'", "F32", "F64", "F16")):
        load_safetensors(path)
    path = plain(path, named() | {"bias_hh_l0": np.ones(20)})
    assert_refused(path, "from_torch: bias_ih_l0", "float64", "bias_hh_l0", "float32", kind=TypeError)
    header = {"weight_hh_l0": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}
    with pytest.raises(TypeError, match=says("load_safetensors: the tensor 'weight_hh_l0'", "F32", "F64", "BF16")):
        load_safetensors(with_header(path, header, bytes(2)))


def described(path, text, **changed):
    return plain(path, named() | changed, {"rnnkit": text})


def descriptor(tmp_path):
    save_safetensors(rnnkit.LSTM(3, 5, seed=0), tmp_path / "net")
    with safetensors.safe_open(os.fspath(tmp_path / "net"), framework="numpy") as file:
        return json.loads(file.metadata()["rnnkit"])


DESCRIPTORS = [
    (lambda found: found | {"hidden_size": 6}, ["pack_weights: named", "weight_layout(desc)"]),
    (lambda found: found | {"num_layers": 2}, ["pack_weights: named", 8, "weight_layout"]),
    (lambda found: found | {"hidden_size": 2**31}, ["RNNDescriptor: hidden_size", 2147483647, 2**31]),
    (lambda found: found | {"more": 1}, ["missing fields []", "unknown fields ['more']"]),
    (lambda found: {"mode": "lstm"}, ["missing fields ['allow_tf32', 'bias', 'bidirectional', "]),
    (lambda found: [], ["missing fields"]),
]


@pytest.mark.parametrize(("change", "facts"), DESCRIPTORS, ids=range(len(DESCRIPTORS)))
def test_a_descriptor_that_does_not_fit_is_refused(change, facts, tmp_path):
    path = described(tmp_path / "net", json.dumps(change(descriptor(tmp_path))))
    assert_refused(path, *facts)


def test_a_descriptor_that_is_none_is_refused(tmp_path):
    for text, got in {"": "Expecting value", "[" * 100_000: "maximum recursion depth", "1" * 5000: "Exceeds"}.items():
        assert_refused(described(tmp_path / "net", text), got)  # as json says


def test_a_file_of_ours_takes_no_options_and_names_its_tensors(tmp_path):
    save_safetensors(rnnkit.RNN(3, 5), tmp_path / "net", "one")
    assert_refused(tmp_path / "net", "dropout", prefix="one", dropout=0)
    assert_refused(tmp_path / "net", "prefix='two.'", "one.", prefix="two")


COMPLETE = "safetensors", "damaged"
CLAIMS = {
    "long header": struct.pack("<Q", 2**62) + b"{}",
    "no header": b"",
    "no JSON": struct.pack("<Q", 3) + b"{{{",
    "no UTF-8": struct.pack("<Q", 3) + b"\xff\xfe\xff",
    "deep": struct.pack("<Q", 100_000) + b"[" * 100_000,
}
ENTRIES = {
    "too much": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]},
    "overflow": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]},
    "backwards": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]},
    "negative": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
    "no such dtype": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]},
    "other size": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
    "nothing": {},
}


@pytest.mark.parametrize("claim", [*CLAIMS, *ENTRIES])
def test_a_hostile_header_is_refused_before_memory_is_taken(claim, tmp_path):
    path = tmp_path / "net"
    if claim in CLAIMS:
        path.write_bytes(CLAIMS[claim])
    else:
        with_header(path, {"weight_hh_l0": ENTRIES[claim]}, bytes(4))
    assert_refused(path, *COMPLETE)
    tracemalloc.start()
    assert_refused(path, *COMPLETE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_file_that_is_cut_off_anywhere(tmp_path):
    save_safetensors(rnnkit.LSTM(3, 5, seed=0), tmp_path / "net")
    whole = (tmp_path / "net").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "part").write_bytes(whole[:length])
        assert_refused(tmp_path / "part", *COMPLETE)


def test_a_damaged_file_loads_or_is_refused(tmp_path):
    save_safetensors(rnnkit.LSTM(3, 5, seed=0), tmp_path / "net")
    whole = np.fromfile(tmp_path / "net", np.uint8)
    rng, loaded = np.random.default_rng(0), []
    for _ in range(500):
        damaged = whole.copy()
        damaged[rng.integers(whole.size, size=2)] = rng.integers(256, size=2)
        damaged.tofile(tmp_path / "damaged")
        with suppress(ValueError, TypeError):
            loaded.append(load_safetensors(tmp_path / "damaged"))
    assert 10 < len(loaded) < 400


def test_what_is_no_file_and_what_is_no_network(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_safetensors(tmp_path / "none")
    assert_refused(tmp_path, "regular file", "folder")
    with pytest.raises(TypeError, match=says("load_safetensors: prefix", "str", "int")):
        load_safetensors(tmp_path / "none", 1)
    with pytest.raises(TypeError, match=says("save_safetensors: prefix", "str", "NoneType")):
        save_safetensors(rnnkit.GRU(3, 2), tmp_path / "none", None)
    with pytest.raises(TypeError, match=says("save_safetensors: net", "rnnkit.RNN", "GRU", "LSTM", "dict")):
        save_safetensors({}, tmp_path / "none")
    with pytest.raises(ValueError, match=says("save_safetensors: net.desc.dtype", "float32", "float64", "float16")):
        save_safetensors(rnnkit.GRU(3, 2, dtype="float16"), tmp_path / "none")
    assert os.listdir(tmp_path) == []


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "net"
    save_safetensors(rnnkit.GRU(3, 2, seed=0), path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_safetensors(rnnkit.GRU(3, 2, seed=1), path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["net"]


def test_the_package_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    facts = "installed", "none", "pip install 'rnnkit[safetensors]'"
    with pytest.raises(ImportError, match=says("load_safetensors: the package safetensors", *facts)):
        load_safetensors(tmp_path / "net")
    with pytest.raises(ImportError, match=says("save_safetensors: the package safetensors", *facts)):
        save_safetensors(rnnkit.GRU(3, 2), tmp_path / "net")
    assert os.listdir(tmp_path) == []
