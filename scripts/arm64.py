"""Run a part of the suite on an emulated ARM64 CPU: `python scripts/arm64.py [--folder FOLDER] [pytest's arguments]`;
or anything else: `python scripts/arm64.py --run -m rnnkit compress FILE`.

It needs Debian and `qemu-user-static`, but not root. The folder holds Debian's ARM64 Python and the packages' ARM64
wheels, which only the emulator uses. A second run downloads nothing and uses the compiled kernels; delete the folder to
start afresh.

The emulator shows what ARM64 computes. It does not show its speed, nor its memory order, which is the host's stricter
one. Tests that start another process fail, because that process is not emulated.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
EMULATOR = "qemu-aarch64-static"
OLDEST_GLIBC, NEWEST_GLIBC = 17, 28  # 2.x, that a wheel may ask for; Debian 12 has 2.36


def call(*command):
    subprocess.run(command, check=True)


def unpacked_python(folder):
    """Return the root of a file system with only Debian's Python and its libraries."""
    root, partial, apt = folder / "root", folder / "root.partial", folder / "apt"
    if root.exists():
        return root
    for name in ("state/lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()  # no package is installed, so that apt-get fetches whatever Python depends on
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
    }
    apt_get = ["apt-get", "--quiet", *(f"--option={name}={value}" for name, value in options.items())]
    call(*apt_get, "update")
    call(*apt_get, "install", "--yes", "--download-only", "--no-install-recommends", "python3", "libstdc++6")
    shutil.rmtree(partial, ignore_errors=True)
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        call("dpkg", "--extract", package, partial)
    partial.rename(root)
    return root


def pip_install(target, *arguments):
    """Install into a separate folder, completely or not at all."""
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    call(sys.executable, "-m", "pip", "install", "--quiet", "--target", partial, *arguments)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def requirements(version, folder):
    """Return the folder of the requirements of engine and tests, for ARM64 and this version of Python."""
    target = folder / "packages"
    if not target.exists():
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
        names = [f"manylinux_2_{minor}_aarch64" for minor in range(OLDEST_GLIBC, NEWEST_GLIBC + 1)]
        platforms = [f"--platform={name}" for name in ("manylinux2014_aarch64", *names)]
        wanted = project["dependencies"] + project["optional-dependencies"]["test"]
        pip_install(target, "--only-binary=:all:", f"--python-version={version}", *platforms, *wanted)
    return target


def engine(folder):
    """The folder of the engine as it is now, installed from a copy: a build leaves nothing in the repository."""
    source, target = folder / "source", folder / "engine"
    shutil.rmtree(source, ignore_errors=True)
    for name in ("rnnkit", "kernels"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    pip_install(target, "--no-deps", source)
    for name in ("perf", "examples"):  # the tests run its cells
        shutil.copytree(REPOSITORY / name, target / name)
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "build/arm64", help="default: %(default)s")
    parser.add_argument("--run", action="store_true", help="what follows is for Python, not for pytest")
    chosen, arguments = parser.parse_known_args()
    folder = chosen.folder.resolve()
    for tool in (EMULATOR, "apt-get", "dpkg"):
        if shutil.which(tool) is None:
            parser.error(f"there is no {tool}; on a Debian, install qemu-user-static")
    root = unpacked_python(folder)
    python = (root / "usr/bin/python3").resolve()
    packages = requirements(python.name.removeprefix("python"), folder), engine(folder)
    home = folder / "home"
    home.mkdir(exist_ok=True)
    own = {
        "HOME": home,
        "NUMBA_CACHE_DIR": folder / "cache",
        "PYTHONPATH": os.pathsep.join(map(str, packages)),
        "PYTHONSAFEPATH": "1",  # the installed rnnkit, not the repository's
    }
    host = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_CPU", "PYTHON"))}
    command = [EMULATOR, "-L", root, python]
    if not chosen.run:
        command += ["-m", "pytest", "-p", "no:cacheprovider"]
        arguments = arguments or ["tests/cpu/test_digests.py"]
    sys.exit(subprocess.run([*command, *arguments], cwd=REPOSITORY, env=host | own, check=False).returncode)


if __name__ == "__main__":
    main()
