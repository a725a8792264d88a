"""`livepath judge`: what one probe says of the checked-out commit, for plain `git bisect run`.

Contract: exit code 0 good, 1 bad, 125 cannot be tested or void (the lines that were named did not run, so the commit
says nothing about them), 128 usage or infrastructure: never 1 for a failure of ours, which git would take for "bad".
The commit runs in a worktree of its own; results are kept in a case of their own beside the target's cases, so that
the same tree is not run twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lab.arms import Arm
from lab.assemble import Assembled
from lab.bench import Bench, Outcome
from lab.case import JUDGE, Case, find_toml, home_of
from lab.git import Git
from lab.judge import judge
from lab.live import reading_liveness
from lab.machine import machine_facts
from lab.metric import Measurement, measure
from lab.readings import make_reading, parse_spec
from lab.target import Probe, Target
from lab.version import livepath_version
from lab.words import RAN
from store.errors import StoreError, UsageError
from store.models import CaseInfo, Reading
from store.store import Store

GOOD, BAD, SKIP, ABORT = 0, 1, 125, 128
MORE_SEEDS = 2  # beyond those of livepath.toml, while the interval straddles `good`

State = Literal["good", "bad", "void", "cannot be tested", "undecided"]
_CODES: dict[State, int] = {"good": GOOD, "bad": BAD, "void": SKIP, "cannot be tested": SKIP, "undecided": SKIP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """What came of a commit."""

    commit: str
    probe: str
    state: State
    reason: str
    runs: tuple[int, ...]
    dirty: tuple[str, ...] = ()  # files whose uncommitted changes took no part

    @property
    def exit_code(self) -> int:
        return _CODES[self.state]

    def as_data(self) -> dict[str, Any]:
        """The sentence as the command line prints it."""
        return {**asdict(self), "exit_code": self.exit_code}


@dataclass(frozen=True, slots=True)
class CommitArm(Arm):
    """A commit as it is, under its own name."""

    commit: str = ""

    @property
    def name(self) -> str:
        return self.commit[:12]


class CommitBench(Bench):
    """A bench whose only arm is one commit."""

    def __init__(self, case: Case, commit: str) -> None:
        super().__init__(case, job_id=None, workers=1)
        self.arm = CommitArm("base", commit=commit)

    def assemble(self, arm: Arm) -> Assembled:
        return Assembled(tree=self.case.git.tree(self.arm.commit), env={}, names=())

    def _paste(self, probe: Probe, arm: Arm) -> str:
        return f"git checkout {arm.name} && livepath judge {probe.name}"


def judge_checkout(start: Path, probe_name: str, live: str = "", say: Callable[[str], None] = print) -> Sentence:
    """Judge HEAD of the target in or above `start`.

    Args:
        live: `PATH[:A-B][@REV]`, lines that must have run for the judgement to count.
        say: is told what is about to run.

    Raises:
        LivepathError: usage or infrastructure.
    """
    target = Target.load(find_toml(start))
    probe = target.probe(probe_name)
    git = Git(target.repo)
    commit = git.commit("HEAD")
    reading = _lines(git, live, commit) if live else None

    def sentence(state: State, reason: str, *outcomes: Outcome) -> Sentence:
        runs = tuple(outcome.run_id for outcome in outcomes)
        return Sentence(commit=commit, probe=probe.name, state=state, reason=reason, runs=runs, dirty=git.dirty())

    if live and reading is None:
        return sentence("void", f"{live} is not there at this commit")
    outcomes: list[Outcome] = []
    measurements: list[Measurement] = []
    with _case(target, git, commit) as case, CommitBench(case, commit) as bench:
        for seed in (*probe.seeds, *(max(probe.seeds) + 1 + more for more in range(MORE_SEEDS))):
            say(f"running {probe.name} on {commit[:12]}, seed {seed}")
            outcome = bench.run(probe.name, bench.arm, seed=seed)
            outcomes.append(outcome)
            if not outcome.usable:
                return sentence("cannot be tested", outcome.attempt.reason, *outcomes)
            if reading is not None and (why := _void(case, reading, outcome)):
                return sentence("void", why, *outcomes)
            found = measure(case.store, outcome.run)
            measurements += [found] if found else []
            judgement = judge(probe, measurements)
            if judgement.state != "unclear":
                by_exit_code = outcome.attempt.status in ("good", "bad")
                reason = f"exit code {outcome.attempt.exit_code}" if by_exit_code else judgement.text
                return sentence(judgement.state, reason.removeprefix(f"{judgement.state}: "), *outcomes)
    return sentence("undecided", f"{judgement.estimate.text} straddles what is good", *outcomes)


def _lines(git: Git, live: str, commit: str) -> Reading | None:
    """The lines that must run; None where this commit does not have them though another has.

    Raises:
        UsageError: no commit ever had such a file.
    """
    spec = parse_spec(live)
    try:
        return make_reading(git, live, rev=commit)
    except UsageError:
        if spec.rev or not git.call("log", "--all", "--max-count=1", "--format=%H", "--", spec.path).text.strip():
            raise
        return None


def _void(case: Case, reading: Reading, outcome: Outcome) -> str:
    """Why the run says nothing of the lines, or ""."""
    found = reading_liveness(case, reading, outcome.run, outcome.attempt)
    if found.word in RAN:
        return ""
    ran = ", ".join(str(sibling["qualname"]) for sibling in found.siblings[:2])
    instead = f"; ran in its stead: {ran}" if ran else ""
    return (
        f"{reading.path}:{reading.start}-{reading.end} {_SAID.get(found.word, 'did not run')}: {found.reason}{instead}"
    )


_SAID = {
    "bound": "was only bound",
    "not_seen_blind": "was not seen, which proves nothing here",
    "unknown": "may have run or not",
}


def _case(target: Target, git: Git, commit: str) -> Case:
    """The case of judgements, made when it is not there; its patches are none."""
    home = home_of(git.root)
    path = home / f"{JUDGE}.db"
    info = CaseInfo(
        slug=JUDGE,
        symptom="single commits, judged for `git bisect run`",
        repo=str(git.root),
        target_toml=target.text,
        base=commit,
        head=commit,
        machine=machine_facts(target),
        livepath_version=livepath_version(),
    )
    try:
        store = Store.open(path) if path.exists() else Store.create(path, info)
    except StoreError:
        if not path.exists():
            raise
        store = Store.open(path)  # another judge made it in this moment
    return Case(slug=JUDGE, home=home, store=store, target=target, git=git)
