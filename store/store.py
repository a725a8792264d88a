"""`Store`: one case file with everything that can be done to it.

Contract: the functions of the modules named after nouns are its methods, `store.put_patch(patch)` is
`patches.put_patch`. It may be used from any thread; every method is one transaction, and `with store.transaction():`
joins several.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from store import cases as _cases
from store import evidence as _evidence
from store import jobs as _jobs
from store import journal as _journal
from store import patches as _patches
from store import readings as _readings
from store import runs as _runs
from store import search as _search
from store import thoughts as _thoughts
from store.db import Database
from store.errors import StoreError
from store.migrations import migrate
from store.models import CaseInfo


class Store(Database):
    """An open case."""

    @classmethod
    def create(cls, path: Path, info: CaseInfo, *, actor: str = "lab") -> Self:
        """Make the file of a new case, with its folder.

        Raises:
            StoreError: there is a case in it already.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the folder {path.parent}: {error.strerror}") from error
        store = cls(path, actor=actor)
        try:
            # One transaction for schema and case: a file is a case or it is empty, and an empty one may be taken again.
            with store.transaction():
                migrate(store)
                if store.query("SELECT 1 FROM case_info"):
                    raise StoreError(f"there is a case in {path} already", hint="open it, or choose another name")
                store.put_case(info)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def open(cls, path: Path, *, actor: str = "lab") -> Self:
        """Open a case, bringing an older file up to date.

        Raises:
            StoreError: there is no such file, it holds no case, or a newer Livepath wrote it.
        """
        if not path.is_file():
            raise StoreError(
                f"there is no case file {path}", hint="`livepath case list` shows the cases of this repository"
            )
        store = cls(path, actor=actor)
        try:
            migrate(store)
            store.case()
        except BaseException:
            store.close()
            raise
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    case = _cases.case
    put_case = _cases.put_case
    close_case = _cases.close_case
    meta = _cases.meta
    set_meta = _cases.set_meta

    put_patch = _patches.put_patch
    patches = _patches.patches
    patch = _patches.patch
    put_changed_lines = _patches.put_changed_lines
    changed_lines = _patches.changed_lines

    add_question = _thoughts.add_question
    questions = _thoughts.questions
    question = _thoughts.question
    set_question = _thoughts.set_question
    add_hypothesis = _thoughts.add_hypothesis
    hypotheses = _thoughts.hypotheses
    hypothesis = _thoughts.hypothesis
    set_hypothesis = _thoughts.set_hypothesis
    add_assumption = _thoughts.add_assumption
    assumptions = _thoughts.assumptions
    assumption = _thoughts.assumption
    set_assumption = _thoughts.set_assumption

    add_reading = _readings.add_reading
    readings = _readings.readings
    reading = _readings.reading
    put_reading_liveness = _readings.put_reading_liveness
    reading_liveness = _readings.reading_liveness

    put_run = _runs.put_run
    runs = _runs.runs
    run = _runs.run
    run_by_key = _runs.run_by_key
    add_attempt = _runs.add_attempt
    update_attempt = _runs.update_attempt
    attempts = _runs.attempts
    last_good_attempt = _runs.last_good_attempt
    record_attempt = _runs.record_attempt
    items = _runs.items
    metrics = _runs.metrics
    claims = _runs.claims
    executed = _runs.executed

    add_comparison = _evidence.add_comparison
    comparisons = _evidence.comparisons
    comparison = _evidence.comparison
    put_verdict = _evidence.put_verdict
    verdicts = _evidence.verdicts
    put_bisect = _evidence.put_bisect
    bisects = _evidence.bisects
    put_finding = _evidence.put_finding
    findings = _evidence.findings
    finding = _evidence.finding
    withdraw_finding = _evidence.withdraw_finding
    flag_finding = _evidence.flag_finding

    add_job = _jobs.add_job
    job = _jobs.job
    jobs = _jobs.jobs
    claim_job = _jobs.claim_job
    beat = _jobs.beat
    progress = _jobs.progress
    request_cancel = _jobs.request_cancel
    cancel_requested = _jobs.cancel_requested
    finish_job = _jobs.finish_job
    stale_jobs = _jobs.stale_jobs

    journal = _journal.journal
    undo = _journal.undo
    search = _search.search
