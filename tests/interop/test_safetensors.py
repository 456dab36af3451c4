"""Files of safetensors: PyTorch's names there and back, and files that lie."""

import json
import os
import struct
import tracemalloc
from contextlib import suppress

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


def with_header(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


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


def test_cells_of_pytorch_are_read(tmp_path):
    torch = needs("torch")
    from safetensors.torch import save_file

    cell, x = torch.nn.LSTMCell(3, 5), torch.rand(1, 2, 3)
    save_file({f"decoder.{name}": tensor for name, tensor in cell.state_dict().items()}, tmp_path / "cell")
    net = load_safetensors(tmp_path / "cell", "decoder")
    assert_close("y", net.infer(x.numpy()).y[0], cell(x[0])[0].detach().numpy(), "float32")


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


SHORT = np.ones(3, np.float32)
UNFIT = {
    "missing": ({}, ["source", 4, "RNNDescriptor('lstm', 3, 5)", 3, "bias_hh_l0"]),
    "extra": (dict(bias_l0=SHORT), ["source", "nn.RNN", "bias_l0"]),
    "misshapen": (dict(bias_hh_l0=SHORT), ["bias_hh_l0", "(4*hidden_size=20,)", (3,)]),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_tensors_of_no_network_are_refused(kind, tmp_path):
    more, (argument, *facts) = UNFIT[kind]
    tensors = named(**more)
    if kind == "missing":
        del tensors["bias_hh_l0"]
    assert_refused(plain(tmp_path / "net", tensors), f"from_torch: {argument}", *facts)


def test_other_dtypes_are_refused_by_name(tmp_path):
    path = plain(tmp_path / "net", named(bias_hh_l0=np.ones(20, np.float16)))
    with pytest.raises(TypeError, match=says("load_safetensors: the tensor 'bias_hh_l0'", "F32", "F64", "F16")):
        load_safetensors(path)
    path = plain(path, named(bias_hh_l0=np.ones(20)))
    assert_refused(path, "from_torch: bias_ih_l0", "float64", "bias_hh_l0", "float32", kind=TypeError)
    header = {"weight_hh_l0": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}
    with pytest.raises(TypeError, match=says("load_safetensors: the tensor 'weight_hh_l0'", "F32", "F64", "BF16")):
        load_safetensors(with_header(path, header, bytes(2)))


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
    (changed(num_layers=2), ["pack_weights: named", 8, "weight_layout"]),
    (changed(hidden_size=2**31), ["RNNDescriptor: hidden_size", 2147483647, 2**31]),
    (changed(more=1), ["missing fields []", "unknown fields ['more']"]),
    (lambda path: '{"mode": "lstm"}', ["missing fields ['allow_tf32', 'bias', 'bidirectional', "]),
    (lambda path: "[]", ["missing fields"]),
    # As json says:
    (lambda path: "", ["Expecting value"]),
    (lambda path: "[" * 100_000, ["maximum recursion depth"]),
    (lambda path: "1" * 5000, ["Exceeds"]),
]


@pytest.mark.parametrize(("text", "facts"), DESCRIPTORS, ids=range(len(DESCRIPTORS)))
def test_unfit_descriptor_is_refused(text, facts, tmp_path):
    path = written(tmp_path)
    assert_refused(plain(path, named(), {"rnnkit": text(path)}), *facts)


def test_file_of_rnnkit_takes_no_options_and_names_its_tensors(tmp_path):
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
def test_hostile_header_is_refused_before_memory_is_taken(claim, tmp_path):
    path = tmp_path / "net"
    if claim in CLAIMS:
        path.write_bytes(CLAIMS[claim])
    else:
        with_header(path, {"weight_hh_l0": ENTRIES[claim]}, bytes(4))
    assert_refused(path, *COMPLETE)
    assert peak_of(assert_refused, path, *COMPLETE) < 1 << 20


def test_file_cut_off_anywhere_is_refused(tmp_path):
    whole = written(tmp_path).read_bytes()
    for length in range(len(whole)):
        (tmp_path / "part").write_bytes(whole[:length])
        assert_refused(tmp_path / "part", *COMPLETE)


def test_damaged_file_loads_or_is_refused(tmp_path):
    whole = np.fromfile(written(tmp_path), np.uint8)
    rng, loaded = np.random.default_rng(0), []
    for _ in range(500):
        damaged = whole.copy()
        damaged[rng.integers(whole.size, size=2)] = rng.integers(256, size=2)
        damaged.tofile(tmp_path / "damaged")
        with suppress(ValueError, TypeError):
            loaded.append(load_safetensors(tmp_path / "damaged"))
    assert 10 < len(loaded) < 400


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


def test_folders_and_missing_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_safetensors(tmp_path / "none")
    assert_refused(tmp_path, "regular file", "folder")
