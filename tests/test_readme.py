"""What the README and its pages say: examples run, commands are one line each, what is named is there."""

import argparse
import doctest
import os
import re
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import mutants.__main__
import numpy as np
import pytest

import perf.__main__
import rnnkit
from rnnkit.language_model import command_line

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
NAMES = "contributing/index", "explanation/engine", "how-to/gpu", "explanation/performance", "explanation/trust", "explanation/layouts"
PAGES = {name.split("/")[-1]: (ROOT / "docs" / f"{name}.md").read_text() for name in NAMES}
ALL = "\n".join([README, *PAGES.values()])


def blocks(language, page=README):
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def block_that_begins(text, page=README):
    (found,) = [block for block in blocks("python", page) if block.startswith(text)]
    return found


def example():
    return block_that_begins("import numpy")


def test_three_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"rnnkit": rnnkit, "x": np.ones((20, 2, 4), np.float32)}
    exec(compile(block_that_begins("net = "), "README.md", "exec"), names)
    assert names["y"].shape == (20, 2, 16) and rnnkit.load("net.npz") == names["net"]


def test_the_example_learns_and_its_shapes_are_as_stated():
    names = {}
    exec(compile(example(), "README.md", "exec"), names)
    assert names["accuracy"] > 0.9
    assert names["dw"].shape == (names["net"].desc.num_gates * 16 * (4 + 16 + 2),)
    assert names["target"].shape == names["error"].shape == (128,)
    shapes = {"dhy": (1, 128, 16), "dx": (20, 128, 4), "y": (128, 16), "hx": (1, 128, 16)}
    assert {name: names[name].shape for name in shapes} == shapes


def test_the_example_on_a_gpu(standin):
    names = {}
    exec(compile(block_that_begins("import cupy", PAGES["gpu"]), "gpu.md", "exec"), names)
    assert names["y"].shape == (20, 128, 16) and names["gradients"].dw.shape == names["net"].weights.shape
    assert (names["result"].y.get()[:, 64:] == 0).all()


def test_a_model_of_pytorch():
    if os.environ.get("CI") != "true":
        pytest.importorskip("torch")
    from torch import nn

    names = {"model": nn.ModuleDict({"encoder": nn.GRU(3, 4)}), "rnnkit": rnnkit}
    exec(compile(block_that_begins("import rnnkit.interop"), "README.md", "exec"), names)
    assert names["changed"] == ("encoder",) and names["net"].desc.mode == "gru"


def test_the_example_is_about_twenty_lines():
    assert 15 <= len(example().splitlines()) <= 25


def test_the_session_prints_what_it_shows():
    session = doctest.testfile(str(ROOT / "docs" / "explanation" / "layouts.md"), module_relative=False, globs={"rnnkit": rnnkit})
    assert (session.failed, session.attempted) == (0, 4)


def test_two_commands_of_one_line_each():
    train, test = blocks("sh")
    (device,), (measure,) = blocks("sh", PAGES["gpu"]), blocks("sh", PAGES["performance"])
    assert device == ".venv/bin/python -m pytest -m gpu && .venv/bin/python -m perf run --device cuda\n"
    assert measure.endswith(" && .venv/bin/python -m perf run --out perf.csv\n")
    for command in (train, test):
        assert command.count("\n") == 1
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert ".venv/bin/python -m rnnkit train" in train
    assert test.endswith(" && .venv/bin/python -m pytest\n")


def test_continuous_integration_takes_the_command_from_here():
    (pattern,) = re.findall(r"grep '(.*)' README.md", (ROOT / ".ci" / "run").read_text())
    assert re.findall(pattern, README, re.MULTILINE) == [blocks("sh")[1].rstrip("\n")]


def options(parser):
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from options(command)


def test_every_option_and_path_exists():
    spans = re.findall(r"`([^`\n]+)`", ALL)
    named = {word for span in spans for word in re.findall(r"--[a-z][a-z0-9-]*", span)}
    assert named
    of_pytest = re.findall(r'"(--stress-[a-z]+)"', (ROOT / "tests" / "conftest.py").read_text())
    parsers = command_line.build_parser(), perf.__main__.build_parser(), mutants.__main__.build_parser()
    assert named <= {*chain.from_iterable(map(options, parsers)), *of_pytest, "--durations"}
    paths = {span for span in spans if re.fullmatch(r"[\w./-]*(/[\w.-]*|\.(md|toml|py))", span)}
    assert {"rnnkit/kernels/", "rnnkit/descriptor/weights.py"} <= paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`rnnkit\.(\w+)", ALL))))
def test_every_name_exists(name):
    assert hasattr(rnnkit, name) or find_spec(f"rnnkit.{name}")
