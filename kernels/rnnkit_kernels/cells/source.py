"""Two digests of a cell: `code_key` for the kernel cache, and `source_of` for saved files.

Both digest the declaration and the functions, with every value that the functions use. The key uses a function's
bytecode, which is what runs; the source uses its syntax tree, which is the same in every version of Python.

Those of a user's class are made when the class is defined, and stay: a constant that is reassigned later, as in a
notebook, changes neither the derived functions nor the digests. What is compiled after such a change is refused, see
`changes_of`.
"""

import ast
import hashlib
import linecache
from functools import lru_cache
from types import CodeType
from typing import NamedTuple
from weakref import WeakKeyDictionary

from .uses import Unresolved, codes_in, described, uses

_VERSION = "2"  # of the digest `source_of`
_NO_MEANING = "ctx", "kind", "type_comment", "type_params", "annotation", "returns"


def is_shipped(kind):
    """Whether a cell or an activation is part of this package, not a user's."""
    return kind.__module__.startswith(__package__)


class _Frozen(NamedTuple):
    """Digests of a class as it was defined: each a text, or the Unresolved error."""

    code: str | Unresolved
    source: str | Unresolved
    constants: dict  # of the code: path -> text


_FROZEN = WeakKeyDictionary()


def freeze(kind):
    """Make the digests of a user's cell or activation, when its class is defined."""
    constants = {}
    code = _outcome(lambda: _code_key(kind, constants))
    _FROZEN[kind] = _Frozen(code, _outcome(lambda: _source_of(kind)), constants)


def code_key(kind):
    """Return the digest of all that the machine code of a cell or an activation depends on. Raises Unresolved."""
    frozen = _frozen(kind)
    return _code_key(kind, {}) if frozen is None else _resolved(frozen.code)


def source_of(kind):
    """Return the digest of the equations of a cell or an activation, for saved files. Raises Unresolved."""
    frozen = _frozen(kind)
    return _source_of(kind) if frozen is None else _resolved(frozen.source)


def changes_of(kind):
    """Return what a class's functions use that has changed since it was defined, for a message; "" for nothing."""
    frozen, constants = _frozen(kind), {}
    if frozen is None or not isinstance(frozen.code, str):
        return ""
    if _outcome(lambda: _code_key(kind, constants)) == frozen.code:
        return ""
    changed = [path for path, text in constants.items() if frozen.constants.get(path) != text]
    return ", ".join(changed) or "a function"


def _frozen(kind):
    """Return the frozen digests of a class, or of the one that it only gives another name; None without any."""
    for base in kind.__mro__:
        if base in _FROZEN:
            parts = "declaration", "value", "slope"
            return _FROZEN[base] if all(getattr(kind, n, None) is getattr(base, n, None) for n in parts) else None
    return None


def _outcome(digest):
    try:
        return digest()
    except Unresolved as error:
        return error


def _resolved(outcome):
    if isinstance(outcome, Unresolved):
        raise Unresolved(*outcome.args)
    return outcome


def _code_key(kind, constants):
    declaration = getattr(kind, "declaration", None)
    equations = None
    if declaration:
        slots, means = declaration.extra_slots, (declaration.means, declaration.gradient_means)
        equations = declaration.stages, (slots, *means) if declaration.means else slots
    return _digest(kind, lambda function: _runs(function.__code__), equations, constants)


def _source_of(kind):
    declaration = getattr(kind, "declaration", None)
    equations = declaration and (declaration.equations, declaration.derivation_version or declaration.extra_slots)
    return f"{_VERSION}:{_digest(kind, _tree_of, equations, {})}"


def _digest(kind, of_function, equations, constants):
    """Return the digest of a cell's declaration and of `equations`: stages, and their slots or derivation version. None
    for `equations` is an activation. Adds path -> text of each value that is not a function to `constants`."""
    numbers = {}  # function -> its number in order of discovery: a function may call itself

    def function(one):
        if one in numbers:
            return numbers[one]
        numbers[one] = len(numbers)
        defaults = *(one.__defaults__ or ()), *sorted((one.__kwdefaults__ or {}).items())
        names = {"a default": defaults, **uses(one)}
        own, found = of_function(one), [(path, described(path, names[path], function)) for path in sorted(names)]
        constants.update((path, repr(text)) for path, text in found if not callable(names[path]))
        return own, found

    stages, slots = equations or ((), ())
    functions = [stage.function for stage in stages] if equations else [kind.value, kind.slope]
    return hashlib.sha256(repr((_declared(kind, stages, slots), *map(function, functions))).encode()).hexdigest()


def type_name(annotation):
    """Return the last name of an annotation, which is a text under `from __future__ import annotations`."""
    text = getattr(annotation, "__name__", getattr(annotation, "__forward_arg__", annotation))
    return str(text).rpartition(".")[2]


def _declared(kind, stages, slots):
    named_tuple = next(base for base in kind.__mro__ if "_fields" in vars(base))
    annotations = [(name, named_tuple.__annotations__[name]) for name in kind._fields]
    parameters = [(name, type_name(one)) for name, one in annotations]
    declaration = getattr(kind, "declaration", None)
    if not declaration:
        return parameters
    stages = [(stage.writes, stage.is_gradient) for stage in stages]
    vectors = [one for one in declaration.vectors if one not in declaration.scalars]
    blocks = declaration.gates, vectors, *([declaration.scalars] if declaration.scalars else [])
    weights = [[_set(one) for one in block] for block in blocks]
    weights += [declaration.inputs] if declaration.inputs else []
    weights += [("noises", *declaration.noises)] if declaration.noises else []
    return declaration.name, parameters, declaration.states, slots, declaration.smooth, weights, stages


def _set(one):
    """Return the fields of a gate or vector without defaults, so that fields added later do not change old digests."""
    return [(name, value) for name, value in one._asdict().items() if value != one._field_defaults.get(name, ...)]


def _runs(code):
    """Return the parts of a code object that its results depend on, without its position and name."""
    constants = [_runs(one) if isinstance(one, CodeType) else (type(one).__name__, repr(one)) for one in code.co_consts]
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & 0xFF
    return code.co_code.hex(), constants, counts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars


_TREES = WeakKeyDictionary()


def _tree_of(function):
    """Return a function's syntax tree. It is read once: its file may be edited while the process runs."""
    if function not in _TREES:
        node = node_of(function)
        names = [one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)]
        _TREES[function] = names, _meaning(node.body)
    return _TREES[function]


class _Text(str):
    """A text that stands for itself, without quotes, in the text of tuples and lists that contain it."""

    __repr__ = str.__str__


def _meaning(node):
    """Return a syntax tree as text, without positions, annotations, docstrings, and fields that only some versions of
    Python have. The text is that of lists and tuples (name, value); a tree may be too deep to make them."""
    texts, waiting = [], [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, _Text):
            texts.append(one)
        elif isinstance(one, list):
            waiting.extend(reversed(_between("[", [[part] for part in one if not _is_text(part)], "]")))
        elif isinstance(one, ast.AST):
            fields = [(name, value) for name, value in ast.iter_fields(one) if name not in _NO_MEANING]
            fields = [(name, value) for name, value in fields if value not in (None, [])]
            parts = [(_Text(f"({name!r}, "), value, _Text(")")) for name, value in fields]
            name = f"({type(one).__name__!r}, "
            waiting.extend(reversed(_between(f"{name}[", parts, "])")))
        else:
            texts.append(repr((type(one).__name__, repr(one))))
    return _Text("".join(texts))


def _between(begin, parts, end):
    """Return the parts, each a sequence, with commas between them, and what begins and ends them."""
    found = [_Text(begin)]
    for number, part in enumerate(parts):
        found += [_Text(", "), *part] if number else part
    return [*found, _Text(end)]


def _is_text(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def node_of(function):
    """Return the syntax tree of a function. Raises Unresolved unless it compiles to the code that runs."""
    code = function.__code__
    where = f"{function.__name__} ({code.co_filename}:{code.co_firstlineno})"
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    if not text:
        raise Unresolved(f"has no source for {where}; define it in a file or a notebook")
    try:
        nodes, compiled = _parsed(code.co_filename, text)
    except SyntaxError:
        nodes, compiled = [], []
    position = code.co_name, code.co_firstlineno
    found = [node for node in nodes if _position(node) == position]
    texts = {repr(_runs(one)) for one in compiled if (one.co_name, one.co_firstlineno) == position}
    if not found or texts != {repr(_runs(code))}:
        cure = "remove __pycache__, reload the module, or put each function on a line of its own"
        raise Unresolved(f"runs code that is not the source of {where}; {cure}")
    return found[0]


@lru_cache(4)
def _parsed(name, text):
    """Return the functions of a module, as syntax trees and as code."""
    functions = ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda
    nodes = [node for node in ast.walk(ast.parse(text, name)) if isinstance(node, functions)]
    code = compile(text, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return nodes, list(codes_in(code))


def _position(node):
    if isinstance(node, ast.Lambda):
        return "<lambda>", node.lineno
    return node.name, min(one.lineno for one in (node, *node.decorator_list))
