"""Faults made from the syntax tree of a source file: every one is a small edit that a tired author might make.

An edit replaces the source of one node, so that all other lines, and the line numbers of a traceback, stay as they are.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

_OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*",
    ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&", ast.BitXor: "|", ast.MatMult: "+",
}  # fmt: skip
_COMPARISONS = {
    ast.Lt: ("<=", ">="), ast.LtE: ("<", ">"), ast.Gt: (">=", "<="), ast.GtE: (">", "<"), ast.Eq: ("!=",),
    ast.NotEq: ("==",), ast.Is: ("is not",), ast.IsNot: ("is",), ast.In: ("not in",), ast.NotIn: ("in",),
}  # fmt: skip


class Fault(NamedTuple):
    """`source[start:stop]` of the file at `path` becomes `after`."""

    path: str
    line: int
    kind: str
    start: int
    stop: int
    before: str
    after: str

    @property
    def name(self) -> str:
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.path}:{self.line} {self.kind}: {before[:60]!r} -> {after[:60]!r}"

    def plant(self, source: str) -> str:
        return source[: self.start] + self.after + source[self.stop :]


def faults(path: str, source: str) -> list[Fault]:
    """All faults of a source file, in the order of its lines."""
    text = source.encode()
    offsets = [0]
    for line in text.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))

    def place(lineno: int, column: int) -> int:
        return len(text[: offsets[lineno - 1] + column].decode())

    found = {}
    for node, kind, after in _edits(ast.parse(source), source):
        start, stop = place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)
        fault = Fault(path, node.lineno, kind, start, stop, source[start:stop], after)
        if _changes_something(source, fault):
            found.setdefault((start, stop, after), fault)
    return sorted(found.values(), key=lambda fault: (fault.start, fault.stop, fault.after))


def _changes_something(source: str, fault: Fault) -> bool:
    try:
        return ast.dump(ast.parse(fault.plant(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def _edits(tree: ast.Module, source: str) -> Iterator[tuple[ast.AST, str, str]]:
    """Pairs of a node and what takes its place."""

    def text(node: ast.AST) -> str:
        return f"({found})" if "\n" in (found := ast.get_source_segment(source, node)) else found

    for node in _walk(tree):
        match node:
            case ast.BinOp(op=op) if type(op) in _OPERATORS and not _is_text(node.left):
                yield node, "operator", f"({text(node.left)}) {_OPERATORS[type(op)]} ({text(node.right)})"
            case ast.Compare(ops=[op], comparators=[right]):
                for other in _COMPARISONS[type(op)]:
                    yield node, "comparison", f"{text(node.left)} {other} {text(right)}"
            case ast.BoolOp(values=[first, *rest]):
                other = "or" if isinstance(node.op, ast.And) else "and"
                yield node, "and, or", f" {other} ".join(f"({text(value)})" for value in [first, *rest])
                for left_out in node.values:
                    join = " and " if other == "or" else " or "
                    yield node, "condition left out", join.join(text(v) for v in node.values if v is not left_out)
            case ast.UnaryOp(op=ast.USub() | ast.Not()):
                yield node, "operator left out", text(node.operand)
            case ast.Constant(value=bool(value)):
                yield node, "constant", str(not value)
            case ast.Constant(value=int(value)):
                yield node, "constant", str(value + 1)
                yield node, "constant", f"({value - 1})" if value < 1 else str(value - 1)
            case ast.Constant(value=float(value)):
                yield node, "constant", repr(value * 1.5 if value else 1.0)
            case ast.Call(args=arguments):
                for first, second in zip(arguments, arguments[1:]):  # noqa: B905  neighbours
                    if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                        yield from _swapped(node, first, second, source)
                if isinstance(node.func, ast.Name) and node.func.id == "range":
                    stop = arguments[min(len(arguments), 2) - 1]
                    yield stop, "bound", f"{text(stop)} - 1"
            case ast.Slice():
                for bound in (node.lower, node.upper):
                    if bound is not None and not isinstance(bound, ast.Constant):
                        yield bound, "bound", f"{text(bound)} + 1"
            case ast.Attribute(attr=name) if name in _OPPOSITES:
                yield node, "opposite", f"{text(node.value)}.{_OPPOSITES[name]}"
            case ast.Name(id=name, ctx=ast.Load()) if name in _OPPOSITES:
                yield node, "opposite", _OPPOSITES[name]
            case ast.IfExp():
                yield node.test, "condition", f"(not ({text(node.test)}))"
            case ast.If() | ast.While():
                yield node.test, "condition", f"not ({text(node.test)})"
                if isinstance(node, ast.If):
                    yield node.test, "branch left out", "False"
            case ast.Expr(value=ast.Call() | ast.Yield()) | ast.AugAssign() | ast.Delete() | ast.Raise():
                yield node, "statement left out", "pass"
            case ast.Break() | ast.Continue():
                yield node, "statement left out", "pass"
            case ast.Assign(targets=targets) if all(isinstance(t, ast.Attribute | ast.Subscript) for t in targets):
                yield node, "statement left out", "pass"
        if isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
            yield node, "operator", f"{text(node.target)} {_OPERATORS[type(node.op)]}= {text(node.value)}"


_OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any", "start": "stop", "stop": "start", "zeros": "ones"}


def _swapped(call: ast.Call, first: ast.expr, second: ast.expr, source: str) -> Iterator[tuple[ast.AST, str, str]]:
    """Two arguments that stand side by side exchanged, with what stands between them."""
    one, other = (ast.get_source_segment(source, each) for each in (first, second))
    both = ast.expr(
        lineno=first.lineno, col_offset=first.col_offset, end_lineno=second.end_lineno,
        end_col_offset=second.end_col_offset,
    )  # fmt: skip
    yield both, "arguments swapped", f"{other}, {one}"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(node, ast.Constant) and isinstance(node.value, str)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that say something to a reader or a type checker alone, and what an error says."""
    if isinstance(node, ast.JoinedStr | ast.Global | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.AnnAssign):
        yield from _walk(node.value) if node.value is not None else ()
        return
    yield node
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child)
