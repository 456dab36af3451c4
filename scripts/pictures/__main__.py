"""Draw the pictures of the documentation (extra `docs`), by default into docs/pictures: `python -m scripts.pictures`.

What can be taken from the package is: layouts, row numbers, shares of threads, and figures from docs/data. So a picture
that no longer tells the truth changes when it is drawn again, and `tests/docs/test_pictures.py` notices.
"""

import argparse
from importlib import import_module
from pathlib import Path

from .figures import Figures

ROOT = Path(__file__).resolve().parents[2]
REPORTS = "perf-engines.csv", "perf-cells.csv"
PICTURES = {
    "flat-buffer": "flat_buffer.draw",
    "data-flow": "data_flow.draw",
    "threads": "threads.draw",
    "packed-rows": "packed_rows.draw",
    "speed": "speed.draw",
    "shares": "dots.shares",
    "ratios": "dots.ratios",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=Path, nargs="?", default=ROOT / "docs" / "pictures")
    folder = parser.parse_args().folder
    for name, function in PICTURES.items():
        module, function = function.split(".")
        path = folder / f"{name}.svg"
        getattr(import_module(f"{__package__}.{module}"), function)().save(path)
        print(f"drawn     {path}  {path.stat().st_size / 1000:.0f} kB")
    for report in REPORTS:
        left_out = Figures(report).left_out
        if left_out:
            print(f"left out  of {report}, measured beside other programs: {', '.join(left_out)}")


if __name__ == "__main__":
    main()
