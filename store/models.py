"""The rows of a case as frozen dataclasses: one class per idea, one word per idea.

Contract: `id` is None until the store has written the row. Times are UTC ISO-8601 strings whose field ends in `_utc`,
durations end in `_s`. Tuples and dicts are stored as JSON. The store returns these classes and takes them in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

# A patch that left the target is "gone": what was found of it stays on record, and it takes part in nothing more.
Role = Literal["stack", "candidate", "control", "gone"]
PatchKind = Literal["commit", "file", "flag"]
Verdict = Literal["does_not_apply", "needs", "cannot_be_tested", "dead", "culprit", "fix", "exonerated", "inconclusive"]
LivenessWord = Literal[
    "executed",
    "bound",
    "entered_compiled",
    "at_capture",
    "launched",
    "present",
    "absent",
    "not_seen",
    "not_seen_blind",
    "unknown",
]
HypothesisState = Literal["open", "supported", "refuted", "dead_end", "parked"]
QuestionState = Literal["open", "answered"]
AssumptionState = Literal["unverified", "verified", "broken"]
AttemptStatus = Literal["running", "ok", "good", "bad", "cannot_be_tested", "infrastructure", "cancelled"]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]

# The worst verdict is shown first: a patch is summarised by the first of these that any probe gave it.
VERDICTS_WORST_FIRST: tuple[Verdict, ...] = (
    "culprit",
    "does_not_apply",
    "needs",
    "cannot_be_tested",
    "inconclusive",
    "dead",
    "exonerated",
    "fix",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseInfo:
    slug: str
    symptom: str
    repo: str  # absolute path of the target repository's root
    target_toml: str  # the text of livepath.toml this case was opened with
    base: str  # commit
    head: str  # commit
    machine: dict[str, Any] = field(default_factory=dict)
    livepath_version: str = ""
    created_utc: str = ""
    closed_utc: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A patch under suspicion (stack), a fix to try (candidate) or a planted fault (control)."""

    name: str
    role: Role
    kind: PatchKind
    position: int  # order of application within its role, from 0
    commit: str | None  # a hint; the identity is patch_id
    patch_id: str  # `git patch-id --stable`; for a flag "flag:NAME=VALUE"
    subject: str
    diff: str
    source: str = ""  # path of the .patch file, relative to livepath.toml, or "NAME=off:on" of a flag
    tier: int | None = None  # 1 most likely
    reason: str = ""
    suspected: tuple[str, ...] = ()  # kinds of fault it could be, keys of the probes' `controls`
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    text: str
    how: str = ""  # "" = a person answers; else "grep PATTERN", "declares NAME", "loaded MODULE"
    state: QuestionState = "open"
    answer: str = ""
    evidence: tuple[dict[str, Any], ...] = ()
    created_utc: str = ""
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """`probe.metric on arm OP number`; metric may carry a filter on item tags: `recall[length>=1024]`."""

    probe: str
    metric: str
    arm: str
    operator: Literal["<", "<=", ">", ">=", "=="]
    number: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    text: str
    predicate: Predicate | None = None
    refuted_if: str = ""
    state: HypothesisState = "open"
    by: str = ""  # "lab" or a person's name
    reason: str = ""
    evidence: tuple[dict[str, Any], ...] = ()
    created_utc: str = ""
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    text: str
    about: str = ""  # "hypothesis:3", "reading:1", "run:7", or ""
    state: AssumptionState = "unverified"
    reason: str = ""
    created_utc: str = ""
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Lines of a file somebody looked at, at a commit; keyed to the blob and the text, so that it survives a rebase."""

    path: str
    start: int
    end: int
    rev: str  # commit
    blob: str
    text_sha256: str
    text: str
    qualname: str = ""
    host: str = ""
    note: str = ""
    created_utc: str = ""
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingLiveness:
    reading_id: int
    run_id: int
    word: LivenessWord
    count: int | None = None
    given: tuple[str, ...] = ()
    reason: str = ""
    siblings: tuple[dict[str, Any], ...] = ()  # {path, start, end, qualname}
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One probe on one assembled tree. Its attempts are the evidence; there is never "the" result."""

    key: str  # sha256 of everything that decides the outcome, see lab/cache.py
    probe: str
    arm: str  # base, full, base+C, full+fix-P, ...
    patches: tuple[str, ...]
    tree: str
    seed: int
    command: str  # what a person pastes to repeat it
    instrumentation: str  # "traced" or "plain"
    created_utc: str = ""
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    run_id: int
    number: int
    status: AttemptStatus
    folder: str  # artefacts, relative to the case folder
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    stderr_tail: str = ""
    unreadable_events: int = 0
    fully_traced: bool = False
    blind: tuple[str, ...] = ()  # blind spots of the recorder in this attempt, in words
    wall_s: float | None = None
    started_utc: str = ""
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    attempt_id: int
    item: str  # pairs across arms
    cluster: str  # the sampling unit
    score: float  # ok as 0 or 1, or a score
    tags: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    attempt_id: int
    name: str
    value: float
    n: int | None = None
    low: float | None = None
    high: float | None = None
    higher_is_better: bool | None = None
    tags: dict[str, Any] = field(default_factory=dict)  # layer, phase, branch, ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a target said of itself in an event (route, constant, ignored, identity, tensor). A claim, not proof."""

    attempt_id: int
    event: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedFile:
    """What the recorder saw of one file: proof. Lines and arcs are of the file in the run's tree."""

    attempt_id: int
    path: str  # relative to the worktree
    sha256: str  # of the file as loaded
    lines: tuple[int, ...]
    arcs: tuple[tuple[int, int], ...] = ()  # (from, to); -n marks entry to or exit from the code object at line n


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A paired comparison of two arms on one probe. Positive difference means the second arm (with) is higher."""

    probe: str
    metric: str
    background: str
    without_arm: str
    with_arm: str
    without_run: int
    with_run: int
    outcome: Literal["worse", "better", "equivalent", "undecided"]  # of the arm with, in the metric's sense of better
    n: int  # clusters (or values, for a deterministic probe)
    items: int
    difference: float
    low: float
    high: float
    p_value: float | None
    discordant: int
    margin: float
    alpha: float
    deterministic: bool = False
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchVerdict:
    """One per (patch, probe, background); a verdict that no probe gave (needs, dead) has probe ""."""

    patch: str
    probe: str
    background: str
    verdict: Verdict
    reason: str
    given: tuple[str, ...] = ()  # patches and machine facts that make it dead
    needs: tuple[str, ...] = ()
    verdict_with: tuple[str, ...] = ()
    control: str = ""  # the planted fault that proves the probe's sight
    comparison_id: int | None = None
    runs: tuple[int, ...] = ()
    created_utc: str = ""
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedLine:
    """One line a patch adds, or the gap where it deletes, with what a run proved about it."""

    patch: str
    run_id: int
    path: str
    line: int  # in the tree of the run; for a deletion the line after the gap
    text: str
    acting: bool
    word: LivenessWord
    count: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    claim: str
    verdict: Verdict | None
    patch_id: str  # "" for a finding that concerns no patch
    patch: str
    diff: str
    evidence: tuple[dict[str, Any], ...] = ()  # {kind: run|reading|comparison, id}
    key: str = ""  # findings the lab makes carry a key, so that a second run does not add them twice
    flagged: str = ""  # why something it rests on no longer holds
    withdrawn_utc: str | None = None
    withdrawn_reason: str = ""
    created_utc: str = ""
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisect:
    """A search of the stack for what makes a probe worse; its row grows while it runs."""

    probe: str
    background: str  # base, or base+fix: what every prefix of the stack is held against
    outcome: Literal["", "culprit", "not reproduced", "older than the stack", "inconclusive"] = ""  # "" while it runs
    text: str = ""
    culprits: tuple[str, ...] = ()
    # {arm, last, outcome, difference, n, comparison}: one per prefix that was tried, and the bracket
    steps: tuple[dict[str, Any], ...] = ()
    confidence: float | None = None  # of the weakest bracket
    created_utc: str = ""
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    kind: str  # run, ab, bisect, investigate
    argument: dict[str, Any]
    state: JobState = "queued"
    pid: int | None = None
    heartbeat_utc: str | None = None
    done: int = 0
    total: int = 0
    note: str = ""
    cancel_requested: bool = False
    message: str = ""  # one line: what came of it, or what went wrong and the next step
    created_utc: str = ""
    ended_utc: str | None = None
    id: int | None = None
