"""Where a name takes part in the arithmetic of a file, and where the file says what it is.

Contract: read from syntax, one file at a time. A factor is followed through local names (`f = config.factor`), never
through calls; what a declaring assignment calls in the same file counts as declaring.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lab.source import Source

Lines = tuple[int, int]
_MULTIPLYING_CALLS = frozenset({"mul", "mul_", "multiply"})
_PLAIN_CALLS = frozenset({"float", "int", "abs", "tensor", "as_tensor", "getattr", "get"})


def products(source: Source, name: str) -> Iterator[Lines]:
    """The lines of every product one of whose factors is `name`, or a local name that stands for it."""
    local = _local_names(source, name)
    for node in ast.walk(source.tree):
        factors: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            factors = [node.left, node.right]
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
            factors = [node.target, node.value]
        elif isinstance(node, ast.Call) and _called(node) in _MULTIPLYING_CALLS:
            receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            factors = [*receiver, *node.args]
        if factors:
            assert isinstance(node, ast.expr | ast.stmt)
            names = {name} | local.get(source.qualname(node.lineno), set())
            if any(_mentions(factor, names) for factor in factors):
                yield node.lineno, node.end_lineno or node.lineno


def declarations(source: Source, name: str) -> Iterator[Lines]:
    """Definitions of the name, assignments of it in a module, a class body or to `self`, and what those call here."""
    for definition in source.definitions:
        if definition.name == name:
            yield definition.start, definition.end
    for targets, value in _assignments(source.tree):
        for target in targets:
            around = source.around(target.lineno)
            in_function = around is not None and around.kind == "function"
            plain = isinstance(target, ast.Name) and target.id == name and not in_function
            if plain or (isinstance(target, ast.Attribute) and target.attr == name):
                end = value.end_lineno if value else target.end_lineno
                yield target.lineno, _closing(source, target.lineno, end or target.lineno)
                called = _called(value) if isinstance(value, ast.Call) else ""
                if called and (function := source.named(called)):
                    yield function.start, function.end


def _closing(source: Source, start: int, end: int) -> int:
    """The last line of the statement that starts on a line."""
    return max((owner.end for owner in source.owners(start)), default=end)


def _local_names(source: Source, name: str) -> dict[str, set[str]]:
    """By function: the local names that are assigned the name itself, not a product with it."""
    found: dict[str, set[str]] = {}
    for targets, value in _assignments(source.tree):
        if (
            value is None
            or any(isinstance(node, ast.BinOp) for node in ast.walk(value))
            or not _mentions(value, {name})
        ):
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                found.setdefault(source.qualname(target.lineno), set()).add(target.id)
    return found


def _assignments(tree: ast.Module) -> Iterator[tuple[list[ast.expr], ast.expr | None]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield node.targets, node.value
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            yield [node.target], node.value


def _mentions(node: ast.expr, names: set[str]) -> bool:
    """Whether an operand is one of the names, an attribute or key of that name, or built from one outside of calls."""
    if isinstance(node, ast.Call):
        if _called(node) not in _PLAIN_CALLS:
            return False
        return any(_mentions(part, names) for part in [*node.args, *(keyword.value for keyword in node.keywords)])
    if isinstance(node, ast.Attribute):
        return node.attr in names
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Constant):
        return node.value in names
    if isinstance(node, ast.IfExp):
        return _mentions(node.body, names) or _mentions(node.orelse, names)
    return any(_mentions(child, names) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))


def _called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
