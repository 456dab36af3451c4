"""The programs of the gallery that print: each runs as it is, and its page shows what it prints."""

import re
import subprocess
import sys

import pytest
from installed import needs_installed
from repository import ROOT

PAGES = sorted((ROOT / "docs" / "programs").glob("*.md"))
FILES = sorted((ROOT / "examples").glob("[!_]*.py"))
PROGRAMS = {path.stem: path for path in FILES}
NEEDS = {name: ["torch"] for name in ("accelerate_pytorch", "gradient_penalty", "meta_learning")}
NEEDS |= {"recurrent_ppo": ["jax", "optax"], "amplifier": ["cc"]}
MOST_LINES = {"gru_in_numpy": 160, "recurrent_ppo": 110}  # of the others 90
NUMBER = r"\d+(?:\.\d+)?(?:e[+-]\d+)?"
TIME = rf" *(?:{NUMBER}|\.\.\.) *(?:ms|us|s|x|threads)\b"  # the machine's own: left out on the page


def shown():
    """Program -> what it prints, on its page."""
    section = r"^```\{literalinclude\} \.\./\.\./examples/(\w+)\.py\n:language: python\n```$.*?^```text\n(.*?)^```$"
    found = {page: re.findall(section, page.read_text(), re.MULTILINE | re.DOTALL) for page in PAGES}
    assert [
        page.name for page, own in found.items() if [name for name, _ in own] != [page.stem.replace("-", "_")]
    ] == []
    return dict(one for own in found.values() for one in own)


def test_every_program_has_a_page():
    assert shown().keys() == PROGRAMS.keys()


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_short(name):
    lines = PROGRAMS[name].read_text().splitlines()
    assert len(lines) <= MOST_LINES.get(name, 90)
    assert lines[0].startswith('"""')


def numbers_after(printed, start):
    """The numbers of the line that begins so."""
    [line] = [line for line in printed.splitlines() if line.strip().startswith(start)]
    return [float(number) for number in re.findall(NUMBER, line.strip().removeprefix(start))]


def assert_classify_sequences(printed):
    assert numbers_after(printed, "accuracy on 1100 strings that training has not seen:")[0] > 0.98


def assert_own_cell(printed):
    assert "wrong" not in printed  # of check_cell
    refined, lstm = numbers_after(printed, "600")
    assert refined < 0.01 < 0.15 < lstm


def assert_amplifier(printed):
    assert numbers_after(printed, "error on another sound:")[0] < 0.2
    assert "it plays what the network computes: True" in printed


def assert_streaming_forecast(printed):
    [early, *_], [late, last, line] = numbers_after(printed, "2 to  4"), numbers_after(printed, "50 to 99")
    assert late < 0.7 * early and late < 0.6 * min(last, line)


def assert_recurrent_ppo(printed):
    starts = "lax.scan right answers after 200 updates:", "rnnkit   right answers after 200 updates:"
    by_loop, by_rnnkit = (numbers_after(printed, start)[0] for start in starts)
    assert min(by_loop, by_rnnkit) > 0.8 and abs(by_loop - by_rnnkit) < 0.03  # 0.9 of the cards have one two before


def assert_gradient_penalty(printed):
    by_pytorch, by_rnnkit = numbers_after(printed, "penalty after 30 updates:")
    assert abs(by_pytorch - by_rnnkit) < 1e-5
    assert numbers_after(printed, "largest difference")[0] < 1e-5


def assert_meta_learning(printed):
    before, after = numbers_after(printed, "loss after adaptation:")
    assert after < 0.5 * before
    assert numbers_after(printed, "largest difference")[0] < 1e-5


def assert_accelerate_pytorch(printed):
    assert "encoder | still PyTorch: none" in printed
    assert numbers_after(printed, "largest difference")[0] < 1e-4
    slow, fast, *_ = numbers_after(printed, "an update took")
    assert fast < slow


def assert_long_sequence(printed):
    starts = "all 20000 steps at once", "a checkpoint every 256 steps"
    whole, least = (numbers_after(printed, start) for start in starts)
    assert least[0] < whole[0] / 50
    assert re.findall(r"a checkpoint .*(bit-identical)$", printed, re.MULTILINE) == ["bit-identical"] * 2
    cosines = [numbers_after(printed, f"truncated to {steps} steps")[-1] for steps in (1000, 100, 10)]
    assert 1 > cosines[0] > cosines[1] > cosines[2]


def assert_gru_in_numpy(printed):
    deviations = [numbers_after(printed, name) for name in ("y ", "hy", "dx", "dhx", "dw")]
    assert [len(one) for one in deviations] == [1, 1, 2, 2, 2]
    assert max(one[0] for one in deviations) < 1e-13 and max(one[-1] for one in deviations) < 1e-7


def assert_as_shown(printed, expected):
    """Word for word, without times; numbers may differ a little, as NumPy's sine and logarithm do between CPUs."""
    printed, expected = (re.sub(TIME, " TIME", text) for text in (printed, expected))
    assert re.sub(rf" *{NUMBER}", " #", printed) == re.sub(rf" *{NUMBER}", " #", expected)
    pairs = zip(*(map(float, re.findall(NUMBER, text)) for text in (printed, expected)), strict=True)
    assert [pair for pair in pairs if pair[0] != pytest.approx(pair[1], rel=0.1, abs=0.05)] == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run(name, tmp_path):
    needs_installed(*NEEDS.get(name, []))
    done = subprocess.run([sys.executable, PROGRAMS[name]], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    globals()[f"assert_{name}"](done.stdout)
    assert_as_shown(done.stdout, shown()[name])
