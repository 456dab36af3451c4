"""Plant faults in a copy of the repository, one at a time, run the tests that must notice, and print who survives."""

import argparse
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from mutants import written
from mutants.equivalent import EQUIVALENT
from mutants.generate import changes_something, faults
from mutants.judges import judges
from rnnkit_kernels.machine.jit import DIGEST, FOLDER

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("rnnkit", "kernels/rnnkit_kernels")
TEST_SECONDS, ALL_SECONDS = 150, 1800  # a fault that lets threads wait for ever is noticed too
PASSED, NOTHING_RAN = 0, (4, 5)  # pytest's exit statuses


def drawn(root, count, seed, folders=FOLDERS):
    """So many generated faults of the files in these folders, each as likely as any other."""
    sources = {
        path.relative_to(root).as_posix(): path.read_text()
        for folder in folders for path in sorted((root / folder).rglob("*.py"))
    }  # fmt: skip
    every = [fault for path, source in sources.items() for fault in faults(path, source)]
    random.Random(seed).shuffle(every)
    found = (fault for fault in every if changes_something(fault, sources[fault.path]))
    return [fault for fault, _ in zip(found, range(count), strict=False)]


def named(root, names):
    """The generated faults with these names, of lines that are still there."""
    paths = {name.split()[0]: (root / name.split()[0]).read_text() for name in names}
    every = {fault.name: fault for path, source in paths.items() for fault in faults(path, source)}
    return [every[name] for name in names if name in every]


def tracked(root):
    """The files of a repository, those not yet added included."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=root, text=True)
    return [name for name in listed.split("\0") if (root / name).is_file()]


class Copy:
    """A copy of the repository whose package is the one that its tests import, with a kernel cache of its own."""

    def __init__(self, root, folder, kernels):
        self.folder, self.cache = folder / "copy", folder / "cache"
        self.kernels = self.cache / "rnnkit" / DIGEST
        for name in tracked(root):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, self.folder / name)
        with suppress(FileNotFoundError):  # what is compiled already, without any fault
            shutil.copytree(kernels, self.kernels)
        self.environment = os.environ | {
            "CI": "true",
            "HYPOTHESIS_PROFILE": "few",
            "RNNKIT_TEST_SECONDS": str(TEST_SECONDS),
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(self.folder / "kernels")]),
            "NUMBA_CACHE_DIR": str(self.cache),
            "PYTHONDONTWRITEBYTECODE": "1",  # a file planted and restored within a second has one date
        }

    def run(self, tests, workers="0", limit=ALL_SECONDS):
        """Pytest's exit status for the tests, and the last lines that it printed."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", workers, "-p", "no:cacheprovider", *tests]
        with tempfile.TemporaryFile("w+") as out, subprocess.Popen(
            command, cwd=self.folder, env=self.environment, start_new_session=True, stdout=out, stderr=out
        ) as child:  # fmt: skip
            try:
                status = child.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                status = child.wait()
            out.seek(0)
            return status, out.read()[-300:]

    def run_with(self, fault, tests):
        """The same with the fault planted."""
        file = self.folder / fault.path
        source, stamp, kernels = file.read_text(), file.stat(), self._kernels()
        file.write_text(fault.plant(source))
        try:
            return self.run(tests)
        finally:
            file.write_text(source)
            os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
            for folder in self._kernels() - kernels if fault.path.startswith("kernels/rnnkit_kernels/") else ():
                shutil.rmtree(folder)

    def _kernels(self):
        return set((self.cache / "rnnkit").glob("*"))


class Court:
    """Judges faults, several at a time, each in a copy of its own."""

    def __init__(self, root, folder):
        self._root, self._folder, self._own, self._numbers = root, folder, threading.local(), itertools.count()
        self._kernels = FOLDER.path

    def before_any(self, faults, jobs):
        """What pytest says at last where the tests that are to judge fail without a fault."""
        tests = dict.fromkeys(test for fault in faults for test in self._judges(fault))
        status, said = self._copy().run(tests, workers=str(jobs), limit=None)
        self._kernels = self._copy().kernels
        return said if status != PASSED else ""

    def verdict(self, fault):
        """killed, SURVIVED, equivalent with the reason, or why there is nothing to see; and the seconds."""
        start = time.perf_counter()
        return self._verdict(fault), time.perf_counter() - start

    def _verdict(self, fault):
        if fault.name in EQUIVALENT:
            return f"equivalent: {EQUIVALENT[fault.name]}"
        status, said = self._copy().run_with(fault, self._judges(fault))
        if status in NOTHING_RAN:
            return f"BROKEN: with it, its tests are not found: {said}"
        return "SURVIVED" if status == PASSED else "killed"

    def _judges(self, fault):
        return [test for test in judges(fault.path) if (self._root / test).exists()]

    def _copy(self):
        """That of the thread which asks."""
        if not hasattr(self._own, "copy"):
            self._own.copy = Copy(self._root, self._folder / str(next(self._numbers)), self._kernels)
        return self._own.copy


class Table:
    """Verdicts in a file, a line each: what it has is not judged again, so that a run can be cut off and go on."""

    def __init__(self, path):
        self._path = path
        lines = path.read_text().splitlines() if path and path.exists() else ()
        self.verdicts = dict(reversed(line.split("\t", 1)) for line in lines)

    def add(self, name, verdict):
        self.verdicts[name] = verdict = " ".join(verdict.split())
        if self._path:
            with self._path.open("a") as file:
                file.write(f"{verdict}\t{name}\n")


def report(faults, root, jobs=1, write=print, table=None):
    """Print a line for each fault and a summary; returns whether none survived."""
    table = table or Table(None)
    left = [fault for fault in faults if fault.name not in table.verdicts]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        court = Court(root, Path(folder))
        failure = court.before_any(left, jobs) if left else ""
        if failure:
            write(f"BROKEN: without a fault the tests fail: {failure}", flush=True)
            return False
        for fault, (verdict, seconds) in zip(left, pool.map(court.verdict, left), strict=True):
            table.add(fault.name, verdict)
            write(f"{verdict}, {seconds:.0f} s: {fault.name}", flush=True)
    verdicts = [table.verdicts[fault.name] for fault in faults]
    killed, survived, same = (sum(v.startswith(word) for v in verdicts) for word in ("killed", "SURV", "equivalent"))
    broken = len(verdicts) - killed - survived - same
    share = f"{killed / max(killed + survived, 1):.1%} of {killed + survived} killed"
    write(f"{share}, {survived} survived, {same} equivalent" + f", {broken} broken" * (broken > 0))
    return survived == broken == 0


def build_parser():
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--draw", type=int, metavar="N", help="N generated faults, instead of those written by hand")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument("--folder", action="append", help=f"draw from files there (default: {', '.join(FOLDERS)})")
    parser.add_argument("--table", type=Path, metavar="FILE", help="add verdicts; what it has is not judged again")
    parser.add_argument("--of", type=Path, metavar="FILE", help="the faults of a table, instead of others")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults at a time (default: one a core)")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only those whose names contain one of these")
    return parser


def main(arguments=None):
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.of:
        found = named(ROOT, Table(options.of).verdicts)
    elif options.draw is None:
        found = written.all_faults(ROOT)
    else:
        found = drawn(ROOT, options.draw, options.seed, options.folder or FOLDERS)
    found = [fault for fault in found if not options.names or any(name in fault.name for name in options.names)]
    if not found:
        parser.error("no fault has such a name")
    return 0 if report(found, ROOT, options.jobs, table=Table(options.table)) else 1


if __name__ == "__main__":
    sys.exit(main())
