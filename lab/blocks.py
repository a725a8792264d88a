"""The walk over a syntax tree, block by block, that finds statements and definitions with their guards and siblings.

Contract: see `lab/statements.py` for what is collected; every line of code has its innermost owner.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lab.statements import Definition, Guard, Statement, StatementKind

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_BRANCHING = (ast.If, ast.While, ast.For, ast.AsyncFor, ast.Match)
_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_BLOCK_FIELDS = frozenset({"body", "orelse", "handlers", "finalbody", "cases"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What holds for every statement of one block."""

    qualname: tuple[str, ...] = ()
    place: tuple[str, ...] = ()
    guards: tuple[Guard, ...] = ()
    owner: _Scope | None = None
    in_function: bool = False


class Walk:
    """Collects `statements` and `definitions` of a module, block by block.

    Args:
        tree: the module.
        lines: its text, by line.
    """

    def __init__(self, tree: ast.Module, lines: list[str]) -> None:
        self.statements: list[Statement] = []
        self.definitions: list[Definition] = []
        self._lines = lines
        self._block(tree.body, _Context())

    def _block(self, body: list[ast.stmt], context: _Context) -> None:
        kinds = [_kind(statement, context.owner, first=index == 0) for index, statement in enumerate(body)]
        if isinstance(context.owner, _Function) and body is context.owner.body and set(kinds) == {"nothing"}:
            kinds[-1] = "acting"  # an empty function still acts when it is called: it hides what it overrides
        for index, statement in enumerate(body):
            siblings = (
                _extent(body[index - 1]) if index else None,
                _extent(body[index + 1]) if index + 1 < len(body) else None,
            )
            if isinstance(statement, _Scope):
                self._definition(statement, context, siblings)
            elif blocks := list(_blocks(statement)):
                self._compound(statement, blocks, context, siblings)
                context = replace(context, guards=(*context.guards, *self._early_exit(statement)))
            else:
                self._add(statement, context, siblings, kinds[index], _extent(statement), ast.dump(statement))

    def _compound(self, node: ast.stmt, blocks: list[_Block], context: _Context, siblings: _Siblings) -> None:
        header = _header_shape(node)
        end = max(node.lineno, min(block.line if block.own_line else _start(block.body[0]) for block in blocks) - 1)
        self._add(node, context, siblings, "import" if _for_types(node) else "acting", (node.lineno, end), header)
        for block in blocks:
            guards = context.guards
            if block.own_line:
                own = (block.line, max(block.line, _start(block.body[0]) - 1))
                whole = (None, _extent(node))
                self._add(node, context, whole, "acting", own, header + block.shape, silent=block.silent)
            if block.own_line or isinstance(node, _BRANCHING):
                guards = (*guards, Guard(line=block.line, text=self._text(block.line), taken=block.label != "orelse"))
            place = (*context.place, f"{block.label} {header}{block.shape}")
            self._block(block.body, replace(context, place=place, guards=guards))

    def _definition(self, node: _Scope, context: _Context, siblings: _Siblings) -> None:
        inside = (*context.qualname, node.name)
        here = replace(context, qualname=inside)
        signature = _signature(node)
        header = f"{type(node).__name__} {node.name} ({signature})"
        for part in (*node.decorator_list, *_defaults(node)):
            self._add(node, here, siblings, "acting", (part.lineno, part.end_lineno or part.lineno), ast.dump(part))
        self._add(node, here, siblings, "header", (node.lineno, max(node.lineno, _start(node.body[0]) - 1)), header)
        in_class = isinstance(context.owner, ast.ClassDef)
        of_class = node if isinstance(node, ast.ClassDef) else context.owner
        self.definitions.append(
            Definition(
                name=node.name,
                qualname=".".join(inside),
                kind="class" if isinstance(node, ast.ClassDef) else "function",
                start=_start(node),
                end=node.end_lineno or node.lineno,
                body=_start(node.body[0]),
                owner=".".join(context.qualname) if in_class else "",
                bases=tuple(ast.unparse(b) for b in of_class.bases) if isinstance(of_class, ast.ClassDef) else (),
                decorators=tuple(ast.unparse(decorator) for decorator in node.decorator_list),
                signature=signature,
            )
        )
        body = _Context(
            qualname=inside,
            place=(*context.place, header),
            guards=() if isinstance(node, _Function) else context.guards,
            owner=node,
            in_function=context.in_function or isinstance(node, _Function),
        )
        self._block(node.body, body)

    def _add(
        self,
        node: ast.stmt,
        context: _Context,
        siblings: _Siblings,
        kind: StatementKind,
        lines: tuple[int, int],
        shape: str,
        *,
        silent: bool = False,
    ) -> None:
        self.statements.append(
            Statement(
                start=lines[0],
                end=lines[1],
                kind=kind,
                qualname=".".join(context.qualname),
                in_function=context.in_function,
                shape=shape,
                place=context.place,
                extent=_extent(node),
                previous=siblings[0],
                next=siblings[1],
                guards=context.guards,
                leaves=isinstance(node, _LEAVING),
                silent=silent or isinstance(node, ast.Global | ast.Nonlocal),
            )
        )

    def _early_exit(self, node: ast.stmt) -> list[Guard]:
        """The condition that an `if` whose one side leaves puts on everything after it."""
        if not isinstance(node, ast.If):
            return []
        leaves = [bool(side) and isinstance(side[-1], _LEAVING) for side in (node.body, node.orelse)]
        if leaves[0] == leaves[1]:
            return []
        return [Guard(line=node.lineno, text=self._text(node.lineno), taken=leaves[1])]

    def _text(self, line: int) -> str:
        return self._lines[line - 1].strip() if line <= len(self._lines) else ""


_Siblings = tuple[tuple[int, int] | None, tuple[int, int] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """One block of a compound statement; `except` and `case` have a line of their own that is a condition."""

    label: str
    body: list[ast.stmt]
    line: int
    own_line: bool = False
    shape: str = ""
    silent: bool = False


def _blocks(node: ast.stmt) -> Iterator[_Block]:
    if isinstance(node, ast.Match):
        for case in node.cases:
            shape = ast.dump(case.pattern) + (ast.dump(case.guard) if case.guard else "")
            line = case.pattern.lineno
            wild = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and case.guard is None
            yield _Block(label="case", body=case.body, line=line, own_line=True, shape=shape, silent=wild)
        return
    for label in ("body", "handlers", "orelse", "finalbody"):
        for part in [getattr(node, label, [])] if label != "handlers" else getattr(node, label, []):
            if isinstance(part, ast.ExceptHandler):
                shape = f"{ast.dump(part.type) if part.type else ''} {part.name}"
                yield _Block(label="handler", body=part.body, line=part.lineno, own_line=True, shape=shape)
            elif part:
                yield _Block(label=label, body=part, line=node.lineno)


def _kind(node: ast.stmt, owner: _Scope | None, *, first: bool) -> StatementKind:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return "import"
    if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return "nothing"
    if isinstance(node, ast.AnnAssign) and node.value is None and isinstance(owner, _Function):
        return "nothing"
    return "acting"


def _for_types(node: ast.stmt) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`, which only ever guards imports for the type checker."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _start(node: ast.stmt) -> int:
    """First line of a statement, its decorators included."""
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])


def _extent(node: ast.stmt) -> tuple[int, int]:
    return _start(node), node.end_lineno or node.lineno


def _header_shape(node: ast.stmt) -> str:
    parts = [_dump(value) for name, value in ast.iter_fields(node) if name not in _BLOCK_FIELDS]
    return f"{type(node).__name__}({', '.join(parts)})"


def _signature(node: _Scope) -> str:
    skipped = {*_BLOCK_FIELDS, "name", "decorator_list", "type_comment"}
    return ", ".join(_dump(value) for name, value in ast.iter_fields(node) if name not in skipped)


def _defaults(node: _Scope) -> list[ast.expr]:
    if isinstance(node, ast.ClassDef):
        return []
    return [value for value in (*node.args.defaults, *node.args.kw_defaults) if value is not None]


def _dump(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_dump(each) for each in value) + "]"
    return ast.dump(value) if isinstance(value, ast.AST) else repr(value)
