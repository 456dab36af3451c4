"""Generated faults are what they say, those written by hand fit the sources, and their runner tells who survives."""

import ast
import subprocess

import pytest
from combinations import nightly
from mutants import __main__, written
from mutants.__main__ import FOLDERS, ROOT, drawn, report
from mutants.equivalent import EQUIVALENT
from mutants.generate import changes_something, faults
from mutants.judges import judges

SOURCE = '''
"""A text that no fault is made of, such as 1 + 1."""
__all__ = ["half_of", "other"]
_PAIRS = zip(strict=True)
_MUCH = 1 << 20


def half_of(values: list[int], *, whole=True) -> int:
    total = 0
    for k in range(len(values)):
        if values[k] > 0 and not k == 3:
            total += values[k] // 2
    if total < 0:
        raise ValueError(f"{total - 1}")
    return divmod(total, 1) if whole else -total
'''
FAULTS = {
    "constant": {"0 -> 1", "0 -> (-1)", "1 -> 2", "1 -> 0", "3 -> 4", "3 -> 2", "2 -> 3", "2 -> 1", "True -> False"},
    "comparison": {"values[k] > 0 -> (values[k] >= 0)", "values[k] > 0 -> (values[k] <= 0)", "k == 3 -> (k != 3)",
                   "total < 0 -> (total <= 0)", "total < 0 -> (total >= 0)"},
    "and, or": {"values[k] > 0 and not k == 3 -> ((values[k] > 0) or (not k == 3))"},
    "condition left out": {"values[k] > 0 and not k == 3 -> ((not k == 3))",
                           "values[k] > 0 and not k == 3 -> ((values[k] > 0))"},
    "condition": {"values[k] > 0 and not k == 3 -> (not (values[k] > 0 and not k == 3))",
                  "total < 0 -> (not (total < 0))", "whole -> (not (whole))"},
    "branch left out": {"values[k] > 0 and not k == 3 -> False", "total < 0 -> False"},
    "operator": {"values[k] // 2 -> ((values[k]) * (2))", "total += values[k] // 2 -> total -= values[k] // 2"},
    "operator left out": {"not k == 3 -> k == 3", "-total -> total"},
    "assigned": {"total += values[k] // 2 -> total = values[k] // 2"},
    "statement left out": {"total += values[k] // 2 -> pass", 'raise ValueError(f"{total - 1}") -> pass'},
    "bound": {"len(values) -> (len(values) - 1)"},
    "neighbours swapped": {"total, 1 -> 1, total"},
}  # fmt: skip


def test_the_faults_of_a_source():
    found = {}
    for fault in faults("half.py", SOURCE):
        assert changes_something(fault, SOURCE) and fault.scope in ("half_of", "module")
        start, line = f"half.py {fault.scope}: {fault.kind}: ", SOURCE.splitlines()[fault.line - 1].strip()
        assert fault.name.startswith(start) and fault.plant(SOURCE).count("\n") == SOURCE.count("\n")
        assert fault.name.endswith(f", in {line}") == (line not in fault.before)
        found.setdefault(fault.kind, set()).add(fault.name.removeprefix(start).removesuffix(f", in {line}"))
    assert found == FAULTS


@pytest.mark.parametrize(("source", "seen"), [
    ("max(a, b)", {"min(a, b)"}),
    ("hypot(a, b)", {"hypot(b, a)"}),
    ("a in (b, c)", {"a not in (b, c)", "a in (b,)", "a in (c,)"}),
    ("a == (b, c)", {"a != (b, c)", "a == (c, b)", "a == (b,)", "a == (c,)"}),
    ("a.reshape(-1)", {"a.reshape(1)", "a.reshape(-0)"}),
    ("warn(a, stacklevel=2)", set()),
])  # fmt: skip
def test_no_fault_is_made_that_nobody_could_see(source, seen):
    source = f"found = {source}\n"
    found = {fault.plant(source) for fault in faults("one.py", source) if changes_something(fault, source)}
    assert {ast.unparse(ast.parse(text)) for text in found} == {f"found = {text}" for text in seen}


def test_a_draw_is_of_all_files_and_the_same_again():
    found = drawn(ROOT, 60, seed=1)
    assert found == drawn(ROOT, 60, seed=1) != drawn(ROOT, 60, seed=2)
    assert {fault.path.split("/")[0] for fault in found} == {"rnnkit", "kernels"}
    assert len({fault.path for fault in found}) > 20


def test_what_is_written_by_hand_stands_there_and_has_judges():
    found = written.all_faults(ROOT)
    names = [fault.name for fault in found]
    assert len(set(names)) == len(names) > 100
    for fault in found:
        assert (ROOT / fault.path).read_text()[fault.start : fault.stop] == fault.before != fault.after


def test_what_nobody_could_see_is_a_fault_that_is_made():
    paths = {name.split()[0]: (ROOT / name.split()[0]).read_text() for name in EQUIVALENT}
    assert EQUIVALENT.keys() <= {fault.name for path, source in paths.items() for fault in faults(path, source)}


def test_every_file_has_judges_and_every_judge_is_there():
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            assert all((ROOT / test).exists() for test in judges(path.relative_to(ROOT).as_posix()))


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """One of a function and its test, which alone is to judge."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "double.py").write_text("def double(x):\n    return x * 2\n")
    (tmp_path / "test_double.py").write_text(
        "from double import double\n\ndef test_double():\n    assert double(3) == 6 and double(2) == 4\n"
    )
    monkeypatch.setattr(__main__, "judges", lambda path: ("test_double.py",))
    return tmp_path


def test_no_fault_is_judged_by_tests_that_fail_without_it(repository, monkeypatch):
    (repository / "test_double.py").write_text("def test_double():\n    assert 2 == 3\n")
    monkeypatch.setattr(written, "FAULTS", {"double.py": [("other", "x * 2", "x * 3")]})
    lines = []
    assert not report(written.all_faults(repository), repository, write=lambda line, flush=True: lines.append(line))
    assert len(lines) == 1 and lines[0].startswith("BROKEN: without a fault the tests fail: ")


@pytest.mark.parametrize(("after", "verdict"), [
    ("x * 3", "killed"), nightly("x + x", "SURVIVED"), nightly("2 * x", "equivalent"),
])  # fmt: skip
def test_the_runner_tells_what_survives(repository, monkeypatch, after, verdict):
    monkeypatch.setattr(__main__, "EQUIVALENT", {"double.py by hand: other: x * 2 -> 2 * x": "order is nothing"})
    monkeypatch.setattr(written, "FAULTS", {"double.py": [("other", "x * 2", after)]})
    lines = []
    good = report(written.all_faults(repository), repository, write=lambda line, flush=True: lines.append(line))
    assert lines[0].startswith(verdict) and lines[0].endswith(f"double.py by hand: other: x * 2 -> {after}")
    assert good == (verdict != "SURVIVED")
    assert lines[1].startswith(f"{verdict == 'killed':.1%} of {int(verdict != 'equivalent')} killed")
    assert (repository / "double.py").read_text().endswith("x * 2\n")


def test_a_table_is_not_judged_again(repository, tmp_path):
    source, table = (repository / "double.py").read_text(), tmp_path / "table"
    every = faults("double.py", source)
    first, *_ = every
    table.write_text(f"SURVIVED\t{first.name}\n")
    lines = []
    assert not report(every, repository, write=lambda line, **_: lines.append(line), table=__main__.Table(table))
    assert len(lines) == len(every) and not any(first.name in line for line in lines)
    assert __main__.Table(table).verdicts == {one.name: "SURVIVED" if one is first else "killed" for one in every}
    assert __main__.named(repository, __main__.Table(table).verdicts) == every
    assert report(every[1:], repository, write=lambda line, **_: lines.append(line), table=__main__.Table(table))
    assert len(lines) == len(every) + 1
