"""A file line by line, with what one run proved of each: the page a person reads.

Contract: the run is the newest measured one whose tree holds this very version of the file, the full stack's before
others; no sign is carried over from another version. A line without a statement has no word.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.case import Case
from lab.changed import decode
from lab.seen import Seen, SeenSource
from lab.words import Pages, range_word
from store.errors import UsageError
from store.models import Attempt, LivenessWord, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    path: str
    rev: str  # commit
    lines: tuple[str, ...]
    words: tuple[LivenessWord | None, ...]  # one per line
    run: Run | None
    fully_traced: bool
    note: str  # why there are no words, or ""


def listing(case: Case, path: str, rev: str | None = None, *, run_id: int | None = None) -> Listing:
    """The file at a commit (None: the case's head).

    Args:
        run_id: the run to prefer, if it had this version of the file.

    Raises:
        UsageError: there is no such file at that commit, or it is no text.
        RepoError: the commit is unknown.
    """
    commit = case.git.commit(rev or case.store.case().head)
    blob = case.git.blob(commit, path)
    raw = case.git.read(commit, path) if blob else None
    text = decode(raw) if raw is not None else None
    if text is None:
        what = "is no text" if raw is not None else "does not exist"
        raise UsageError(f"{path} {what} at {commit[:12]}", hint="name a file as `git ls-files` prints it")
    lines = tuple(text.removesuffix("\n").split("\n"))
    found = _run_with(case, path, blob or "", run_id)
    if found is None:
        note = "no run had this version of the file"
        return Listing(
            path=path, rev=commit, lines=lines, words=(None,) * len(lines), run=None, fully_traced=False, note=note
        )
    run, attempt = found
    executed = case.store.executed(attempt.id or 0)
    seen = Seen(files=executed, fully_traced=attempt.fully_traced, blind=attempt.blind, trace=case.target.trace)
    page, whole = Pages(case.git, run.tree, seen).page(path)
    words = _words(page, seen, path, len(lines)) if page else (None,) * len(lines)
    note = whole[1] if whole else ""
    return Listing(
        path=path, rev=commit, lines=lines, words=words, run=run, fully_traced=attempt.fully_traced, note=note
    )


def traced_files(case: Case) -> tuple[str, ...]:
    """The files of the traced folders at the case's head."""
    head = case.store.case().head
    return tuple(path for folder in case.target.trace for path in case.git.files(head, folder))


def _run_with(case: Case, path: str, blob: str, wanted: int | None) -> tuple[Run, Attempt] | None:
    def rank(run: Run) -> tuple[bool, bool, bool, int]:
        return (run.id == wanted, run.arm == "full", run.arm.startswith("full"), run.id or 0)

    runs = sorted(case.store.runs(), key=rank, reverse=True)
    for run in runs:
        attempt = case.store.last_good_attempt(run.id or 0)
        if attempt is not None and case.git.blob(run.tree, path) == blob:
            return run, attempt
    return None


def _words(page: SeenSource, seen: Seen, path: str, num_lines: int) -> tuple[LivenessWord | None, ...]:
    """One word per line. Lines of one function that did not run share theirs: looking for it once keeps this linear."""
    words: list[LivenessWord | None] = []
    unseen: dict[str, LivenessWord] = {}
    for line in range(1, num_lines + 1):
        owners = [owner for owner in page.source.owners(line) if owner.kind != "nothing"]
        if not owners:
            words.append(None)
        elif any(page.ran(owner) for owner in owners):
            acting = any(owner.kind == "acting" and page.ran(owner) for owner in owners)
            words.append("executed" if acting else "bound")
        else:
            name = owners[0].qualname
            if name not in unseen:
                unseen[name] = range_word(page, seen, path, line, line)[0]
            words.append(unseen[name])
    return tuple(words)
