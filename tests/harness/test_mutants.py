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


def half_of(v: list[int], *, whole=True) -> int:
    t = 0
    for k in range(len(v)):
        if v[k] > 0 and not k == 3:
            t += v[k] // 2
    if t < 0:
        raise ValueError(f"{t - 1}")
    return divmod(t, 1) if whole else -t
'''
FAULTS = """
constant: 0 -> 1; 0 -> (-1); 1 -> 2; 1 -> 0; 3 -> 4; 3 -> 2; 2 -> 3; 2 -> 1; True -> False
comparison: v[k] > 0 -> (v[k] >= 0); v[k] > 0 -> (v[k] <= 0); k == 3 -> (k != 3); t < 0 -> (t <= 0); t < 0 -> (t >= 0)
and, or: v[k] > 0 and not k == 3 -> ((v[k] > 0) or (not k == 3))
condition left out: v[k] > 0 and not k == 3 -> ((not k == 3)); v[k] > 0 and not k == 3 -> ((v[k] > 0))
condition: v[k] > 0 and not k == 3 -> (not (v[k] > 0 and not k == 3)); t < 0 -> (not (t < 0)); whole -> (not (whole))
branch left out: v[k] > 0 and not k == 3 -> False; t < 0 -> False
operator: v[k] // 2 -> ((v[k]) * (2)); t += v[k] // 2 -> t -= v[k] // 2
operator left out: not k == 3 -> k == 3; -t -> t
assigned: t += v[k] // 2 -> t = v[k] // 2
statement left out: t += v[k] // 2 -> pass; raise ValueError(f"{t - 1}") -> pass
bound: len(v) -> (len(v) - 1)
neighbours swapped: t, 1 -> 1, t
"""
VISIBLE = {
    "max(a, b)": {"min(a, b)"},
    "hypot(a, b)": {"hypot(b, a)"},
    "a in (b, c)": {"a not in (b, c)", "a in (b,)", "a in (c,)"},
    "a == (b, c)": {"a != (b, c)", "a == (c, b)", "a == (b,)", "a == (c,)"},
    "a.reshape(-1)": {"a.reshape(1)", "a.reshape(-0)"},
    "warn(a, stacklevel=2)": set(),
}


def test_faults_of_a_source_are_all_those_listed():
    found = set()
    for fault in faults("half.py", SOURCE):
        assert changes_something(fault, SOURCE) and fault.scope in ("half_of", "module")
        start, line = f"half.py {fault.scope}: {fault.kind}: ", SOURCE.splitlines()[fault.line - 1].strip()
        assert fault.name.startswith(start) and fault.plant(SOURCE).count("\n") == SOURCE.count("\n")
        assert fault.name.endswith(f", in {line}") == (line not in fault.before)
        found.add((fault.kind, fault.name.removeprefix(start).removesuffix(f", in {line}")))
    rows = (line.split(": ") for line in FAULTS.strip().splitlines())
    assert found == {(kind, change) for kind, changes in rows for change in changes.split("; ")}


@pytest.mark.parametrize("source", VISIBLE)
def test_invisible_faults_are_not_made(source):
    text = f"found = {source}\n"
    found = {fault.plant(text) for fault in faults("one.py", text) if changes_something(fault, text)}
    assert {ast.unparse(ast.parse(text)) for text in found} == {f"found = {seen}" for seen in VISIBLE[source]}


@pytest.mark.nightly
def test_draw_is_from_all_files_and_repeatable():
    found = drawn(ROOT, 60, seed=1)
    assert found == drawn(ROOT, 60, seed=1) != drawn(ROOT, 60, seed=2)
    assert {fault.path.split("/")[0] for fault in found} == {"rnnkit", "kernels"}
    assert len({fault.path for fault in found}) > 20


def test_written_faults_fit_the_sources():
    found = written.all_faults(ROOT)
    assert len({fault.name for fault in found}) == len(found) > 100
    for fault in found:
        assert (ROOT / fault.path).read_text()[fault.start : fault.stop] == fault.before != fault.after


def test_equivalent_faults_are_generated():
    paths = {name.split()[0]: (ROOT / name.split()[0]).read_text() for name in EQUIVALENT}
    assert EQUIVALENT.keys() <= {fault.name for path, source in paths.items() for fault in faults(path, source)}


def test_judges_of_every_file_exist():
    paths = (path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    assert all((ROOT / test).exists() for path in paths for test in judges(path))


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """One of a function and its test, which alone is to judge."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "double.py").write_text("def double(x):\n    return x * 2\n")
    test = "from double import double\n\ndef test_double():\n    assert double(3) == 6 and double(2) == 4\n"
    (tmp_path / "test_double.py").write_text(test)
    monkeypatch.setattr(__main__, "judges", lambda path: ("test_double.py",))
    return tmp_path


@pytest.fixture
def judged(repository):
    """Judges faults: whether all is well, and the lines of the report."""

    def judge(found, **options):
        lines = []
        return report(found, repository, write=lambda line, **_: lines.append(line), **options), lines

    return judge


def test_tests_that_fail_without_a_fault_judge_none(repository, monkeypatch, judged):
    (repository / "test_double.py").write_text("def test_double():\n    assert 2 == 3\n")
    monkeypatch.setattr(written, "FAULTS", {"double.py": [("other", "x * 2", "x * 3")]})
    good, [line] = judged(written.all_faults(repository))
    assert not good and line.startswith("BROKEN: without a fault the tests fail: ")


@pytest.mark.parametrize(
    ("after", "verdict"), [("x * 3", "killed"), nightly("x + x", "SURVIVED"), nightly("2 * x", "equivalent")]
)
def test_report_tells_killed_survived_and_equivalent_faults(repository, monkeypatch, judged, after, verdict):
    monkeypatch.setattr(__main__, "EQUIVALENT", {"double.py by hand: other: x * 2 -> 2 * x": "order is nothing"})
    monkeypatch.setattr(written, "FAULTS", {"double.py": [("other", "x * 2", after)]})
    good, lines = judged(written.all_faults(repository))
    assert lines[0].startswith(verdict) and lines[0].endswith(f"double.py by hand: other: x * 2 -> {after}")
    assert good == (verdict != "SURVIVED")
    assert lines[1].startswith(f"{verdict == 'killed':.1%} of {int(verdict != 'equivalent')} killed")
    assert (repository / "double.py").read_text().endswith("x * 2\n")


def test_faults_in_a_table_are_not_judged_again(repository, judged, tmp_path):
    table = tmp_path / "table"
    every = faults("double.py", (repository / "double.py").read_text())
    first, *others = every
    table.write_text(f"SURVIVED\t{first.name}\n")
    good, lines = judged(every, table=__main__.Table(table))
    assert not good and len(lines) == len(every) and not any(first.name in line for line in lines)
    assert __main__.Table(table).verdicts == {one.name: "SURVIVED" if one is first else "killed" for one in every}
    assert __main__.named(repository, __main__.Table(table).verdicts) == every
    good, lines = judged(others, table=__main__.Table(table))
    assert good and len(lines) == 1
