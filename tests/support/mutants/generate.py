"""Faults made from the syntax tree of a source file: each is a small edit that a tired author might make.

An edit replaces the source of one node by text without line breaks of its own, so that all other lines keep their
numbers.
"""

import ast
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

_OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*",
    ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&", ast.BitXor: "|", ast.MatMult: "+",
}  # fmt: skip
_COMPARISONS = {
    ast.Lt: ("<=", ">="), ast.LtE: ("<", ">"), ast.Gt: (">=", "<="), ast.GtE: (">", "<"), ast.Eq: ("!=",),
    ast.NotEq: ("==",), ast.Is: ("is not",), ast.IsNot: ("is",), ast.In: ("not in",), ast.NotIn: ("in",),
}  # fmt: skip
_OPPOSITES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "start": "stop", "stop": "start", "zeros": "ones",
    "hidden_size": "output_size", "output_size": "hidden_size", "rows": "columns", "columns": "rows",
}  # fmt: skip


class Fault(NamedTuple):
    """`source[start:stop]` of the file at `path`, `before`, becomes `after`."""

    path: str
    scope: str  # the function or class it stands in, by its qualified name
    line: int
    kind: str
    start: int
    stop: int
    before: str
    after: str
    text: str = ""  # of its line, where `before` is a part of that

    @property
    def name(self) -> str:
        """What tells it from others as long as the code stays: no line number."""
        before, after, text = (" ".join(text.split()) for text in (self.before, self.after, self.text))
        return f"{self.path} {self.scope}: {self.kind}: {before} -> {after}" + f", in {text}" * (text not in before)

    def plant(self, source: str) -> str:
        return source[: self.start] + self.after + source[self.stop :]


def faults(path: str, source: str) -> list[Fault]:
    """All faults of a source file, in the order of its lines; a few of them change nothing (`changes_something`)."""
    lines, offsets = source.encode().splitlines(keepends=True), [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line.decode()))

    def span(node: ast.AST) -> slice:
        """Where a node stands; the tree counts the columns in bytes."""
        ends = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        return slice(*(offsets[line - 1] + len(lines[line - 1][:column].decode()) for line, column in ends))

    def text(node: ast.AST) -> str:
        return f"({found})" if "\n" in (found := source[span(node)]) else found

    found = {}
    for node, scope in _walk(ast.parse(source), ""):
        for place, kind, after in (*_of_statements(node, text), *_of_expressions(node, text)):
            at, line = span(place), lines[place.lineno - 1].decode()
            fault = Fault(path, scope or "module", place.lineno, kind, at.start, at.stop, source[at], after, line)
            found.setdefault((at.start, at.stop, after), fault)
    return sorted(found.values(), key=lambda fault: (fault.start, fault.stop, fault.after))


def changes_something(fault: Fault, source: str) -> bool:
    """Whether the source with the fault is Python still, and Python that does another thing."""
    try:
        return _meaning(fault.plant(source)) != _meaning(source)
    except SyntaxError:
        return False


def _meaning(source: str) -> str:
    """The tree as a text, the same for what nobody could tell apart."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="min" | "max"), args=choices):
                choices.sort(key=ast.dump)
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[ast.Tuple(elts=members)]):
                members.sort(key=ast.dump)
            case ast.Call(func=ast.Attribute(attr="reshape"), args=sizes):  # any number below 0 is what is left
                sizes[:] = [ast.Constant(-1) if _is_negative(size) else size for size in sizes]
            case ast.Call(keywords=keywords):  # whose line a warning is said to come from
                keywords[:] = [keyword for keyword in keywords if keyword.arg != "stacklevel"]
    return ast.dump(tree)


def _is_negative(node: ast.expr) -> bool:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)):
            return value > 0
    return False


def _of_statements(node, text):
    match node:
        case ast.If() | ast.While() | ast.IfExp():
            yield node.test, "condition", f"(not ({text(node.test)}))"
            if isinstance(node, ast.If):
                yield node.test, "branch left out", "False"
        case ast.With(items=[item, *_]):
            yield item.context_expr, "context left out", '__import__("contextlib").nullcontext()'
        case ast.AugAssign(op=op):
            yield node, "statement left out", "pass"
            yield node, "assigned", f"{text(node.target)} = {text(node.value)}"
            if type(op) in _OPERATORS:
                yield node, "operator", f"{text(node.target)} {_OPERATORS[type(op)]}= {text(node.value)}"
        case ast.Expr(value=ast.Call() | ast.Yield()) | ast.Delete() | ast.Raise() | ast.Break() | ast.Continue():
            yield node, "statement left out", "pass"
        case ast.Assign(targets=targets) if all(isinstance(t, ast.Attribute | ast.Subscript) for t in targets):
            yield node, "statement left out", "pass"


def _of_expressions(node, text):
    match node:
        case ast.BinOp(op=op) if type(op) in _OPERATORS and not _is_text(node.left):
            yield node, "operator", f"(({text(node.left)}) {_OPERATORS[type(op)]} ({text(node.right)}))"
        case ast.Compare(ops=[op], comparators=[right]):
            for other in _COMPARISONS[type(op)]:
                yield node, "comparison", f"({text(node.left)} {other} {text(right)})"
        case ast.BoolOp(values=values):
            own, other = (" and ", " or ") if isinstance(node.op, ast.And) else (" or ", " and ")
            yield node, "and, or", f"({other.join(f'({text(value)})' for value in values)})"
            for left_out in values:
                rest = own.join(f"({text(value)})" for value in values if value is not left_out)
                yield node, "condition left out", f"({rest})"
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield node, "operator left out", text(node.operand)
        case ast.Constant(value=bool(value)):
            yield node, "constant", str(not value)
        case ast.Constant(value=int(value)):
            yield node, "constant", str(value + 1)
            yield node, "constant", f"({value - 1})" if value < 1 else str(value - 1)
        case ast.Constant(value=float(value)):
            yield node, "constant", repr(value * 1.5 if value else 1.0)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            yield from _swapped(arguments, text)
            if isinstance(function, ast.Attribute) and function.attr == "copy":
                yield node, "copy left out", text(function.value)
            if isinstance(function, ast.Name) and function.id == "range":
                stop = arguments[min(len(arguments), 2) - 1]
                yield stop, "bound", f"({text(stop)} - 1)"
            for left_out in keywords if all(keyword.arg for keyword in keywords) else ():
                rest = [text(each) for each in (*arguments, *keywords) if each is not left_out]
                if left_out.arg != "strict":
                    yield node, "argument left out", f"{text(function)}({', '.join(rest)})"
        case ast.Tuple(elts=elements, ctx=ast.Load()) | ast.List(elts=elements, ctx=ast.Load()):
            yield from _swapped(elements, text)
            for left_out in elements:
                rest = "".join(f"{text(each)}, " for each in elements if each is not left_out)
                yield node, "element left out", f"({rest})" if isinstance(node, ast.Tuple) else f"[{rest}]"
        case ast.Slice():
            for bound in (node.lower, node.upper):
                if bound is not None and not isinstance(bound, ast.Constant):
                    yield bound, "bound", f"({text(bound)} + 1)"
        case ast.Attribute(attr=name) if name in _OPPOSITES:
            yield node, "opposite", f"{text(node.value)}.{_OPPOSITES[name]}"
        case ast.Name(id=name, ctx=ast.Load()) if name in _OPPOSITES:
            yield node, "opposite", _OPPOSITES[name]


def _swapped(nodes, text):
    """Two neighbours exchanged."""
    for first, second in pairwise(nodes):
        if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            both = ast.expr(
                lineno=first.lineno, col_offset=first.col_offset, end_lineno=second.end_lineno,
                end_col_offset=second.end_col_offset,
            )  # fmt: skip
            yield both, "neighbours swapped", f"{text(second)}, {text(first)}"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_tuning(node: ast.AST) -> bool:
    """Whether a statement of a module names a number, such as from how much work on threads are asked for help.

    One more or less is no fault there: tests of time and of what is shared out look at these.
    """
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and not any(isinstance(each, ast.Name | ast.Call | ast.Subscript) for each in ast.walk(node.value))
        and any(isinstance(each, ast.Constant) and isinstance(each.value, int | float) for each in ast.walk(node.value))
    )


def _walk(node: ast.AST, scope: str) -> Iterator[tuple[ast.AST, str]]:
    """All nodes with their scopes, but what only a reader or a type checker sees, and what an error says.

    Nor `strict=True`, which says that what is of one length is so, nor the order of the names in `__all__`.
    """
    if isinstance(node, ast.JoinedStr | ast.Global | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if not scope and _is_tuning(node):
        return
    if isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield from _walk(node.value, scope)
        return
    yield node, scope
    if isinstance(node, ast.Raise):
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        scope = f"{scope}.{node.name}".lstrip(".")
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment", "type_params", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child, scope)
