"""What is published: the metadata agree, wheel and archive of sources are whole, and each works without a clone."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from optional import needs
from packaging.requirements import Requirement
from repository import ROOT

from scripts.release import absolute

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEPENDENCIES = PROJECT["project"]["dependencies"]
VERSION = PROJECT["project"]["version"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}


def test_citation_is_of_the_newest_release():
    needs("yaml")
    import yaml

    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version, date = re.search(r"^## (\d\S*) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE).groups()
    assert version == VERSION == str(found["version"]) and date == str(found["date-released"])
    assert (found["license"], found["authors"]) == (PROJECT["project"]["license"], PROJECT["project"]["authors"])
    assert (found["cff-version"], found["type"], found["title"]) == ("1.2.0", "software", "rnnkit")
    assert "message" in found


def test_readme_of_a_release_has_no_relative_address():
    """Pictures come from the files themselves, pages from where they are shown."""
    text, address = (ROOT / "README.md").read_text(), "https://example.org/owner/rnnkit"
    made = absolute(text, f"{address}/", "v1.0")
    assert f"]({address}/raw/v1.0/docs/pictures/speed.svg)" in made
    assert f"]({address}/blob/v1.0/docs/explanation/engine.md#first-call-and-kernel-cache)" in made
    links = re.findall(r"\]\(([^)\s]+)\)", made)
    assert len(links) == len(re.findall(r"\]\(", text)) and all(link.startswith("https://") for link in links)
    assert absolute("[a](https://b.c/d) [e](#f)", address, "v1.0") == "[a](https://b.c/d) [e](#f)"
    assert isinstance(PROJECT["tool"]["rnnkit"]["repository"], str)


def run(*command, **options):
    options = {"env": ENVIRONMENT, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | options
    done = subprocess.run([*map(str, command)], check=False, **options)
    assert done.returncode == 0, f"{command}: {done.stdout}"
    return done.stdout


def made(folder):
    """Make wheel and archive of sources from a copy of the clone; return their paths, and the names of its files."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    names = sorted(name for name in listed if (ROOT / name).is_file())
    for name in names:
        (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / "clone" / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", "clone", cwd=folder)
    (wheel,), (sources,) = folder.glob("dist/*.whl"), folder.glob("dist/*.tar.gz")
    return wheel, sources, names


def assert_whole(wheel, sources, names):
    """The archive has all files of a clone and the wheel all of the package, and neither has others."""
    with tarfile.open(sources) as archive:
        inside = {one.name.partition("/")[2] for one in archive if one.isfile()}
    assert sorted(inside - {"PKG-INFO"}) == names
    inside, about = zipfile.ZipFile(wheel).namelist(), f"rnnkit-{VERSION}.dist-info"
    packaged = sorted(name.removeprefix("kernels/") for name in names if name.startswith(("rnnkit/", "kernels/")))
    assert sorted(name for name in inside if not name.startswith(f"{about}/")) == packaged
    assert f"{about}/licenses/LICENSE" in inside


def with_dependencies(wanted):
    """The names of the packages of these requirements, and of what these need in turn."""
    for one in map(Requirement, wanted):
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            yield one.name
            yield from with_dependencies(distribution(one.name).requires or ())


def environment(folder, packages):
    """The Python of a fresh environment, which has these packages of the running one and no others."""
    venv.create(folder, symlinks=True)
    (place,) = folder.glob("lib/python*/site-packages")
    for name in packages:
        for top in {path.parts[0] for path in distribution(name).files} - {"..", "__pycache__"}:
            (place / top).symlink_to(distribution(name).locate_file(top))
    return folder / "bin" / "python"


def assert_works(package, folder, building, cache):
    """Install the package alone: then the first program of the README runs, and so does the command."""
    python = environment(folder / "venv", {*with_dependencies(DEPENDENCIES), *building})
    pip = sys.executable, "-m", "pip", "--python", python
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile", package)
    run(*pip, "check")
    first = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[1]
    (folder / "first.py").write_text(f"{first}\nprint(rnnkit.__file__)\n")
    (folder / "elsewhere").mkdir()
    outside = {"cwd": folder / "elsewhere", "env": ENVIRONMENT | {"NUMBA_CACHE_DIR": str(cache)}}
    used = run(python, folder / "first.py", **outside).splitlines()[-1]
    assert Path(used).is_relative_to(folder / "venv")
    command = python.parent / "rnnkit"
    assert run(command, "--version", **outside) == f"rnnkit {VERSION}\n"
    shown = run(command, "--help", **outside)
    assert all(f"\n    {name} " in shown for name in ("train", "sample", "score", "compress", "plot", "warmup"))
    shown = run(command, "warmup", "--mode", "rnn_tanh", "--dtype", "float32", "--quiet", **outside)
    kernels, size = re.search(r"^kernels   (.*), (\S+) MB$", shown, re.MULTILINE).groups()
    assert Path(kernels).is_relative_to(cache) and float(size) > 0.1


@pytest.mark.nightly
def test_wheel_and_sources_work_without_a_clone(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("needs a clone")
    needs("build.__main__", "twine", "hatchling")
    wheel, sources, names = made(tmp_path)
    assert run(sys.executable, "-m", "twine", "check", "--strict", wheel, sources).count("PASSED") == 2
    assert_whole(wheel, sources, names)
    cache = tmp_path / "cache"  # of both: what the one has compiled is not compiled again
    for package, building in ((wheel, []), (sources, with_dependencies(["hatchling"]))):
        assert_works(package, tmp_path / package.suffix[1:], building, cache)
