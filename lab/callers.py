"""Where code that did not run would have been reached from, and the guard that went the other way.

Contract: a walk up from dead lines over names in the syntax of the traced files, to the first functions that a run
did enter. There a condition was evaluated and control went elsewhere: those are the stops. Names are matched as words,
types are not followed; for a method the walk looks for its class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from lab.changed import decode
from lab.git import Git
from lab.seen import Seen, SeenSource
from lab.source import Source, source_of

_MAX_STEPS = 60
_MAX_DEPTH = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A condition that was evaluated in a run, after which control did not come to the code in question."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.text}"


def find_stops(git: Git, tree: str, seen: Seen, path: str, line: int) -> tuple[Stop, ...]:
    """The nearest conditions that kept control from a line, all of the same distance from it."""
    walk = _Walk(git, tree, seen)
    stop, names = walk.look(path, line)
    if stop is not None:
        return (stop,)
    known: set[str] = set()
    for _ in range(_MAX_DEPTH):
        stops: list[Stop] = []
        upper: set[str] = set()
        known |= names
        for site_path, site_line in walk.sites(names):
            stop, more = walk.look(site_path, site_line)
            if stop is not None:
                stops.append(stop)
            upper |= more - known
        if stops or not upper:
            return tuple(dict.fromkeys(stops))
        names = upper
    return ()


class _Walk:
    def __init__(self, git: Git, tree: str, seen: Seen) -> None:
        self._git = git
        self._tree = tree
        self._seen = seen
        self._pages: dict[str, SeenSource | None] = {}
        self._steps = 0

    def look(self, path: str, line: int) -> tuple[Stop | None, set[str]]:
        """The condition that stopped control inside the function of a line, or the names to look for further up."""
        page = self._page(path)
        if page is None:
            return None, set()
        source = page.source
        owners = source.owners(line)
        if not page.loaded:
            names = {PurePosixPath(path).stem}
            return None, names | _names_of(source, line)
        definition = source.around(line)
        if definition is not None and definition.kind == "function" and not page.entered(definition.qualname):
            return None, _names_of(source, line)
        if any(page.ran(owner) for owner in owners):
            return None, set()
        reached = [guard for guard in source.guards(line) if page.span_ran((guard.line, guard.line))]
        if not reached:
            return None, set()
        return Stop(path=path, line=reached[-1].line, text=reached[-1].text), set()

    def sites(self, names: set[str]) -> Iterator[tuple[str, int]]:
        """The lines of traced files that use one of the names."""
        for path in self._files(names):
            page = self._page(path)
            if page is None:
                continue
            for node in ast.walk(page.source.tree):
                if _used(node) & names and self._steps < _MAX_STEPS:
                    self._steps += 1
                    yield path, getattr(node, "lineno", 1)

    def _files(self, names: set[str]) -> list[str]:
        words = [word for name in sorted(names) for word in ("-e", name)]
        folders = [folder for folder in self._seen.trace if folder not in ("", ".")]
        listed = self._git.call("grep", "-F", "-w", "-l", "-z", "--no-color", *words, self._tree, "--", *folders).text
        paths = [name.partition(":")[2] for name in listed.split("\0") if name]
        return [path for path in paths if path.endswith(".py")]

    def _page(self, path: str) -> SeenSource | None:
        if path not in self._pages:
            raw = self._git.read(self._tree, path)
            source = source_of(path, decode(raw)) if raw is not None else None
            self._pages[path] = self._seen.on(path, source) if source else None
        return self._pages[path]


def _names_of(source: Source, line: int) -> set[str]:
    """What the code around a line is called from elsewhere: its function, or the class of its method."""
    definition = source.around(line)
    if definition is None:
        return set()
    return {definition.owner.rpartition(".")[2] or definition.name}


def _used(node: ast.AST) -> set[str]:
    """The names a node uses; a string may name a module or function for `import_module` or `getattr`."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.ImportFrom):
        return {*(node.module or "").split("."), *(alias.name for alias in node.names)}
    if isinstance(node, ast.Import):
        return {part for alias in node.names for part in alias.name.split(".")}
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
        return set(node.value.split("."))
    return set()
