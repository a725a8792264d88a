"""The liveness words of lines: which word a run earns a range of lines, and how far control came where it earns none.

Contract: only `not_seen` (fully traced) may be called dead. Where the recorder may have missed a line the word is
`not_seen_blind` and the reason names the blind spot; data, native code and files that differ from the run's tree are
`unknown`. A word comes with its reason, as a pair.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.changed import decode
from lab.git import Git
from lab.seen import Seen, SeenSource
from lab.source import source_of
from lab.statements import Statement
from store.models import LivenessWord

RAN: tuple[LivenessWord, ...] = ("executed", "entered_compiled", "at_capture", "launched", "present")
DEAD: tuple[LivenessWord, ...] = ("not_seen", "absent")
Word = tuple[LivenessWord, str]


class Pages:
    """The files of a run's tree beside what was seen of them, each read once."""

    def __init__(self, git: Git, tree: str, seen: Seen) -> None:
        self.seen = seen
        self._git = git
        self._tree = tree
        self._pages: dict[str, tuple[SeenSource | None, Word | None]] = {}

    def page(self, path: str) -> tuple[SeenSource | None, Word | None]:
        """The file with its record, or the word that holds for every line of it."""
        if path not in self._pages:
            self._pages[path] = self._load(path)
        return self._pages[path]

    def _load(self, path: str) -> tuple[SeenSource | None, Word | None]:
        raw = self._git.read(self._tree, path)
        if raw is None:
            return None, ("unknown", f"the run's tree has no {path}")
        if self.seen.other_file(path, raw):
            return None, ("unknown", f"the {path} that was loaded is not the one in the run's tree")
        source = source_of(path, decode(raw))
        if source is None:
            return None, ("unknown", "no Python source: no recorder tells whether and how it is used")
        return self.seen.on(path, source), None


def not_seen(seen: Seen, path: str, reason: str) -> Word:
    """The word for what did not run: dead for `reason`, unless the recorder may have missed it."""
    blind = seen.blind_spot(path)
    return ("not_seen_blind", blind) if blind else ("not_seen", reason)


def range_word(page: SeenSource, seen: Seen, path: str, start: int, end: int) -> Word:
    """The word of a range of lines.

    Lines inside functions decide where there are any: that a `def`, its defaults and the constants around it ran at
    import says nothing of the code in it.
    """
    owned: dict[int, Statement] = {}
    for line in range(start, end + 1):
        owned.update({id(each): each for each in page.source.owners(line) if each.kind != "nothing"})
    if not owned:
        return "unknown", "comments, docstrings or blank lines: nothing here can run"
    acting = [each for each in owned.values() if each.kind == "acting"]
    called = [each for each in acting if each.in_function]
    deciding = called or acting
    ran = [each for each in deciding if page.ran(each)]
    if ran:
        return "executed", f"{len(ran)} of {len(deciding)} statements ran" if len(deciding) > 1 else "it ran"
    if not deciding and any(page.ran(each) for each in owned.values()):
        return "bound", "the name was bound, which is not acting"
    if compiled := _compiled(page, deciding):
        return "not_seen_blind", compiled
    first = min(deciding or owned.values(), key=lambda each: each.start)
    return not_seen(seen, path, where_it_stopped(page, first.start, first.qualname))


def _compiled(page: SeenSource, statements: Sequence[Statement]) -> str:
    """The blind spot of a compiled function in a loaded file: its lines leave no event."""
    for statement in statements if page.loaded else ():
        definition = page.source.named(statement.qualname)
        if definition is not None and definition.compiled_by and statement.in_function:
            return (
                f"`{statement.qualname}` is compiled by @{definition.compiled_by}: the recorder does not see its lines"
            )
    return ""


def where_it_stopped(page: SeenSource, line: int, qualname: str) -> str:
    """How far control came on the way to a line that did not run."""
    if not page.loaded:
        return "the file was never loaded"
    definition = page.source.named(qualname) if qualname else None
    if definition is not None and definition.kind == "function" and not page.entered(qualname):
        return f"`{qualname}` was never entered"
    reached = [guard for guard in page.source.guards(line) if page.span_ran((guard.line, guard.line))]
    if reached:
        return f"line {reached[-1].line} `{reached[-1].text}` went the other way"
    return "control did not come here"
