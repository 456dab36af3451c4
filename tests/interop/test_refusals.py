"""What is no weights at all, or stands at no place: every converter says so by the argument's name."""

import os
import sys
from functools import partial

import numpy as np
import pytest
from messages import says
from optional import needs
from refused import refusals

import rnnkit
from rnnkit.interop import from_flux, from_keras, from_mxnet, from_onnx, from_torch, stack_onnx, to_torch
from rnnkit.interop.onnx_files import load_onnx, save_onnx
from rnnkit.interop.safetensors import load_safetensors, save_safetensors

NAMED = {"weight_ih_l0": np.ones((6, 3)), "weight_hh_l0": np.ones((6, 2))}
VANILLA = {"weight_ih_l0": np.ones((2, 3)), "weight_hh_l0": np.ones((2, 2))}
FLUX = {"Wi": np.ones((2, 3)), "Wh": np.ones((2, 2))}
KERAS = [np.ones((3, 6)), np.ones((2, 6))]
GRU = rnnkit.GRU(3, 2, seed=0)
VECTOR = np.zeros(200, np.float32)
ONNX = dict(op_type="LSTM", W=np.zeros((1, 8, 3), np.float32), R=np.zeros((1, 8, 2), np.float32))
NODE = from_onnx(**ONNX)
LONG = "weight_hh_l" + 5000 * "1"
PAIR = np.ones(2)
CLIP = dict(lstm_state_clip_min=PAIR, lstm_state_clip_max=1)
REFUSED = [
    (lambda: from_torch({5: np.ones(3)}), "TypeError from_torch: source | names | 5"),
    (lambda: from_torch(NAMED | {None: 1}), "TypeError from_torch: source | names | None"),
    (lambda: from_torch(NAMED, 5), "TypeError from_torch: prefix | str | int"),
    (lambda: to_torch(GRU, None), "TypeError to_torch: prefix | str | NoneType"),
    (lambda: from_torch(NAMED | {LONG: 1}), f"from_torch: source | nn.RNN | nn.GRU | nn.LSTM | {LONG}"),
    (lambda: from_torch(VANILLA, nonlinearity=PAIR), "from_torch: nonlinearity | tanh | relu | array"),
    (lambda: rnnkit.RNN(3, 2, nonlinearity=PAIR), "RNN: nonlinearity | tanh | relu | array"),
    (lambda: from_flux(FLUX, activation=PAIR), "from_flux: activation | tanh | relu | array"),
    (lambda: from_keras([[*KERAS, [[1], [1, 2]]]]), 'from_keras: source[0]["bias"] | array | host'),
    (lambda: from_mxnet(VECTOR, "lstm", 3, 5, **CLIP), "TypeError RNNDescriptor: cell_clip[0] | float | numpy.ndarray"),
    (lambda: from_onnx(**ONNX | dict(W=None)), "TypeError from_onnx: W | float32 | float64 | object"),
    (lambda: from_onnx(**ONNX | dict(R=None)), "TypeError from_onnx: R | float32 | float64 | object"),
    (lambda: from_onnx(**ONNX, activation_alpha=5), "TypeError from_onnx: activation_alpha | list | int"),
    (lambda: from_onnx(**ONNX, activation_beta=None), "TypeError from_onnx: activation_beta | list | NoneType"),
    (lambda: from_onnx(**ONNX, layout=PAIR), "from_onnx: layout | 0 | 1 | array"),
    (lambda: stack_onnx([NODE, NODE._replace(net=5)]), "TypeError stack_onnx: nodes[1].net | rnnkit | int"),
    (lambda: stack_onnx([NODE._replace(hx=[[[1, 0]]])]), "stack_onnx: nodes[0] | lengths | hx"),
    (lambda: load_onnx("net", 5), "TypeError load_onnx: names | None | int"),
    (lambda: load_onnx("net", [5]), "TypeError load_onnx: names | None | list"),
]


@refusals(anywhere=REFUSED)
def test_arguments_that_are_no_weights_are_refused(call, kind, expected):
    with pytest.raises(kind, match=expected):
        call()


def test_unfit_modules_are_refused_and_own_ones_taken():
    torch = needs("torch")
    model = torch.nn.Sequential(torch.nn.GRU(3, 2))
    with pytest.raises(ValueError, match=says("to_torch: module", "prefix='encoder'")):
        to_torch(GRU, "encoder", module=model)
    with pytest.raises(TypeError, match=says("to_torch: module", "PyTorch Module", "type")):
        to_torch(GRU, module=torch.nn.GRU)
    with pytest.raises(TypeError, match=says("from_torch: source", "PyTorch Module", "type")):
        from_torch(torch.nn.GRU)
    with pytest.raises(ValueError, match=says("from_torch: weight_ih_l0", "array", "meta")):
        from_torch(torch.nn.GRU(3, 2, device="meta"))
    own = torch.nn.Module()  # of a user, with the parameters of a GRU and no dropout
    own.weight_ih_l0, own.weight_hh_l0 = torch.nn.Parameter(torch.ones(6, 3)), torch.nn.Parameter(torch.ones(6, 2))
    assert from_torch(own).desc == rnnkit.RNNDescriptor("gru", 3, 2, bias="none")


PATHS = [
    (5, TypeError, ["str", "path-like", "int"]),
    (None, TypeError, ["str", "path-like", "NoneType"]),
    ("a\0b", ValueError, ["null", r"'a\x00b'"]),
]


@pytest.mark.parametrize(("path", "kind", "facts"), PATHS)
def test_values_that_are_no_path_are_refused(path, kind, facts):
    calls = {"load": rnnkit.load, "save": GRU.save, "load_onnx": load_onnx, "load_safetensors": load_safetensors}
    calls |= {one.__name__: partial(one, GRU) for one in (save_onnx, save_safetensors)}
    for name, call in calls.items():
        if name.endswith(("onnx", "safetensors")):
            needs(name.split("_")[1])
        with pytest.raises(kind, match=says(f"{name}: path", *facts)):
            call(path)


@pytest.mark.parametrize("dims", [[1, 8, -3], [1, -1, 3], [-(2**63), 8, 3], [-1, -1, 3]], ids=str)
@pytest.mark.parametrize("outside", [False, True])
def test_negative_sizes_of_a_tensor_are_refused(dims, outside, tmp_path):
    """reshape takes one for what the others leave."""
    onnx = needs("onnx")
    model = onnx.ModelProto.FromString(saved(tmp_path, outside))
    (tensor,) = (one for one in model.graph.initializer if one.name == "W_0")
    tensor.dims[:] = dims
    (tmp_path / "net").write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match=says("load_onnx: path", tmp_path / "net", "'layer_0'", "'W_0'", tuple(dims))):
        load_onnx(tmp_path / "net")


def saved(folder, outside):
    """The bytes of a model, whose tensors are in a file beside it or in these."""
    import onnx

    save_onnx(rnnkit.LSTM(3, 2, seed=0), folder / "net")
    if outside:
        model = onnx.load(folder / "net")
        onnx.save(model, folder / "net", save_as_external_data=True, location="data", size_threshold=0)
    return (folder / "net").read_bytes()


def test_file_names_may_be_bytes(tmp_path):
    needs("onnx")
    needs("safetensors")
    name = os.fsencode(tmp_path / "net")
    saved(tmp_path, outside=True)
    assert load_onnx(name)["layer_0"].net.desc == rnnkit.RNNDescriptor("lstm", 3, 2)
    save_safetensors(GRU, name)
    assert load_safetensors(name) == GRU


TO_FILES = {"onnx": (load_onnx, save_onnx), "safetensors": (load_safetensors, save_safetensors)}


@pytest.mark.parametrize("package", TO_FILES)
def test_missing_package_is_named_with_its_extra(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    load, save = TO_FILES[package]
    facts = "installed", "none", f"pip install 'rnnkit[{package}]'"
    with pytest.raises(ImportError, match=says(f"load_{package}: the package {package}", *facts)):
        load(tmp_path / "net")
    with pytest.raises(ImportError, match=says(f"save_{package}: the package {package}", *facts)):
        save(GRU, tmp_path / "net")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("package", TO_FILES)
def test_failed_save_leaves_the_file_as_it_was(package, tmp_path, monkeypatch):
    needs(package)
    (_, save), path = TO_FILES[package], tmp_path / "net"
    save(GRU, path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        save(rnnkit.GRU(3, 2, seed=1), path)
    assert caught.value.filename == os.fspath(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["net"]
    with pytest.raises(ValueError, match=says(f"save_{package}: path '{tmp_path}'", "regular file", "folder")):
        save(GRU, tmp_path)
