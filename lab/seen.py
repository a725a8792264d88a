"""What a recorder saw of one run: did this statement run, was this function entered, did control leave this block.

Contract: answers come from recorded lines and arcs alone. A statement ran if any line it owns did; arcs tell a one-line
`def f(): return 1` that was called from one that was only bound.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lab.changed import Span, is_traced
from lab.source import Source
from lab.statements import Statement


class SeenFile(Protocol):
    """One file of a record; `store.models.ExecutedFile` is one."""

    @property
    def sha256(self) -> str: ...
    @property
    def lines(self) -> Collection[int]: ...
    @property
    def arcs(self) -> Collection[tuple[int, int]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The whole record of one attempt."""

    files: Mapping[str, SeenFile]
    fully_traced: bool
    blind: Sequence[str] = ()
    trace: Sequence[str] = field(default=(".",))

    def blind_spot(self, path: str) -> str:
        """Why a line of this file may have run unseen, or "" where it cannot have."""
        if not is_traced(path, self.trace):
            return f"{path} lies outside the traced folders ({', '.join(self.trace)})"
        if not self.fully_traced:
            return "; ".join(self.blind) or "the run was not fully traced"
        return ""

    def other_file(self, path: str, raw: bytes | None) -> bool:
        """Whether what was loaded under this path is not the file of the run's tree."""
        seen = self.files.get(path)
        return bool(seen and seen.sha256 and raw is not None and seen.sha256 != hashlib.sha256(raw).hexdigest())

    def on(self, path: str, source: Source) -> SeenSource:
        found = self.files.get(path)
        return SeenSource(source, frozenset(found.lines) if found else None, frozenset(found.arcs) if found else None)


class SeenSource:
    """One file of the run's tree beside what was seen of it. `lines` is None where the file was never loaded."""

    def __init__(
        self, source: Source, lines: frozenset[int] | None, arcs: frozenset[tuple[int, int]] | None = None
    ) -> None:
        self.source = source
        self.loaded = lines is not None
        self._lines = lines or frozenset()
        self._arcs = arcs or frozenset()

    def span_ran(self, span: Span) -> bool:
        return any(line in self._lines for line in range(span[0], span[1] + 1))

    def ran(self, statement: Statement) -> bool:
        """Whether a statement ran."""
        if statement.silent and not self.span_ran((statement.start, statement.end)):
            return self.entered(statement.qualname) if statement.qualname else self.loaded
        if not self.span_ran((statement.start, statement.end)):
            return False
        return not self._shares_header(statement) or self._called(statement.qualname)

    def entered(self, qualname: str) -> bool:
        """Whether a function was called: its body ran, or an arc leads into it."""
        if self._called(qualname, unsure=False):
            return True
        return any(
            statement.in_function and statement.kind != "header" and self.span_ran((statement.start, statement.end))
            for statement in self.source.statements
            if statement.qualname == qualname and not self._shares_header(statement) and self._in_body(statement)
        )

    def left(self, span: Span) -> bool:
        """Whether control left these lines for what follows: an arc out of them, or lines without any arcs."""
        if not self.span_ran(span):
            return False
        inside = range(span[0], span[1] + 1)
        return not self._arcs or any(start in inside and end not in inside for start, end in self._arcs)

    def _in_body(self, statement: Statement) -> bool:
        definition = self.source.named(statement.qualname)
        return definition is not None and definition.kind == "function" and statement.start >= definition.body

    def _shares_header(self, statement: Statement) -> bool:
        """Whether a statement stands on the `def` line of its own function."""
        definition = self.source.named(statement.qualname)
        if definition is None or definition.kind != "function" or statement.kind == "header":
            return False
        headers = [owner for owner in self.source.owners(statement.start) if owner.kind == "header"]
        return statement.start >= definition.body and any(h.qualname == statement.qualname for h in headers)

    def _called(self, qualname: str, *, unsure: bool = True) -> bool:
        """Whether an arc enters the function; `unsure` is the answer where arcs cannot tell."""
        definition = self.source.named(qualname)
        if definition is None or not self._arcs or definition.start == 1:
            return unsure
        return any(start == -definition.start and end > 0 for start, end in self._arcs)
