"""Statements, definitions and guards of a Python file: the lines each owns and what it is.

Contract: lines are 1-based, as a recorder reports them. A compound statement owns its header only; its body belongs to
the statements in it. Kinds of a statement:

    acting   conditions, defaults, decorators, constants, class attributes, everything inside a function
    header   `def` and `class` lines; `lab/changed.py` decides whether a changed one only binds
    import   binds names; so does `if TYPE_CHECKING:`
    nothing  docstrings, bare constants, `pass` beside others, annotations that leave no code

`else:`, `finally:`, comments and blank lines belong to no statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StatementKind = Literal["acting", "header", "import", "nothing"]

_COMPILING = frozenset({"jit", "njit", "script", "compile", "vectorize", "guvectorize"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One condition on the way to a line."""

    line: int
    text: str
    taken: bool  # whether the line lies where the condition holds; False for an `else` and after an early exit


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The lines a statement itself owns, and where it stands."""

    start: int
    end: int
    kind: StatementKind
    qualname: str  # of the innermost definition around it; a header counts as part of its own
    in_function: bool
    shape: str  # the statement without positions, to tell formatting from change
    place: tuple[str, ...]  # shapes of the headers around it, outermost first
    extent: tuple[int, int]  # with its body and decorators
    previous: tuple[int, int] | None  # extent of the sibling before it in its block
    next: tuple[int, int] | None  # the same after it; of an `except` or `case` the whole `try` or `match`
    guards: tuple[Guard, ...]
    leaves: bool  # return, raise, continue or break: nothing after it in its block can run
    silent: bool  # `global`, `nonlocal`, `case _`: they act, but no line event need show it

    @property
    def block(self) -> tuple[str, ...]:
        """Which block it stands in, whatever the headers around it say, to find the block again when they change."""
        return (self.qualname, *(header.partition("(")[0] for header in self.place))


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A function, method or class."""

    name: str
    qualname: str
    kind: Literal["function", "class"]
    start: int  # with its decorators
    end: int
    body: int  # first line of the body
    owner: str  # qualified name of the class it is a method of, or ""
    bases: tuple[str, ...]  # of the owner for a method, of itself for a class
    decorators: tuple[str, ...]
    signature: str  # shape of arguments and return, or of bases and keywords

    @property
    def compiled_by(self) -> str:
        """The decorator that compiles the body (Triton, TorchScript, Numba), whose lines then leave no event; or ""."""
        return next((each for each in self.decorators if each.split("(")[0].rpartition(".")[2] in _COMPILING), "")
