"""Two digests of a cell: `code_key` for the kernel cache, and `source_of` for saved files.

Both digest the declaration and the functions, with every value that the functions use. The key uses a function's
bytecode, which is what runs; the source uses its syntax tree, which is the same in every version of Python.
"""

import ast
import hashlib
import linecache
from functools import lru_cache
from types import CodeType
from weakref import WeakKeyDictionary

from .uses import Unresolved, codes_in, described, uses

_VERSION = "2"  # of the digest `source_of`; until 0.9 it was a digest of texts, see `source_0_9`
_NO_MEANING = "ctx", "kind", "type_comment", "type_params", "annotation", "returns"


def is_shipped(kind):
    """Whether a cell or an activation is part of this package, not a user's."""
    return kind.__module__.startswith(__package__)


def code_key(kind):
    """Return the digest of all that the machine code of a cell or an activation depends on. Raises Unresolved."""
    declaration = getattr(kind, "declaration", None)
    equations = None
    if declaration:
        slots, means = declaration.extra_slots, (declaration.means, declaration.gradient_means)
        equations = declaration.stages, (slots, *means) if declaration.means else slots
    return _digest(kind, lambda function: _runs(function.__code__), equations)


def source_of(kind):
    """Return the digest of the equations of a cell or an activation, for saved files. Raises Unresolved."""
    declaration = getattr(kind, "declaration", None)
    equations = declaration and (declaration.equations, declaration.derivation_version or declaration.extra_slots)
    return f"{_VERSION}:{_digest(kind, _tree_of, equations)}"


def _digest(kind, of_function, equations):
    """Return the digest of a cell's declaration and of `equations`: stages, and their slots or derivation version. None
    for `equations` is an activation."""
    numbers = {}  # function -> its number in order of discovery: a function may call itself

    def function(one):
        if one in numbers:
            return numbers[one]
        numbers[one] = len(numbers)
        defaults = *(one.__defaults__ or ()), *sorted((one.__kwdefaults__ or {}).items())
        names = {"a default": defaults, **uses(one)}
        return of_function(one), [(path, described(path, names[path], function)) for path in sorted(names)]

    stages, slots = equations or ((), ())
    functions = [stage.function for stage in stages] if equations else [kind.value, kind.slope]
    return hashlib.sha256(repr((_declared(kind, stages, slots), *map(function, functions))).encode()).hexdigest()


def _declared(kind, stages, slots):
    named_tuple = next(base for base in kind.__mro__ if "_fields" in vars(base))
    annotations = [(name, named_tuple.__annotations__[name]) for name in kind._fields]
    parameters = [(name, getattr(one, "__name__", str(one)).rpartition(".")[2]) for name, one in annotations]
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


def _meaning(node):
    """Return a syntax tree as text and tuples, without positions, annotations, docstrings, and fields that only some
    versions of Python have."""
    if isinstance(node, list):
        return [_meaning(one) for one in node if not _is_text(one)]
    if not isinstance(node, ast.AST):
        return type(node).__name__, repr(node)
    fields = [(name, value) for name, value in ast.iter_fields(node) if name not in _NO_MEANING]
    return type(node).__name__, [(name, _meaning(value)) for name, value in fields if value not in (None, [])]


def _is_text(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def node_of(function):
    """Return the syntax tree of a function. Raises Unresolved unless it compiles to the code that runs."""
    code = function.__code__
    where = f"{function.__name__} ({code.co_filename}:{code.co_firstlineno})"
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    if not text:
        raise Unresolved(f"has no source for {where}; define it in a file")
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
