"""The GRU in plain NumPy: it agrees with the engine and the reference, notices errors, and the guide has its lines."""

import ast
import re

import numpy as np
import pytest
import reference
from repository import ROOT
from tolerances import assert_close

import rnnkit

SOURCE = (ROOT / "examples" / "gru_in_numpy.py").read_text()
GUIDE = (ROOT / "docs" / "contributing" / "from-equations-to-machine-code.md").read_text()
KERNELS = ROOT / "kernels" / "rnnkit_kernels"
FAULTS = [  # what is replaced, by what, and which arrays then disagree
    ("= z * h + (1 - z) * n", "= z * n + (1 - z) * h", "y, hy, dx, dhx, dw"),
    ("dh = dh + dy[t]", "dh = dh + dy[t - 1]", "dx, dhx, dw"),
    ("dn * q * r * (1 - r)", "1.001 * dn * q * r * (1 - r)", "dx, dhx, dw"),
    ("axis=1)  # with", "axis=1) / 1.001  # with", "dx, dhx, dw"),
    ("(of_w @ W)", "(of_r @ W)", "dx"),
    ("return dx, dh[None]", "return dx, 1.001 * dh[None]", "dhx"),
    ("hidden[:-1].reshape", "hidden[1:].reshape", "dw"),
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


def test_program_equals_the_reference():
    desc, rng = rnnkit.RNNDescriptor("gru", 3, 4, dtype="float64"), np.random.default_rng(0)
    w, x, hx = rnnkit.init_weights(desc, seed=0), rng.standard_normal((5, 2, 3)), rng.standard_normal((1, 2, 4))
    y, hy, _ = program(SOURCE)["forward"](desc, w, x, hx)
    expected = reference.forward(rnnkit.weight_views(desc, w), x, hx, mode="gru", hidden_size=4)
    assert_close("y", y, expected.y, "float64")
    assert_close("hy", hy, expected.hy, "float64")


def rows_of_the_guide():
    """Each row of the table: the lines of the program, and (file, functions) of the kernels."""
    table = GUIDE.split("| line of the program |")[1].split("\n\n")[0]
    for row in table.splitlines()[2:]:
        program_lines, files, _ = row.strip("| ").split(" | ")
        listed = [re.findall("`([^`]+)`", one) for one in files.split("; ")]
        yield re.findall("`([^`]+)`", program_lines), [(file, functions) for file, *functions in listed]


def test_guide_names_program_lines_in_order_and_kernel_functions():
    rows, place = list(rows_of_the_guide()), 0
    assert len(rows) == 15 and all(lines and files for lines, files in rows)
    for line in (line for lines, _ in rows for line in lines):
        assert SOURCE.count(line) == 1, line
        assert SOURCE.index(line) > place, line
        place = SOURCE.index(line)
    for file, functions in (one for _, files in rows for one in files):
        found = {node.name for node in ast.walk(ast.parse((KERNELS / file).read_text())) if hasattr(node, "name")}
        assert functions and {*functions} <= found, file


def test_guide_has_the_order_of_the_slots():
    [order] = re.findall(r"slots in the order ([a-z, ]+):", GUIDE)
    assert tuple(order.split(", ")) == rnnkit.RNNDescriptor("gru", 1, 1).cell.declaration.slots
