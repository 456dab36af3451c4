"""Whatever `save` writes, `load` reads: names that a file cannot have are refused, and the old file stays."""

import os
from argparse import Namespace

import numpy as np
import pytest
from messages import raises
from traced import traced_bytes

from rnnkit import GRU, RNNDescriptor, load
from rnnkit.language_model import files
from rnnkit.language_model.checkpoint import load as load_run
from rnnkit.language_model.configuration import parsed
from rnnkit.language_model.corpus import read_files
from rnnkit.language_model.model import TextModel
from rnnkit.language_model.options import add_train_options
from rnnkit.language_model.report import read_log


def assert_refused_and_kept(path, text, net=None, **arrays):
    net, before = net or GRU(3, 2, seed=1), path.read_bytes()
    with raises(ValueError, text):
        net.save(path, **arrays)
    assert path.read_bytes() == before and [found.name for found in path.parent.iterdir()] == [path.name]


@pytest.fixture
def path(tmp_path):
    GRU(3, 2, seed=0).save(tmp_path / "net")
    return tmp_path / "net"


NAMES = {
    "nul": ("a\0b", r"'a\x00b'"),
    "nul alone": ("\0", r"'\x00'"),
    "surrogate": ("a\ud800", r"'a\ud800'"),
    "long": ("x" * 70_000, repr("x" * 80)),
    "wide": ("ü" * 33_000, repr("ü" * 80)),
}


@pytest.mark.parametrize("kind", NAMES)
def test_name_that_no_member_can_have_is_refused(path, kind):
    name, got = NAMES[kind]
    assert_refused_and_kept(path, f"save: name | 65531 | UTF-8 | NUL | {got}", **{name: np.zeros(3)})


def test_name_that_is_no_text_is_refused(path):
    net = GRU(3, 2, seed=1)
    net.arrays[1] = net.arrays["1"] = np.zeros(3)
    with raises(TypeError, "save: name | text | int"):
        net.save(path)
    assert load(path) == GRU(3, 2, seed=0)


def test_every_other_name_is_read_back(path):
    names = ["x" * 65_531, "ü" * 32_765, "", "a/b", "../a", "a.npy", ".npy", " ", "\n", "C:\\a", "self "]
    GRU(3, 2).save(path, **dict.fromkeys(names, np.arange(3)))
    assert list(load(path).arrays) == names


def test_more_names_than_a_directory_holds_are_refused(path):
    """Members whose names together are longer than what `load` reads of a directory."""
    arrays = {f"{number:060000}": np.zeros(3) for number in range(20)}
    assert_refused_and_kept(path, f"save: path '{path}' | .npz | directory", **arrays)


def test_text_that_load_would_refuse_is_not_saved(path, monkeypatch):
    model = TextModel.random(RNNDescriptor("gru", 2, 2), 0)
    model.trained_with = {"text": "x" * 1000}
    monkeypatch.setattr(files, "MAX_CHARS", 999)
    assert_refused_and_kept(path, f"save: path '{path}' | trained_with | text | 999 | 1012", model)


def test_weights_are_not_copied_to_be_checked(path):
    weights = np.zeros(1 << 25, np.float32)
    _, peak = traced_bytes(lambda: GRU(3, 2).save(path, weights_of_another=weights))
    assert peak < weights.nbytes / 4


MEMORY = "/proc/self/mem"  # a file that is opened and cannot be read


def configuration(path):
    return parsed(add_train_options, Namespace(config=path))


@pytest.mark.skipif(not os.path.exists(MEMORY), reason="only Linux has it")
@pytest.mark.parametrize("read", [load, load_run, read_log, lambda path: read_files([path]), configuration])
def test_error_while_a_file_is_read_names_it(read):
    with pytest.raises(OSError) as caught:
        read(MEMORY)
    assert caught.value.filename == MEMORY
