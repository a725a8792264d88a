"""What a run proved about a patch, a reading or any range of lines.

Contract: a patch is dead in a run if none of its acting lines ran and the run leaves nothing unknown about them. Counts
are None: the line recorder knows that a line ran, never how often. The words are those of `lab/words.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lab.case import Case
from lab.changed import Change
from lab.git import Git
from lab.given import patches_given
from lab.readings import freshness, make_reading
from lab.seen import Seen, SeenFile, SeenSource
from lab.siblings import siblings
from lab.unapply import patch_changes
from lab.words import DEAD, RAN, Pages, Word, not_seen, range_word, where_it_stopped
from store.models import Attempt, ChangedLine, LivenessWord, Patch, Reading, ReadingLiveness, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchLiveness:
    """What one run proved about a patch that was applied in it."""

    patch: str
    run_id: int
    lines: tuple[ChangedLine, ...]
    acting_executed: int
    acting_total: int
    unknown: int  # acting lines a run cannot speak about: data, native code, blind spots
    dead: bool
    why: str
    seen: Seen = field(repr=False)

    @property
    def word(self) -> LivenessWord:
        """One word for the whole patch."""
        if self.acting_executed:
            return "executed"
        if self.dead:
            return "not_seen" if self.acting_total else "bound"
        return "unknown"


def patch_liveness(
    git: Git,
    patch: Patch,
    *,
    tree: str,
    executed: Mapping[str, SeenFile],
    attempt: Attempt,
    run_id: int,
    trace: Sequence[str],
    without: Seen | None = None,
) -> PatchLiveness:
    """What an attempt proved about the lines of a patch.

    Args:
        tree: the tree that ran; the patch is part of it.
        executed: what the recorder saw, by path.
        trace: the folders the recorder watched.
        without: the record of a run without the patch, which alone can speak of definitions the patch removes.
    """
    seen = Seen(files=executed, fully_traced=attempt.fully_traced, blind=attempt.blind, trace=trace)
    pages = Pages(git, tree, seen)
    lines = []
    for change in patch_changes(git, patch, tree=tree, trace=trace):
        word, reason = _change_word(change, pages, without)
        lines.append(
            ChangedLine(
                patch=patch.name,
                run_id=run_id,
                path=change.path,
                line=change.line,
                text=change.text,
                acting=change.role != "bound",
                word=word,
                reason=reason,
            )
        )
    return _sum_up(patch.name, run_id, tuple(lines), seen)


def _sum_up(patch: str, run_id: int, lines: tuple[ChangedLine, ...], seen: Seen) -> PatchLiveness:
    acting = [line for line in lines if line.acting]
    ran = [line for line in acting if line.word in RAN]
    unknown = [line for line in acting if line.word not in RAN and line.word not in DEAD]
    if ran:
        why = f"{len(ran)} of {len(acting)} acting lines ran, {ran[0].path}:{ran[0].line} first"
    elif unknown:
        why = f"no acting line was seen to run, but of {unknown[0].path or 'it'} nothing is proved: {unknown[0].reason}"
    elif acting:
        why = f"none of its {len(acting)} acting lines ran: {acting[0].path}:{acting[0].line}, {acting[0].reason}"
    else:
        why = "it has no acting line: " + ("it only binds names" if lines else "comments, formatting or dropped names")
    return PatchLiveness(
        patch=patch,
        run_id=run_id,
        lines=lines,
        acting_executed=len(ran),
        acting_total=len(acting),
        unknown=len(unknown),
        dead=not ran and not unknown,
        why=why,
        seen=seen,
    )


def _change_word(change: Change, pages: Pages, without: Seen | None) -> Word:
    if change.role == "unknown":
        return "unknown", change.reason
    if change.place == "superseded":
        return "not_seen", change.reason
    if change.place == "removed":
        return _removed_word(change, without)
    page, whole = pages.page(change.path)
    if page is None:
        assert whole is not None
        return whole
    if change.place == "gap":
        return _gap_word(change, page, pages.seen)
    span = change.before if change.place == "rewritten" and change.before else (change.line, change.line)
    word, reason = range_word(page, pages.seen, change.path, *span)
    return word, f"{change.reason}; {reason}" if change.reason else reason


def _removed_word(change: Change, without: Seen | None) -> Word:
    if without is None:
        return "unknown", "removed as a whole: only a run without the patch could tell whether it would have run"
    start, end = change.after or (change.line, change.line)
    found = without.files.get(change.path)
    if found and any(start < line <= end for line in found.lines):  # its first line may only have been bound
        return "executed", "it ran in the run without the patch"
    return not_seen(without, change.path, "it did not run without the patch either")


def _gap_word(change: Change, page: SeenSource, seen: Seen) -> Word:
    """A gap was passed if what follows it ran; where its block ends there, if control left what precedes it."""
    if change.after is not None:
        passed = page.span_ran(change.after)
    elif change.before is not None:
        passed = page.left(change.before)
    elif change.qualname and (definition := page.source.named(change.qualname)):
        passed = page.entered(change.qualname) if definition.kind == "function" else page.loaded
    else:
        passed = page.loaded
    if passed:
        return "executed", "control passed where the patch removed it"
    return not_seen(seen, change.path, where_it_stopped(page, change.line, change.qualname))


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeLiveness:
    """What one run proved about a range, at its place in the tree of that run."""

    run: int
    probe: str
    arm: str
    patches: tuple[str, ...]
    path: str
    start: int
    end: int
    word: LivenessWord
    reason: str
    count: int | None = None
    given: tuple[str, ...] = ()
    siblings: tuple[dict[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The row as the command line prints it."""
        return asdict(self)


def liveness_of(case: Case, path: str, start: int | None = None, end: int | None = None) -> list[RangeLiveness]:
    """What every run on record proved about lines of the case's head, newest run last.

    Raises:
        UsageError: there is no such file or line.
    """
    spec = path if start is None else f"{path}:{start}-{end or start}"
    return _all_runs(case, make_reading(case.git, spec, rev=case.store.case().head))


def reading_liveness(case: Case, reading: Reading, run: Run, attempt: Attempt) -> ReadingLiveness:
    """What an attempt proved about a reading; where it is dead, what ran in its stead and what made it so."""
    found = _range(case, reading, run, attempt)
    if found.word in DEAD:
        others = [row for row in _all_runs(case, reading) if row.run != found.run]
        found = _with_given([*others, found])[-1]
    return ReadingLiveness(
        reading_id=reading.id or 0,
        run_id=found.run,
        word=found.word,
        count=found.count,
        given=found.given,
        reason=found.reason,
        siblings=found.siblings,
    )


def _all_runs(case: Case, reading: Reading) -> list[RangeLiveness]:
    rows = []
    for run in case.store.runs():
        attempt = case.store.last_good_attempt(run.id or 0)
        if attempt is not None:
            rows.append(_range(case, reading, run, attempt))
    return _with_given(rows)


def _with_given(rows: list[RangeLiveness]) -> list[RangeLiveness]:
    """Name the patches that make dead rows dead: those of no run in which the lines ran.

    Only where the row's own probe reached the lines in some run; then the runs of other probes narrow the answer too.
    """
    live = [each for each in rows if each.word in RAN]
    done = []
    for row in rows:
        reached = any(each.probe == row.probe for each in live)
        sets = [frozenset(each.patches) for each in live] if reached else []
        given = patches_given(frozenset(row.patches), sets) if row.word in DEAD else ()
        done.append(replace(row, given=tuple(name for name in row.patches if name in given)))
    return done


def _range(case: Case, reading: Reading, run: Run, attempt: Attempt) -> RangeLiveness:
    place = freshness(case.git, reading, run.tree)
    executed = case.store.executed(attempt.id or 0)
    seen = Seen(files=executed, fully_traced=attempt.fully_traced, blind=attempt.blind, trace=case.target.trace)
    alike: tuple[dict[str, Any], ...] = ()
    word: LivenessWord = "unknown"
    reason = f"not in the tree of this run: {place.reason}"
    if place.state != "gone":
        page, whole = Pages(case.git, run.tree, seen).page(place.path)
        if page is not None:
            word, reason = range_word(page, seen, place.path, place.start, place.end)
            if word not in RAN:
                alike = siblings(case.git, run.tree, seen, place.path, page.source, place.start)
        elif whole is not None:
            word, reason = whole
        if place.state == "changed":
            reason = f"{reason}; the text is not what was read: {place.reason}"
    return RangeLiveness(
        run=run.id or 0,
        probe=run.probe,
        arm=run.arm,
        patches=run.patches,
        path=place.path,
        start=place.start,
        end=place.end,
        word=word,
        reason=reason,
        siblings=alike,
    )
