"""Build what a package index gets: `python -m scripts.release`, with the package build, in a clone.

README's links and pictures are relative, which an index cannot follow. Here they become addresses within the repository
that `tool.rnnkit.repository` of pyproject.toml names, at the tag of the version. Wheel and archive of sources go to
`dist/`.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def absolute(text, repository, tag):
    """README with addresses of files of the repository in place of relative ones: pictures raw, pages to read."""
    address = repository.rstrip("/")
    text = re.sub(r"(!\[[^\]]*\]\()(?![a-z]+:|#)", rf"\g<1>{address}/raw/{tag}/", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?![a-z]+:|#)", rf"\g<1>{address}/blob/{tag}/", text)


def main():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    repository, tag = about["tool"]["rnnkit"]["repository"], f"v{about['project']['version']}"
    if not repository:
        sys.exit("release: repository under [tool.rnnkit] of pyproject.toml must be an address, got nothing")
    with tempfile.TemporaryDirectory() as folder:
        # the committed files: no other one gets into a release
        command = ["git", "archive", "--format=tar", f"--output={folder}/clone.tar", "HEAD"]
        subprocess.run(command, cwd=ROOT, check=True)
        clone = Path(folder) / "clone"
        clone.mkdir()
        subprocess.run(["tar", "-xf", f"{folder}/clone.tar", "-C", clone], check=True)
        readme = clone / "README.md"
        readme.write_text(absolute(readme.read_text(), repository, tag))
        subprocess.run([sys.executable, "-m", "build", "--outdir", ROOT / "dist", clone], check=True)


if __name__ == "__main__":
    main()
