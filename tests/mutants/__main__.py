"""Plant each fault in a copy of the repository, run the tests that must notice it, and print which faults survive."""

import argparse
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    "engine", "trust", "perf", "perf_cells", "gpu", "interop", "interop_files", "torch", "distributed", "training",
    "job", "checkpoints", "text_model", "stream", "sklearn", "cells", "shipped_cells", "objects", "types", "reduced",
    "sharing", "laid_out",
)
HANG = 1800  # seconds: a fault that lets threads wait for ever is noticed too
PASSED, NOT_FOUND = (0,), (4, 5)  # pytest's exit statuses


def known(modules=MODULES):
    """The mutants of those modules of this package that are there."""
    present = [name for name in modules if importlib.util.find_spec(f"mutants.{name}")]
    return [mutant for name in present for mutant in importlib.import_module(f"mutants.{name}").MUTANTS]


def chosen(mutants, names):
    """Those whose names contain one of the given ones; all without any."""
    return [mutant for mutant in mutants if not names or any(name in mutant.name for name in names)]


def tracked(root):
    """The files of a repository, those not yet added included."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=root, text=True)
    return [name for name in listed.split("\0") if (root / name).is_file()]


class Copy:
    """A copy of the repository whose package is the one that its tests import, with a kernel cache of its own."""

    def __init__(self, root, files, folder):
        self.folder = folder / "copy"
        for name in files:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, self.folder / name)
        if (self.folder / "kernels").is_dir():
            (self.folder / "rnnkit" / "kernels").symlink_to("../kernels")
        self.environment = os.environ | {
            "CI": "true",
            "PYTHONPATH": str(self.folder),
            "NUMBA_CACHE_DIR": str(folder / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",  # a file planted and restored within a second has one date
        }
        self.run = cache(self._run)

    def _run(self, tests, planted=""):
        """Pytest's exit status for the tests; `planted` names what is planted meanwhile."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with subprocess.Popen(command, cwd=self.folder, env=self.environment, start_new_session=True, **quiet) as child:
            try:
                return child.wait(HANG)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                return child.wait()

    def verdict(self, mutant):
        """killed, SURVIVED, or why there is nothing to see."""
        file = self.folder / mutant.path
        if not file.is_file():
            return f"BROKEN: there is no {mutant.path}"
        source, stamp = file.read_text(), file.stat()
        count = source.count(mutant.before)
        if count != 1:
            return f"BROKEN: what it replaces stands {count} times in {mutant.path}"
        if self.run(mutant.tests) not in PASSED:
            return "BROKEN: its tests fail without it"
        file.write_text(source.replace(mutant.before, mutant.after))
        try:
            status = self.run(mutant.tests, mutant.name)
        finally:
            file.write_text(source)
            os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # Numba's cache looks at the date
        if status in NOT_FOUND:
            return "BROKEN: with it, its tests are not found"
        return "SURVIVED" if status in PASSED else "killed"


def report(mutants, root, files, write=print):
    """Print a line for each mutant and a summary; returns whether all were killed."""
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(root, files, Path(folder))
        for mutant in mutants:
            start = time.perf_counter()
            verdicts.append(copy.verdict(mutant))
            write(f"{mutant.name}: {verdicts[-1]}, {time.perf_counter() - start:.0f} s", flush=True)
    killed, survived = verdicts.count("killed"), verdicts.count("SURVIVED")
    broken = len(verdicts) - killed - survived
    write(f"{killed} killed, {survived} survived" + f", {broken} broken" * (broken > 0))
    return killed == len(verdicts)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="plant those whose names contain one of these")
    parser.add_argument("--module", action="append", choices=MODULES, help="plant those of this module")
    options = parser.parse_args(arguments)
    mutants = chosen(known(options.module or MODULES), options.names)
    if not mutants:
        parser.error("no mutant has such a name")
    return 0 if report(mutants, ROOT, tracked(ROOT)) else 1


if __name__ == "__main__":
    sys.exit(main())
