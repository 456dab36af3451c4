"""What the README and its pages say: examples run, commands are one line each, what is named is there."""

import argparse
import doctest
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from itertools import chain

import mutants.__main__
import pytest
from combinations import nightly
from optional import needs
from repository import ROOT

import perf.__main__
import rnnkit
from rnnkit.commands import command_line

README = (ROOT / "README.md").read_text()
NAMES = [f"docs/explanation/{name}" for name in ("engine", "layouts", "performance", "trust")]
NAMES += ["docs/how-to/gpu", "docs/reference/command-line", "CONTRIBUTING"]
PAGES = {name.rpartition("/")[2]: (ROOT / f"{name}.md").read_text() for name in NAMES}
ALL = "\n".join([README, *PAGES.values()])
NEEDS = {"rnnkit.torch": "torch", "rnnkit.jax": "jax", "rnnkit.keras": "keras"}
FIRST_PAGE = (ROOT / "docs" / "index.md").read_text()


def blocks(language, page=README):
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", [nightly(4) if number == 4 else number for number in range(7)])
def test_examples_run_in_an_empty_folder(number, tmp_path):
    """The fifth imports Keras, which takes long."""
    code = blocks("python")[number]
    for module in (needed for name, needed in NEEDS.items() if name in code):
        needs(module)
    (tmp_path / "example.py").write_text(code)
    environment = os.environ | {"KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path)}
    command = [sys.executable, *([] if "keras" in code else ["-W", "error"]), "example.py"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    if number == 0:
        assert [run.stdout] == blocks("text")
    if number == 6:
        assert "amp_step" in (tmp_path / "amplifier" / "amp.h").read_text()


def test_examples_are_eight_and_short():
    first, *others = blocks("python")
    own = [code for code in others if "@cell" in code]
    assert len(first.splitlines()) == 10 and len(others) == 7 and len(own) == 1
    assert all(len(code.replace("\n\n", "\n").splitlines()) <= 5 for code in others if code not in own)


def test_first_page_shows_the_code_of_the_readme():
    """Which runs: it includes the lines from one that it names to the end of the block."""
    included = re.findall(r"literalinclude\} \.\./README\.md\n(.*?)```\n", FIRST_PAGE, re.DOTALL)
    starts = [re.search(r":start-at: (.*)\n", options)[1] for options in included]
    found = [next(line for line in README.splitlines() if start in line) for start in starts]
    opened = [README.split(f"\n{line}\n")[0].rpartition("\n")[2] for line in found]
    assert opened == ["```python", "```text", *["```python"] * 7]
    assert len({*found}) == 9 and "```python" not in FIRST_PAGE


def test_examples_on_a_gpu_run(standin):
    for code in (blocks("python")[-1], *blocks("python", PAGES["gpu"])):
        names = {}
        exec(compile(code, "an example", "exec"), names)
        assert names["y"].shape == (20, 128, 16)
    assert names["gradients"].dw.shape == names["net"].weights.shape
    assert (names["result"].y.get()[:, 64:] == 0).all()


def test_session_prints_what_it_shows():
    page = ROOT / "docs" / "explanation" / "layouts.md"
    session = doctest.testfile(str(page), module_relative=False, globs={"rnnkit": rnnkit})
    assert (session.failed, session.attempted) == (0, 6)


def test_install_and_test_commands_are_one_line_each():
    train, test = blocks("sh")
    (device,), (measure,) = blocks("sh", PAGES["gpu"]), blocks("sh", PAGES["performance"])
    assert device == "python scripts/gpu_first_run.py --out report\n"  # test_gpu_first_run runs it
    assert measure.endswith(" && python -m perf run --out perf.csv\n")
    assert test.count("\n") == 1 and train.count("\n") == train.count("&&\n") + 1
    for command in (train, test):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert ".venv/bin/python -m rnnkit train" in train
    assert test.endswith(" && .venv/bin/python -m pytest\n")


def test_continuous_integration_runs_the_command_of_the_readme():
    (pattern,) = re.findall(r"grep '(.*)' README.md", (ROOT / ".ci" / "run").read_text())
    assert re.findall(pattern, README, re.MULTILINE) == [blocks("sh")[1].rstrip("\n")]


def options(parser):
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from options(command)


def test_command_line_page_has_each_command():
    actions = command_line.build_parser()._actions
    (commands,) = [action for action in actions if isinstance(action, argparse._SubParsersAction)]
    sections = re.split(r"^## rnnkit (\w+)$", PAGES["command-line"], flags=re.MULTILINE)[1:]
    assert sections[::2] == [*commands.choices]
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        assert f"\n$ rnnkit {name} " in text
        named = {*re.findall(r"(?<![\w-])--[a-z][a-z-]*", text.partition("\n## ")[0])}
        others = {"--log"} if name == "plot" else set()  # of the command that writes what this one reads
        assert named and named <= {*options(commands.choices[name]), *others}


def test_named_options_and_paths_exist():
    spans = re.findall(r"`([^`\n]+)`", ALL)
    named = {word for span in spans for word in re.findall(r"--[a-z][a-z0-9-]*", span)}
    assert named
    of_pytest = re.findall(r'"(--stress-[a-z]+)"', (ROOT / "tests" / "conftest.py").read_text())
    parsers = command_line.build_parser(), perf.__main__.build_parser(), mutants.__main__.build_parser()
    assert named <= {*chain.from_iterable(map(options, parsers)), *of_pytest, "--durations"}
    paths = {span for span in spans if re.fullmatch(r"[\w./-]*(/[\w.-]*|\.(md|toml|py))", span)}
    assert {"kernels/rnnkit_kernels/", "rnnkit/call/options.py"} <= paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`rnnkit\.(\w+)", ALL))))
def test_public_names_in_the_text_exist(name):
    assert hasattr(rnnkit, name) or find_spec(f"rnnkit.{name}")
