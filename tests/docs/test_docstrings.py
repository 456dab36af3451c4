"""Docstrings: documented parameters are those of the signature, everything public is typed, and examples run."""

import doctest
import importlib
import inspect
import re
from functools import cached_property
from pathlib import Path

import pytest
from docstring_rules import assert_documents_its_parameters, assert_typed, section
from optional import needs
from public_names import PUBLIC, skip_outside_jax

import rnnkit

MADE_BY_RNNKIT = {"Workspace", "Plan", "Stream"}  # users never call these constructors


def public_objects():
    return {name: getattr(rnnkit, name) for name in PUBLIC}


def public_functions():
    """Functions and methods by name, constructors with the docstring of their class."""
    found = {}
    for name, thing in public_objects().items():
        if inspect.isfunction(thing):
            found[name] = thing, thing.__doc__
        elif not issubclass(thing, (tuple, Exception)):
            if name not in MADE_BY_RNNKIT:
                found[name] = thing.__init__, thing.__doc__
            methods = inspect.getmembers(thing, inspect.isfunction)
            found |= {f"{name}.{m}": (method, method.__doc__) for m, method in methods if not m.startswith("_")}
    return found


FUNCTIONS = public_functions()
TUPLES = {name: thing for name, thing in public_objects().items() if hasattr(thing, "_fields")}


def test_public_functions_and_tuples_are_found():
    assert {"forward", "num_weights", "RNNDescriptor", "LSTM", "LSTM.backward", "Plan.step", "load"} <= FUNCTIONS.keys()
    assert {"Forward", "Backward", "Infer", "WeightBlock", "Explanation", "Route"} == TUPLES.keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_and_returned_values_are_documented_and_typed(name):
    function, doc = FUNCTIONS[name]
    assert_documents_its_parameters(function, doc)
    assert_typed(function)
    returns_nothing = inspect.signature(function).return_annotation in (None, "None")
    assert bool(section(doc, "Returns")) != returns_nothing


@pytest.mark.parametrize("name", TUPLES)
def test_fields_of_tuples_are_documented(name):
    assert set(TUPLES[name]._fields) <= set(re.findall(r"\w+", TUPLES[name].__doc__))


@pytest.mark.parametrize("name", public_objects())
def test_public_objects_have_docstrings(name):
    thing = public_objects()[name]
    assert thing.__doc__ and thing.__doc__.strip()
    attributes = inspect.getmembers(thing, lambda member: isinstance(member, (property, cached_property)))
    assert not [key for key, attribute in attributes if not key.startswith("_") and not attribute.__doc__]


# Those of the GPU engine import CuPy; they are private and have no examples.
PACKAGE = Path(rnnkit.__file__).parent
FILES = [path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py")]  # `walk_packages` imports Keras and others
MODULES = {".".join(path.parent.parts if path.stem == "__init__" else path.with_suffix("").parts) for path in FILES}
NEED_CUPY = "engine modes cells layer layer_gradient marks kernels graphs blas context".split()
MODULES = sorted(MODULES - {"rnnkit.keras.tensorflow", *(f"rnnkit.cuda.{name}" for name in NEED_CUPY)})
# What is imported with these modules, and is not installed everywhere.
NEEDED = {
    "rnnkit.jax": "jax",
    "rnnkit.jax.flax": "flax",
    "rnnkit.keras": "keras",
    "rnnkit.torch": "torch",
    "rnnkit.sklearn": "sklearn",
    "rnnkit.plot": "matplotlib",
}


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    skip_outside_jax(name)
    for start, library in NEEDED.items():
        if name.startswith(start):
            needs(library)
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    assert doctest.testmod(module).failed == 0


def test_examples_exist():
    assert doctest.testmod(importlib.import_module("rnnkit.descriptor.weights")).attempted > 10


def planted(first: int, second=2) -> int:
    """Do nothing.

    Parameters
    ----------
    first, second : int
        Numbers.
    **options
        Others.

    Returns
    -------
    int
        Nothing.
    """


def test_checks_notice_planted_mistakes():
    assert section(planted.__doc__, "Parameters") == ["first", "second", "options"]
    assert section(planted.__doc__, "Returns") == ["int"]
    assert section(planted.__doc__, "Raises") is None
    with pytest.raises(AssertionError, match="options"):
        assert_documents_its_parameters(planted, planted.__doc__)
    with pytest.raises(AssertionError, match="no docstring"):
        assert_documents_its_parameters(planted, None)
    with pytest.raises(AssertionError, match="no type hint for .*second"):
        assert_typed(planted)
