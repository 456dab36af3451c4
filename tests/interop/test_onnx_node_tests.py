"""The ONNX standard's own tests of RNN, GRU and LSTM, which its package generates, against `from_onnx` and `infer`."""

from importlib import import_module, reload

import numpy as np
import onnx
import pytest
from tolerances import assert_close

from rnnkit.interop.onnx import from_onnx

INPUTS = "X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"
OUTPUTS = "Y", "Y_h", "Y_c"


def standard():
    """Name -> node, inputs and outputs of each test: the modules call `expect` with them when imported."""
    found = {}

    def expect(node, inputs, outputs, name):
        found[name] = node, inputs, outputs

    # They compute with NumPy, which at times warns of invalid values where all results are finite (numpy issue 24067).
    with pytest.MonkeyPatch.context() as patch, np.errstate(invalid="ignore"):
        node_tests = import_module("onnx.backend.test.case.node")
        patch.setattr(node_tests, "expect", expect)
        for operator in ("rnn", "gru", "lstm"):
            reload(import_module(f"onnx.backend.test.case.node.{operator}"))
    return found


TESTS = standard()


def named(names, listed, arrays):
    """The arrays by the operator's names; one that is left out is listed as ""."""
    present = [name for name, given in zip(names, listed, strict=False) if given]
    return dict(zip(present, arrays, strict=True))


def run(node, inputs):
    given = named(INPUTS, node.input, inputs)
    x, attributes = given.pop("X"), {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
    attributes = {name: value.decode() if isinstance(value, bytes) else value for name, value in attributes.items()}
    return dict(zip(OUTPUTS, from_onnx(node.op_type, **given, **attributes).infer(x), strict=True))


def test_standard_has_tests_of_each_operator():
    operators = [node.op_type for node, _, _ in TESTS.values()]
    assert all(operators.count(name) >= 4 for name in ("RNN", "GRU", "LSTM"))  # 4 in ONNX 1.16, 6 in 1.23


@pytest.mark.parametrize("name", sorted(TESTS))
def test_standard_test_passes(name):
    node, inputs, outputs = TESTS[name]
    found = run(node, inputs)
    for output, expected in named(OUTPUTS, node.output, outputs).items():
        assert_close(output, found[output], expected, "float32")
