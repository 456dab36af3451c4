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
    assert all([name for name, _ in own] == [page.stem.replace("-", "_")] for page, own in found.items()), found
    return dict(one for own in found.values() for one in own)


def test_every_program_has_a_page():
    assert shown().keys() == FACTS.keys() == PROGRAMS.keys()


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_short(name):
    lines = PROGRAMS[name].read_text().splitlines()
    assert len(lines) <= MOST_LINES.get(name, 90)
    assert lines[0].startswith('"""')


# Program -> lines that begin so, and what holds for their numbers. Their words are those of the page.
FACTS = {
    "accelerate_pytorch": {
        "largest difference": lambda deviation: deviation < 1e-4,
        "an update took": lambda slow, fast, *_: fast < slow,
    },
    "amplifier": {"error on another sound:": lambda error: error < 0.2},
    "classify_sequences": {"accuracy on 1100 strings that training has not seen:": lambda accuracy: accuracy > 0.98},
    "gradient_penalty": {
        "penalty after 30 updates:": lambda by_pytorch, by_rnnkit: abs(by_pytorch - by_rnnkit) < 1e-5,
        "largest difference": lambda deviation: deviation < 1e-5,
    },
    "gru_in_numpy": {
        "(y|hy) ": lambda y, hy: max(y, hy) < 1e-13,
        "(dx|dhx|dw) ": lambda *both: len(both) == 6 and max(both[::2]) < 1e-13 and max(both[1::2]) < 1e-7,
    },
    "long_sequence": {
        "all 20000 steps at once|a checkpoint every 256 steps": lambda whole, _, least, __: least < whole / 50,
        "truncated to (1000|100|10) steps": lambda *found: 1 > found[2] > found[5] > found[8],
    },
    "meta_learning": {
        "loss after adaptation:": lambda before, after: after < 0.5 * before,
        "largest difference": lambda deviation: deviation < 1e-5,
    },
    "own_cell": {"600": lambda refined, lstm: refined < 0.01 < 0.15 < lstm},
    "recurrent_ppo": {  # 0.9 of the cards have one two before
        r"\S+ +right answers after 200 updates:": lambda by_loop, _, by_rnnkit, __: (
            min(by_loop, by_rnnkit) > 0.8 and abs(by_loop - by_rnnkit) < 0.03
        )
    },
    "streaming_forecast": {
        "2 to  4|50 to 99": lambda early, _, __, late, last, line: late < min(0.7 * early, 0.6 * last, 0.6 * line)
    },
}


def assert_facts(printed, facts):
    for start, holds in facts.items():
        ends = [line[found.end() :] for line in printed.splitlines() if (found := re.match(f" *({start})", line))]
        assert ends and holds(*(float(number) for end in ends for number in re.findall(NUMBER, end))), start


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
    assert_facts(done.stdout, FACTS[name])
    assert_as_shown(done.stdout, shown()[name])
