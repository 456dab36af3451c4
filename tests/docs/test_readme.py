"""What the README and its pages say: examples run, commands are one line each, what is named is there."""

import argparse
import doctest
import re
import subprocess
import sys
from importlib.util import find_spec
from itertools import chain

import mutants.__main__
import pytest
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
NEEDS = {"rnnkit.torch": "torch"}


def blocks(language, page=README):
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(3))
def test_examples_run_in_an_empty_folder(number, tmp_path):
    code = blocks("python")[number]
    for module in (needed for name, needed in NEEDS.items() if name in code):
        needs(module)
    (tmp_path / "example.py").write_text(code)
    run = subprocess.run([sys.executable, "-W", "error", "example.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    if number == 0:
        assert run.stdout == "(20, 2, 16) (1408,)\n" and rnnkit.load(tmp_path / "net.npz").mode == "lstm"


def test_examples_are_three_and_short():
    first, second, third = (len(code.splitlines()) for code in blocks("python"))
    assert first <= 12 and max(second, third) <= 15


def test_example_on_a_gpu_runs(standin):
    names = {}
    (code,) = blocks("python", PAGES["gpu"])
    exec(compile(code, "gpu.md", "exec"), names)
    assert names["y"].shape == (20, 128, 16) and names["gradients"].dw.shape == names["net"].weights.shape
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
    for command in (train, test):
        assert command.count("\n") == 1
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
