"""What every public docstring has."""

import inspect
import re


def section(doc, title):
    """The names of the entries of one numpydoc section, or None without that section."""
    lines = inspect.cleandoc(doc).splitlines()
    starts = [i for i in range(len(lines) - 1) if lines[i] == title and re.fullmatch("-{3,}", lines[i + 1])]
    if not starts:
        return None
    names = []
    for line, following in zip(lines[starts[0] + 2 :], [*lines[starts[0] + 3 :], ""], strict=True):
        if re.fullmatch("-{3,}", following):
            break
        if line and not line.startswith(" "):
            names += [name.strip().lstrip("*") for name in line.split(" :")[0].split(",")]
    return names


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


def assert_documents_its_parameters(function, doc):
    assert doc, "no docstring"
    assert (section(doc, "Parameters") or []) == parameters(function)


def assert_typed(function):
    signature = inspect.signature(function)
    untyped = [name for name, p in signature.parameters.items() if p.annotation is p.empty and name != "self"]
    assert not untyped, f"no type hint for {untyped}"
    assert signature.return_annotation is not signature.empty, "no type hint for what is returned"
