"""Find hand-written recurrent networks: modules whose forward steps a state through a Python loop over time."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from torch import nn

WAY = "rnnkit.torch.Recurrent runs all steps of a cell in one call, see the tutorial about a cell from a paper"


def loop_over_steps(module: nn.Module) -> str | None:
    """Return where the forward of a module loops over steps, as a text; None if it is not seen to.

    Such a loop reads what it counts through, ``x[:, t]``, and hands on a state by something of the module,
    ``h = self.cell(x[:, t], h)``. Loops over layers do not: what they call depends on the loop. Classes without source,
    and those of torch itself, are not looked at.
    """
    kind = type(module)
    return None if str(kind.__module__).partition(".")[0] in ("torch", "rnnkit") else _loop_in_class(kind)


@lru_cache(4096)
def _loop_in_class(kind: type) -> str | None:
    names, seen = ["forward"], set[str]()
    while names:
        name = names.pop()
        method = getattr(kind, name, None)
        if name in seen or not inspect.isfunction(method) or str(method.__module__).partition(".")[0] == "torch":
            continue
        seen.add(name)
        tree = _tree_of(method)
        if tree is None:
            continue
        own = _own_names(tree)
        for loop in _all(tree, (ast.For, ast.While)):
            if _steps_a_state(loop, own):
                line = method.__code__.co_firstlineno + loop.lineno - 1
                return f"{method.__qualname__} (line {line}) steps a state through a Python loop"
        names += [one for one in map(_own_method, _all(tree, ast.Call)) if one is not None]
    return None


def _tree_of(method: Callable[..., Any]) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, TypeError, SyntaxError, ValueError):  # without source, or of another language
        return None


def _all(tree: ast.AST, kind: Any) -> Iterator[Any]:
    return (node for node in ast.walk(tree) if isinstance(node, kind))


def _is_own(node: ast.AST) -> bool:
    """Whether an expression is an attribute of self."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _own_method(call: ast.Call) -> str | None:
    """Return the name of a method that is called on self."""
    return call.func.attr if _is_own(call.func) else None  # type: ignore[attr-defined]


def _own_names(tree: ast.AST) -> set[str]:
    """Return the variables that are parts of the module: self, ``cell = self.cell``, ``for cell in self.cells``."""
    found = {"self"}
    for node in _all(tree, ast.Assign):
        if _is_own(node.value):
            found |= _names(node.targets, ast.Store)
    for node in _all(tree, ast.For):
        if any(map(_is_own, ast.walk(node.iter))) and not _calls(node.iter, "range"):
            found |= _names(node.target, ast.Store)
    return found


def _names(nodes: Any, context: type[ast.expr_context] = ast.Load) -> set[str]:
    """Return the variables that some expressions or statements read or, with `ast.Store`, assign."""
    nodes = nodes if isinstance(nodes, list) else [nodes]
    return {name.id for node in nodes for name in _all(node, ast.Name) if isinstance(name.ctx, context)}


def _calls(node: ast.AST, name: str) -> bool:
    return any(isinstance(one.func, ast.Name) and one.func.id == name for one in _all(node, ast.Call))


def _steps_a_state(loop: Any, own: set[str]) -> bool:
    """Whether each step of a loop reads an element, and makes a state from it and from the state of the step before, by
    something of the module."""
    nodes = [node for statement in loop.body for node in ast.walk(statement)]
    assigned = _names(loop.body, ast.Store) | _names([*_parts_assigned(nodes)])
    if isinstance(loop, ast.While):
        counters, elements = _names(loop.test) & assigned, set[str]()
    else:
        counters = _names(loop.target, ast.Store)
        elements = set() if _calls(loop.iter, "range") else counters - own  # for x_t in x.unbind(1)
    if any(_is_of_a_layer(node.func, counters, own) for node in nodes if isinstance(node, ast.Call)):
        return False
    states = _handed_on(loop.body, assigned - counters)

    def reads_an_element(node: ast.AST) -> bool:
        if isinstance(node, ast.Subscript):
            return bool(_names(node.slice) & counters) and not _names(node.value) & own
        return isinstance(node, ast.Name) and node.id in elements

    def advances(node: ast.AST) -> bool:
        return _advances(node, own - counters, states)

    return bool(_reached(loop.body, reads_an_element) & _reached(loop.body, advances) & states)


def _is_of_a_layer(function: ast.AST, counters: set[str], own: set[str]) -> bool:
    """Whether what is called differs from step to step: ``self.layers[i](x)``, ``layer(x)``."""
    if isinstance(function, ast.Name):
        return function.id in counters
    return bool(_names(function) & counters) and bool(_names(function) & own)


def _reached(body: list[Any], starts: Callable[[ast.AST], bool]) -> set[str]:
    """Return the variables that depend on expressions for which `starts` is true."""
    found, before = set[str](), None
    while found != before:
        before = set(found)
        for node in (node for statement in body for node in ast.walk(statement)):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
                if _names(node.value) & found or any(map(starts, ast.walk(node.value))):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    found |= _names(targets, ast.Store) | _names([*_parts_assigned(ast.walk(node))])
    return found


def _parts_assigned(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the variables of which elements are assigned: ``h[layer] = ...``."""
    for node in nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield node.value


def _handed_on(body: list[Any], assigned: set[str]) -> set[str]:
    """Return the variables that a step reads before it assigns them: those of the step before."""
    found, done = set[str](), set[str]()
    for statement in body:
        found |= _names(statement) & assigned - done
        if not isinstance(statement, (ast.If, ast.For, ast.While, ast.Try)):  # which may not run
            done |= _names(statement, ast.Store)
    return found


def _advances(node: ast.AST, own: set[str], states: set[str]) -> bool:
    """Whether an expression takes a state through something of the module."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return bool(_names(node) & states)
    if not isinstance(node, ast.Call):
        return False
    arguments = [*node.args, *(one.value for one in node.keywords)]
    is_own = _names(node.func) & own or any(_is_own(one) for one in arguments)
    return bool(is_own) and bool(_names(arguments) & states)
