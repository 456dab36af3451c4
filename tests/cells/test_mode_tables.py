"""The adapters' tables have every mode, and what a table does not have is refused by name."""

import numpy as np
import pytest
from messages import says
from optional import needs

import rnnkit
from rnnkit import interop
from rnnkit.cuda import cudnn
from rnnkit.interop import onnx_operators
from rnnkit.network.classes import CLASSES, mode_of
from rnnkit_kernels.cells.modes import MODES


@pytest.mark.parametrize("table", [CLASSES, cudnn.MODES, onnx_operators.MODES])
def test_tables_have_every_mode_and_no_other(table):
    assert set(table) == set(MODES)


def test_classes_are_those_of_the_pytorch_modules():
    modules = needs("rnnkit.torch.modules")
    for mode, (name, arguments) in CLASSES.items():
        assert getattr(modules, name)(3, 5, **arguments)._rnnkit_desc(0.0).mode == mode


@pytest.mark.parametrize("mode", MODES)
def test_class_and_arguments_tell_the_mode(mode):
    name, arguments = CLASSES[mode]
    assert mode_of(name, **arguments) == mode == getattr(rnnkit, name)(3, 5, **arguments).mode


KNOWN = '"rnn_relu" or "rnn_tanh" or "lstm"'


@pytest.mark.parametrize("converter", ["to_torch", "to_jax", "to_flux", "to_mxnet", "to_keras", "to_onnx"])
def test_converter_refuses_a_mode_that_its_table_lacks(converter, monkeypatch):
    of_onnx = converter == "to_onnx"
    monkeypatch.delitem(onnx_operators.MODES if of_onnx else CLASSES, "gru")
    known = f"{KNOWN} or ActivatedLSTM or PeepholeLSTM or CoupledLSTM" if of_onnx else KNOWN
    with pytest.raises(ValueError, match=says(f"{converter}: net.desc.mode", known, "'gru'", "net.save")):
        getattr(interop, converter)(rnnkit.Network("gru", 3, 4, seed=0))


def test_network_takes_a_mode_without_a_class(monkeypatch, tmp_path):
    monkeypatch.delitem(CLASSES, "gru")
    net = rnnkit.Network("gru", 3, 4, seed=0)
    net.save(tmp_path / "net")
    assert rnnkit.load(tmp_path / "net") == net
    expected = says("GRU.from_descriptor: desc.mode", "GRU", "'gru'", "Network.from_descriptor")
    with pytest.raises(ValueError, match=expected):
        rnnkit.GRU.from_descriptor(net.desc)


def test_from_torch_refuses_a_mode_without_a_class(monkeypatch):
    monkeypatch.delitem(CLASSES, "gru")
    with pytest.raises(ValueError, match=says("from_torch: weight_hh_l0", "2 or 8 rows", 6)):
        interop.from_torch({"weight_ih_l0": np.ones((6, 3)), "weight_hh_l0": np.ones((6, 2))})
