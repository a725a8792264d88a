"""One parsed Python file: what each of its lines is, what it belongs to, and which conditions guard it.

Contract: a view of the text alone; nothing is imported or run. What this Python cannot parse, and every file that is no
Python, has no view (None), and whoever asks says `unknown`.
"""

from __future__ import annotations

import ast
import difflib
import io
import tokenize
import warnings
from functools import lru_cache

from lab.blocks import Walk
from lab.statements import Definition, Guard, Statement, StatementKind
from store.errors import UsageError

_LAYOUT = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)
_PYTHON = (".py", ".pyi", ".pyw")


class Source:
    """A Python file by line.

    Args:
        text: the file.

    Raises:
        SyntaxError: this Python cannot parse it.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.tree = _tree(text)
        walk = Walk(self.tree, self.lines)
        self.statements: tuple[Statement, ...] = tuple(sorted(walk.statements, key=lambda s: (s.start, s.end)))
        self.definitions: tuple[Definition, ...] = tuple(walk.definitions)
        code = _code_lines(text)
        self._owners: dict[int, list[Statement]] = {}
        for statement in self.statements:
            for line in range(statement.start, statement.end + 1):
                if line in code:
                    self._owners.setdefault(line, []).append(statement)

    def owners(self, line: int) -> tuple[Statement, ...]:
        """The statements that own a line: none for a comment, two for `a = 1; b = 2`."""
        return tuple(self._owners.get(line, ()))

    def kind(self, line: int) -> StatementKind:
        """The strongest kind among the owners of a line."""
        kinds = {statement.kind for statement in self.owners(line)}
        order: tuple[StatementKind, ...] = ("acting", "header", "import")
        return next((kind for kind in order if kind in kinds), "nothing")

    @classmethod
    def parse(cls, text: str) -> Source:
        """The view of a text that must be Python; `parse` below gives None instead of an error.

        Raises:
            SyntaxError: this Python cannot parse it.
        """
        return cls(text)

    def definition(self, qualname: str) -> Definition:
        """The definition of that qualified name.

        Raises:
            UsageError: the file defines no such thing; the hint names the nearest.
        """
        found = self.named(qualname)
        if found is None:
            near = difflib.get_close_matches(qualname, [each.qualname for each in self.definitions], n=3, cutoff=0.4)
            raise UsageError(
                f"the file defines no `{qualname}`", hint=f"nearest: {', '.join(near)}" if near else "name a function"
            )
        return found

    def around(self, line: int) -> Definition | None:
        """The innermost definition around a line; its header belongs to it."""
        around = [each for each in self.definitions if each.start <= line <= each.end]
        return max(around, key=lambda each: (each.start, -each.end), default=None)

    def named(self, qualname: str) -> Definition | None:
        """The definition of that qualified name; of several the last, which is the one that counts."""
        return next((each for each in reversed(self.definitions) if each.qualname == qualname), None)

    def qualname(self, line: int) -> str:
        """The qualified name of the innermost definition around a line, or ""."""
        found = self.around(line)
        return found.qualname if found else ""

    def guards(self, line: int) -> tuple[Guard, ...]:
        """The conditions on the way to a line inside its own function, in order, early exits before it included."""
        owners = self.owners(line)
        return owners[0].guards if owners else ()

    def imports(self, line: int | None = None) -> dict[str, tuple[str, int, str]]:
        """What imports bind, in the file or by the statement on a line: name to (module, level, origin)."""
        found: dict[str, tuple[str, int, str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and line in (None, node.lineno):
                module, level = (node.module or "", node.level) if isinstance(node, ast.ImportFrom) else ("", 0)
                for alias in node.names:
                    name = alias.asname or (alias.name if module or level else alias.name.partition(".")[0])
                    found[name] = (module, level, alias.name if alias.asname or module or level else name)
        return found

    def names(self) -> set[str]:
        """Every name that is bound anywhere in the file."""
        stored = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return stored | {each.name for each in self.definitions} | set(self.imports())

    def same_program(self, other: Source) -> bool:
        """Whether the two differ in comments, docstrings and formatting at most."""
        mine, theirs = (
            [(s.shape, s.place) for s in source.statements if s.kind != "nothing"] for source in (self, other)
        )
        return mine == theirs


@lru_cache(maxsize=512)
def parse(text: str) -> Source | None:
    """The view of a Python text, or None where this Python cannot parse it."""
    try:
        return Source(text)
    except SyntaxError:
        return None


def source_of(path: str, text: str | None) -> Source | None:
    """The view of a file, or None for what is no Python source."""
    return parse(text) if text is not None and path.endswith(_PYTHON) else None


def _tree(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in somebody's file is no business of ours
            return ast.parse(text)
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes, nesting beyond reason
        raise SyntaxError(str(error)) from error


def _code_lines(text: str) -> frozenset[int]:
    """Lines with a token that is neither comment nor layout."""
    found: set[int] = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in _LAYOUT:
                found.update(range(token.start[0], token.end[0] + 1))
    except (tokenize.TokenError, SyntaxError):  # the tokenizer is stricter than the parser in rare files
        return frozenset(range(1, text.count("\n") + 2))
    return frozenset(found)
