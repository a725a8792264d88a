"""The bench: runs probes on arms, two at a time, and never the same thing twice.

Contract: `start(probe, arm)` assembles the arm's tree, looks for finished attempts under its cache key, and otherwise
runs the probe in a worktree of that tree, traced. Every attempt is written to the store with all it produced,
whatever came of it. Results are `Outcome`s; a crash or time-out is an outcome too (`usable` False), only cancel and
faults of the machine raise.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Self

from lab.arms import Arm
from lab.assemble import Assembled, Assembler
from lab.cache import run_key
from lab.case import Case
from lab.events import Progress
from lab.machine import machine_facts
from lab.pace import Pace
from lab.runner import ALLOWED, RunResult, RunSpec, execute
from lab.target import Probe
from lab.worktree import WorktreePool
from store.errors import Cancelled, PatchError, RunError
from store.models import Attempt, Claim, ExecutedFile, Item, Metric, Run

TRACED = "traced"
WORKERS = 2
# Only these are evidence; the rest is kept and never counts.
USABLE = ("ok", "good", "bad")
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one probe on one arm: the run and the attempt that counts."""

    arm: Arm
    run: Run
    attempt: Attempt
    cached: bool

    @property
    def usable(self) -> bool:
        return self.attempt.status in USABLE

    @property
    def run_id(self) -> int:
        assert self.run.id is not None
        return self.run.id

    @property
    def attempt_id(self) -> int:
        assert self.attempt.id is not None
        return self.attempt.id

    def evidence(self) -> dict[str, object]:
        return {"kind": "run", "id": self.run_id}


def settled(attempt: Attempt) -> bool:
    """Whether running it again would only repeat it. What was stopped, killed or never started is not settled."""
    return attempt.status in USABLE or (attempt.status == "cannot_be_tested" and attempt.exit_code is not None)


def outcome_of(future: Future[Outcome]) -> Outcome:
    """What came of a run that `Bench.start` began.

    Waits in short steps: a wait without a limit is not ended by a Ctrl-C that comes just before Python blocks, or that
    the system gives to another thread.
    """
    while not wait((future,), timeout=_POLL_S).done:
        pass
    return future.result()


class Bench:
    """Runs of one job. Use as a context manager: leaving it ends children and removes worktrees."""

    def __init__(
        self,
        case: Case,
        *,
        job_id: int | None,
        cancelled: Callable[[], bool] = lambda: False,
        workers: int = WORKERS,
    ) -> None:
        self.case = case
        self.job_id = job_id
        self.cancelled = cancelled
        self.fix = ""  # the candidate that `fix` in an arm's name stands for
        self.pace = Pace(workers)
        self.machine = machine_facts(case.target)
        self._assembler = Assembler(case.git, case.store.case().base, case.store.patches())
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="bench")
        self._trees = WorktreePool(case.git, case.folder / "worktrees")
        self._started: dict[tuple[str, str], Future[Outcome]] = {}
        self._lock = threading.Lock()
        self._left = threading.Event()

    def __enter__(self) -> Self:
        self._trees.sweep()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._trees.sweep()

    @property
    def stack_names(self) -> list[str]:
        return [patch.name for patch in self.case.stack]

    def assemble(self, arm: Arm) -> Assembled:
        """The tree of an arm, without a worktree.

        Raises:
            PatchError: a patch does not apply there.
        """
        return self._assembler.assemble(arm.patches(self.stack_names, self.fix))

    def applies(self, arm: Arm) -> bool:
        try:
            self.assemble(arm)
        except PatchError:
            return False
        return True

    def start(self, probe: str, arm: Arm, *, seed: int | None = None, again: bool = False) -> Future[Outcome]:
        """Begin a run, or return the one that is under way or done. `again` asks for one more attempt (an A/A)."""
        assembled = self.assemble(arm)
        spec = self.case.target.probe(probe)
        seed = spec.seeds[0] if seed is None else seed
        key = self._key(spec, assembled, seed)
        mark = (key, "again" if again else "")
        with self._lock:
            known = self._started.get(mark)
            if known is not None:
                return known
            self.pace.begin(probe)
            future = self._pool.submit(self._one, spec, arm, assembled, seed, key, again)
            self._started[mark] = future
        return future

    def run(self, probe: str, arm: Arm, *, seed: int | None = None, again: bool = False) -> Outcome:
        return outcome_of(self.start(probe, arm, seed=seed, again=again))

    def _key(self, probe: Probe, assembled: Assembled, seed: int) -> str:
        return run_key(
            tree=assembled.tree,
            command=probe.command,
            env={**self.case.target.env, **assembled.env},
            seed=seed,
            instrumentation=TRACED,
            machine=self.machine,
            trace=self.case.target.trace,
            setup=self.case.target.setup,
        )

    def _one(self, probe: Probe, arm: Arm, assembled: Assembled, seed: int, key: str, again: bool) -> Outcome:
        run = self.case.store.run_by_key(key)
        if run is not None:
            assert run.id is not None
            done = [a for a in self.case.store.attempts(run.id) if settled(a)]
            if len(done) > (1 if again else 0):
                self.pace.end(probe.name, arm.name, 0.0, cached=True)
                self.report()
                return Outcome(arm, run, done[-1], cached=True)
        else:
            run = self.case.store.put_run(
                Run(
                    key=key,
                    probe=probe.name,
                    arm=arm.name,
                    patches=tuple(arm.patches(self.stack_names, self.fix)),
                    tree=assembled.tree,
                    seed=seed,
                    command=self._paste(probe, arm),
                    instrumentation=TRACED,
                )
            )
        self._stop_if_asked()
        self.pace.note(probe.name, arm.name)
        self.report()
        attempt = self._attempt(probe, run, assembled)
        self.pace.end(probe.name, arm.name, attempt.wall_s or 0.0, cached=False)
        self.report()
        if attempt.status == "infrastructure":
            raise RunError(
                f"`{probe.name}` on {arm.name} could not be run: {attempt.reason}",
                hint=attempt.stderr_tail[-300:].strip(),
            )
        return Outcome(arm, run, attempt, cached=False)

    def _paste(self, probe: Probe, arm: Arm) -> str:
        return f"livepath run start {probe.name} --arm {arm.name}"

    def _stop_if_asked(self) -> None:
        if self._left.is_set() or self.cancelled():
            raise Cancelled("stopped on request")

    def _attempt(self, probe: Probe, run: Run, assembled: Assembled) -> Attempt:
        assert run.id is not None
        store = self.case.store
        number = len(store.attempts(run.id)) + 1
        folder = f"runs/{run.id}-{probe.name}/{number}"
        attempt = store.add_attempt(Attempt(run_id=run.id, number=number, status="running", folder=folder))
        try:
            with self._trees.checkout(assembled.tree, setup=self.case.target.setup, env=self._setup_env()) as worktree:
                result = execute(
                    RunSpec(
                        probe=probe,
                        target=self.case.target,
                        worktree=worktree,
                        env=assembled.env,
                        seed=run.seed,
                        run_id=run.id,
                        folder=self.case.folder / folder,
                    ),
                    cancelled=lambda: self._left.is_set() or self.cancelled(),
                    on_progress=lambda progress: self._progress(run, progress),
                )
        except RunError as error:  # the worktree could not be set up: nothing ran, so nothing was learnt
            attempt = replace(attempt, status="cannot_be_tested", reason=str(error), stderr_tail=error.hint)
            store.update_attempt(attempt)
            return attempt
        return self._record(attempt, result)

    def _setup_env(self) -> dict[str, str]:
        """What a set-up command sees: the allow-list and what livepath.toml sets."""
        return {key: os.environ[key] for key in ALLOWED if key in os.environ} | self.case.target.env

    def _progress(self, run: Run, progress: Progress) -> None:
        self.pace.advance(run.probe, run.arm, progress.done, progress.total)
        self.report()

    def _record(self, attempt: Attempt, result: RunResult) -> Attempt:
        """Write everything an attempt produced in one transaction."""
        attempt_id = attempt.id
        assert attempt_id is not None
        reason = result.reason
        if result.status == "cannot_be_tested" and result.exit_code is not None:
            # The last line a program printed before it gave up usually says why.
            reason = "; ".join(filter(None, (reason, result.stderr_tail.strip().rpartition("\n")[2][:200])))
        attempt = replace(
            attempt,
            status=result.status,
            exit_code=result.exit_code,
            signal=result.signal,
            reason=reason,
            stderr_tail=result.stderr_tail,
            unreadable_events=result.events.unreadable,
            fully_traced=result.record.fully_traced,
            blind=result.record.blind,
            wall_s=result.wall_s,
        )
        self.case.store.record_attempt(
            attempt,
            items=[Item(attempt_id=attempt_id, **item) for item in result.events.items],
            metrics=[Metric(attempt_id=attempt_id, **metric) for metric in result.events.metrics],
            claims=[Claim(attempt_id=attempt_id, event=claim["event"], body=claim) for claim in result.events.claims],
            executed=[
                ExecutedFile(attempt_id=attempt_id, path=path, sha256=file.sha256, lines=file.lines, arcs=file.arcs)
                for path, file in result.record.files.items()
            ],
        )
        if attempt.status == "cancelled":
            raise Cancelled("stopped on request")
        return attempt

    def report(self) -> None:
        """Write progress and time left into the job's row."""
        if self.job_id is not None:
            done, total, note = self.pace.state()
            self.case.store.progress(self.job_id, done, total, note)
