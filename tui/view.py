"""What the screen shows of a case: frozen values built from the rows of the store.

Contract: `ViewBuilder.build` only reads; it may run in any thread and what it returns may cross threads. What cannot
change any more (the measurements of a finished attempt) is summed up once and kept, so that building again after every
change stays cheap. Summaries say what the rows say: a patch's verdict is the worst that any probe gave it, its
liveness that of one run, named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from store.models import (
    VERDICTS_WORST_FIRST,
    Assumption,
    Attempt,
    Bisect,
    CaseInfo,
    ChangedLine,
    Comparison,
    Finding,
    Hypothesis,
    Item,
    Job,
    LivenessWord,
    Metric,
    Patch,
    PatchVerdict,
    Question,
    Reading,
    ReadingLiveness,
    Run,
)

if TYPE_CHECKING:
    from store.store import Store

RAN: tuple[LivenessWord, ...] = ("executed", "entered_compiled", "at_capture", "launched", "present")
DEAD: tuple[LivenessWord, ...] = ("not_seen", "absent")
_MEASURED = ("ok", "good", "bad")
_NUM_EVENTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchLiveness:
    """The acting lines of a patch in one run: how many ran, and the word for all of them together."""

    run_id: int
    arm: str
    word: LivenessWord
    executed: int
    acting: int
    lines: tuple[ChangedLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectView:
    patch: Patch
    verdict: PatchVerdict | None  # the one it is summarised by
    verdicts: tuple[PatchVerdict, ...]
    liveness: PatchLiveness | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOut:
    """One row of the rule-out table: what one probe said of one patch on one background."""

    verdict: PatchVerdict
    comparison: Comparison | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingView:
    reading: Reading
    liveness: tuple[ReadingLiveness, ...]  # oldest run first

    @property
    def last(self) -> ReadingLiveness | None:
        return self.liveness[-1] if self.liveness else None


@dataclass(frozen=True, slots=True)
class Cell:
    """Recall (mean score) of one length and depth: `n` items, their `total` score."""

    length: str
    depth: str
    total: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the last measured attempt of a run says, summed up."""

    attempt_id: int
    cells: tuple[Cell, ...]
    metrics: tuple[Metric, ...]
    items: int
    mean: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    run: Run
    attempt: Attempt | None  # the newest
    measured: Measured | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    finding: Finding
    lines: tuple[ChangedLine, ...]
    run_id: int | None


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """Something that happened, for the list of last events."""

    when_utc: str
    kind: str
    text: str
    sign: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    info: CaseInfo
    suspects: tuple[SuspectView, ...]
    questions: tuple[Question, ...]
    hypotheses: tuple[Hypothesis, ...]
    assumptions: tuple[Assumption, ...]
    ruled: tuple[RuleOut, ...]
    readings: tuple[ReadingView, ...]
    runs: tuple[RunView, ...]
    jobs: tuple[Job, ...]
    findings: tuple[FindingView, ...]
    bisects: tuple[Bisect, ...]
    events: tuple[Event, ...]  # newest first

    @property
    def job(self) -> Job | None:
        """The job that runs or waits, else the last one."""
        for job in self.jobs:
            if job.state in ("running", "queued"):
                return job
        return self.jobs[-1] if self.jobs else None

    def suspect(self, name: str) -> SuspectView | None:
        return next((suspect for suspect in self.suspects if suspect.patch.name == name), None)

    def run(self, id: int) -> RunView | None:
        return next((view for view in self.runs if view.run.id == id), None)

    def reading(self, id: int) -> ReadingView | None:
        return next((view for view in self.readings if view.reading.id == id), None)


@dataclass(frozen=True, slots=True)
class SourceLine:
    text: str
    word: LivenessWord | None = None  # None: not a line that can act


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file at a commit, with what one run proved of its lines."""

    path: str
    rev: str
    lines: tuple[SourceLine, ...]
    run: str = ""  # which run, in words; "" when there is none
    note: str = ""  # why there are no signs, or what they leave out


def summary_of(verdicts: Sequence[PatchVerdict]) -> PatchVerdict | None:
    """The verdict a patch is shown by: the worst that any probe gave it; dead only where no probe says more."""
    spoken = [verdict for verdict in verdicts if verdict.verdict != "dead"] or verdicts
    return min(spoken, key=lambda verdict: VERDICTS_WORST_FIRST.index(verdict.verdict), default=None)


def patch_word(acting: Sequence[ChangedLine]) -> LivenessWord:
    """One word for all acting lines: ran if any ran, dead only if every one is, else what is not known."""
    words = {line.word for line in acting}
    for word in RAN:
        if word in words:
            return word
    if words and words <= set(DEAD):
        return "not_seen" if "not_seen" in words else "absent"
    for word in ("unknown", "not_seen_blind", "bound"):
        if word in words:
            return word
    return "bound" if not words else "unknown"


def sum_up(attempt_id: int, items: Sequence[Item], metrics: Sequence[Metric]) -> Measured:
    """Items by length and depth, in the order they first came."""
    totals: dict[tuple[str, str], tuple[float, int]] = {}
    for item in items:
        if "length" in item.tags and "depth" in item.tags:
            key = (str(item.tags["length"]), str(item.tags["depth"]))
            total, n = totals.get(key, (0.0, 0))
            totals[key] = (total + item.score, n + 1)
    return Measured(
        attempt_id=attempt_id,
        cells=tuple(Cell(length, depth, total, n) for (length, depth), (total, n) in totals.items()),
        metrics=tuple(metrics),
        items=len(items),
        mean=sum(item.score for item in items) / len(items) if items else None,
    )


@dataclass
class ViewBuilder:
    """Builds the view of one open store, again and again."""

    store: Store
    _measured: dict[int, Measured] = field(default_factory=dict)

    def build(self) -> CaseView:
        """Reads the case. It takes no lock: a change that falls between two reads is seen by the next build."""
        store = self.store
        runs = tuple(self._run(run) for run in store.runs())
        arms = {view.run.id: view.run.arm for view in runs}
        verdicts = store.verdicts()
        comparisons = {comparison.id: comparison for comparison in store.comparisons()}
        patches = [*store.patches(role="stack"), *store.patches(role="candidate")]
        suspects = tuple(self._suspect(patch, verdicts, arms) for patch in patches)
        liveness = {suspect.patch.name: suspect.liveness for suspect in suspects}
        findings = []
        for finding in store.findings():
            known = liveness.get(finding.patch)
            lines, run_id = (known.lines, known.run_id) if known else ((), None)
            findings.append(FindingView(finding=finding, lines=lines, run_id=run_id))
        readings = tuple(
            ReadingView(reading=reading, liveness=tuple(store.reading_liveness(reading.id or 0)))
            for reading in store.readings()
        )
        jobs = tuple(store.jobs())
        return CaseView(
            info=store.case(),
            suspects=suspects,
            questions=tuple(store.questions()),
            hypotheses=tuple(store.hypotheses()),
            assumptions=tuple(store.assumptions()),
            ruled=tuple(
                RuleOut(verdict=verdict, comparison=comparisons.get(verdict.comparison_id)) for verdict in verdicts
            ),
            readings=readings,
            runs=runs,
            jobs=jobs,
            findings=tuple(findings),
            bisects=tuple(store.bisects()),
            events=_events(runs, verdicts, findings, jobs),
        )

    def _run(self, run: Run) -> RunView:
        attempts = self.store.attempts(run.id or 0)
        last = next((attempt for attempt in reversed(attempts) if attempt.status in _MEASURED), None)
        measured = None
        if last is not None and last.id is not None:
            measured = self._measured.get(last.id)
            if measured is None:
                measured = sum_up(last.id, self.store.items(last.id), self.store.metrics(last.id))
                self._measured[last.id] = measured
        return RunView(run=run, attempt=attempts[-1] if attempts else None, measured=measured)

    def _suspect(self, patch: Patch, verdicts: list[PatchVerdict], arms: dict[int | None, str]) -> SuspectView:
        own = tuple(verdict for verdict in verdicts if verdict.patch == patch.name)
        by_run: dict[int, list[ChangedLine]] = {}
        for line in self.store.changed_lines(patch.name):
            by_run.setdefault(line.run_id, []).append(line)
        summary = summary_of(own)
        liveness = None
        if by_run:
            run_id = _telling_run(by_run, summary)
            lines = tuple(by_run[run_id])
            acting = [line for line in lines if line.acting]
            liveness = PatchLiveness(
                run_id=run_id,
                arm=arms.get(run_id, ""),
                word=patch_word(acting),
                executed=sum(line.word in RAN for line in acting),
                acting=len(acting),
                lines=lines,
            )
        return SuspectView(patch=patch, verdict=summary, verdicts=own, liveness=liveness)


def _telling_run(by_run: dict[int, list[ChangedLine]], summary: PatchVerdict | None) -> int:
    """The run whose liveness is shown: the one the verdict rests on, and for a dead patch one in which it was dead."""
    cited = [run for run in (summary.runs if summary else ()) if run in by_run]
    if summary is not None and summary.verdict == "dead":
        dead = [
            run
            for run in (*by_run, *cited)
            if patch_word([line for line in by_run[run] if line.acting]) in ("not_seen", "absent", "bound")
        ]
        cited = dead or cited
    return cited[-1] if cited else max(by_run)


def _events(
    runs: Sequence[RunView], verdicts: Sequence[PatchVerdict], findings: Sequence[FindingView], jobs: Sequence[Job]
) -> tuple[Event, ...]:
    events = []
    for view in runs:
        if view.attempt is not None:
            started = view.attempt.started_utc or view.run.created_utc
            text = f"run {view.run.id} {view.run.probe} on {view.run.arm}"
            events.append(Event(started, "run", text, view.attempt.status))
    for verdict in verdicts:
        where = ", ".join(part for part in (verdict.probe, verdict.background) if part)
        text = f"{verdict.patch}: {verdict.verdict.replace('_', ' ')}" + (f" ({where})" if where else "")
        events.append(Event(verdict.created_utc, "verdict", text))
    for finding in findings:
        events.append(Event(finding.finding.created_utc, "finding", finding.finding.claim))
        if finding.finding.withdrawn_utc:
            text = f"{finding.finding.claim} ({finding.finding.withdrawn_reason})"
            events.append(Event(finding.finding.withdrawn_utc, "withdrawn", text))
    for job in jobs:
        events.append(Event(job.created_utc, "job", f"{job.kind} {job.id} asked for"))
        if job.ended_utc:
            text = f"{job.kind} {job.id} {job.state}" + (f": {job.message}" if job.message else "")
            events.append(Event(job.ended_utc, "job", text))
    return tuple(sorted(events, reverse=True)[:_NUM_EVENTS])
