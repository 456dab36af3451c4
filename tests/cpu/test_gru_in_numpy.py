"""The GRU in plain NumPy: it agrees with the engine, notices errors, and the guide has its lines."""

import ast
import re

import pytest
from repository import ROOT

import rnnkit

SOURCE = (ROOT / "examples" / "gru_in_numpy.py").read_text()
GUIDE = (ROOT / "docs" / "contributing" / "from-equations-to-machine-code.md").read_text()
KERNELS = ROOT / "kernels" / "rnnkit_kernels"
FAULTS = [  # what is replaced, by what, and which arrays then disagree
    ("= z * h + (1 - z) * n", "= z * n + (1 - z) * h", "y, hy, dx, dhx, dw"),
    ("dn * q * r * (1 - r)", "1.001 * dn * q * r * (1 - r)", "dx, dhx, dw"),
    ("(of_w @ W)", "(of_r @ W)", "dx"),
    ("return dx, dh[None]", "return dx, 1.001 * dh[None]", "dhx"),
    ("of_w.sum(axis=0), of_r.sum(axis=0)", "of_r.sum(axis=0), of_w.sum(axis=0)", "dw"),
    ('"dw": gradients.dw', '"dw": 1.001 * gradients.dw', "dw"),  # of the engine
    ("array[place] = value\n    return found", "array[place] = value\n    return 1.001 * found", "dx, dhx, dw"),
    ("return np.abs(found - expected).max() / np", "return np.nan / np", "y, hy, dx, dhx, dw"),
]


def program(source):
    names = {"__name__": "program"}
    exec(compile(source, "gru_in_numpy.py", "exec"), names)
    return names


def test_program_agrees_with_the_engine(capsys):
    program(SOURCE)["main"]()
    assert len(capsys.readouterr().out.splitlines()) == 6


@pytest.mark.parametrize("right, wrong, disagree", FAULTS)
def test_program_notices_planted_errors(right, wrong, disagree):
    assert SOURCE.count(right) == 1
    with pytest.raises(SystemExit) as ended:
        program(SOURCE.replace(right, wrong))["main"]()
    assert ended.value.code == f"These disagree: {disagree}"  # a text is printed, and the exit code is 1


def rows_of_the_guide():
    """Each row of the table: the lines of the program, and (file, functions) of the kernels."""
    table = GUIDE.split("| line of the program |")[1].split("\n\n")[0]
    for row in table.splitlines()[2:]:
        program_lines, files, _ = row.strip("| ").split(" | ")
        listed = [re.findall("`([^`]+)`", one) for one in files.split("; ")]
        yield re.findall("`([^`]+)`", program_lines), [(file, functions) for file, *functions in listed]


def test_guide_names_program_lines_in_order_kernel_functions_and_slots():
    rows, place = list(rows_of_the_guide()), 0
    assert len(rows) == 15 and all(lines and files for lines, files in rows)
    for line in (line for lines, _ in rows for line in lines):
        assert SOURCE.count(line) == 1, line
        assert SOURCE.index(line) > place, line
        place = SOURCE.index(line)
    for file, functions in (one for _, files in rows for one in files):
        found = {node.name for node in ast.walk(ast.parse((KERNELS / file).read_text())) if hasattr(node, "name")}
        assert functions and {*functions} <= found, file
    [order] = re.findall(r"slots in the order ([a-z, ]+):", GUIDE)
    assert tuple(order.split(", ")) == rnnkit.RNNDescriptor("gru", 1, 1).cell.declaration.slots
