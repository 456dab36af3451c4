"""Pickles that name modules as they were called until 0.10 and 0.19."""

import pickle
from importlib import import_module

import pytest

import rnnkit
from rnnkit.cells import JANET, HardSigmoid, PeepholeLSTM

OF_0_17 = {  # pickle.dumps(..., protocol=0) by 0.17
    b"crnnkit.kernels.cells.janet\nJANET\np0\n.": JANET,
    b"crnnkit.kernels.cells.activations\nHardSigmoid\np0\n.": HardSigmoid,
}


def test_pickles_by_0_17_load():
    for text, expected in OF_0_17.items():
        assert pickle.loads(text) is expected
    net = rnnkit.Network(PeepholeLSTM(gate=HardSigmoid(alpha=0.2)), 3, 4, seed=0)
    assert pickle.loads(pickle.dumps(net).replace(b"rnnkit_kernels", b"rnnkit.kernels")).desc == net.desc


def test_former_name_is_the_module_itself():
    former, now = import_module("rnnkit.kernels.cells.lstm"), import_module("rnnkit_kernels.cells.lstm")
    assert former is now and now.__spec__.name == "rnnkit_kernels.cells.lstm"


@pytest.mark.parametrize("name", ["RNNDescriptor", "LSTM", "GRU", "RNN", "Network"])
def test_classes_pickled_by_0_10_are_found(name):
    module = "descriptor" if name == "RNNDescriptor" else "network"
    assert pickle.loads(f"crnnkit.{module}\n{name}\n.".encode()) is getattr(rnnkit, name)
