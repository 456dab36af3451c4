"""The public names of rnnkit.training: documented as the others are."""

import inspect
import re

import pytest
from docstring_rules import assert_documents_its_parameters, assert_typed, section

from rnnkit import training


def functions():
    """Functions and methods by name, constructors with the docstring of their class."""
    for name in training.__all__:
        thing = getattr(training, name)
        if inspect.isfunction(thing):
            yield name, (thing, thing.__doc__)
        elif not issubclass(thing, tuple):
            yield name, (thing.__init__, thing.__doc__)
            for own, method in inspect.getmembers(thing, inspect.isfunction):
                if not own.startswith("_"):
                    yield f"{name}.{own}", (method, inspect.getdoc(method))


FUNCTIONS = dict(functions())


def test_functions_and_methods_are_found():
    assert {"Adam", "Adam.step", "SGD.restore", "pad"} <= FUNCTIONS.keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_is_typed_and_documented(name):
    function, doc = FUNCTIONS[name]
    assert_documents_its_parameters(function, doc)
    assert_typed(function)
    returned = inspect.signature(function).return_annotation
    title = {"None": None, "Iterator[np.ndarray]": "Yields"}.get(returned, "Returns")
    assert title is None or section(doc, title)
    assert section(doc, "Raises")


def test_every_field_and_state_is_documented():
    for thing in training.Loss, training.DenseBackward:
        assert set(thing._fields) <= set(re.findall(r"\w+", thing.__doc__))
    assert training.Adam.state.__doc__ and training.SGD.state.__doc__
