"""The script that times two checkouts in turn: what it says of its files."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_checkouts.py"
ROWS = {
    "a.csv": ("x/infer,12,10,1.2,1.2", "y/train,12,10,1.2,1.2", "z/train,10,10,1,1.2"),
    "b.csv": ("x/infer,12,10,1.2,1.3", "y/train,10,10,1,1", "z/train,12,10,1.2,1.2"),
}


def test_case_is_slower_only_if_both_measures_of_all_files_say_so(tmp_path, capsys):
    for name, rows in ROWS.items():
        (tmp_path / name).write_text("\n".join(["name,new,old,median,least", *rows]))
    runpy.run_path(str(SCRIPT))["show"]([tmp_path / name for name in ROWS])
    lines = capsys.readouterr().out.splitlines()
    assert "a.csv: train, 2 cases: 1.095 1.200" in lines
    assert lines[-2:] == ["above 1.10: 2, 2; in all files 1", f"{'x/infer':28} 12/10/1.2/1.2 12/10/1.2/1.3"]
