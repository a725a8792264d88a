"""`python -m lab.worker FOLDER SLUG JOB`: carries out one job and ends.

Contract: claims the row (two workers never take one job), beats once a second, cleans what a dead worker left behind,
and ends the row as done, failed or cancelled with one line that says what came of it. SIGTERM and SIGINT ask for
cancel. Finished attempts are kept always.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from lab.bench import Bench
from lab.case import Case, open_case
from lab.jobs import alive
from store.errors import Cancelled, JobError, LivepathError
from store.models import Job

_BEAT_S = 1.0


def main(argv: list[str]) -> int:
    folder, slug, job_id = Path(argv[0]), argv[1], int(argv[2])
    with open_case(folder, slug) as case:
        job = case.store.job(job_id)
        gone = job.pid if job.pid is not None and not alive(job) else None
        if not case.store.claim_job(job_id, os.getpid(), from_pid=gone):
            return 0  # another worker was faster
        _close_orphans(case, job_id)
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        ended = threading.Event()
        heart = threading.Thread(target=_beat, args=(case, job_id, stop, ended), daemon=True)
        heart.start()
        try:
            state, message = _carry_out(case, job, stop)
        finally:
            ended.set()
            heart.join()
        case.store.finish_job(job_id, state, message)
    return 0 if state == "done" else 1


def _close_orphans(case: Case, job_id: int) -> None:
    """End the attempts that a dead worker left open; those of other living workers are theirs."""
    if any(job.state == "running" and job.id != job_id and alive(job) for job in case.store.jobs()):
        return
    for run in case.store.runs():
        for attempt in case.store.attempts(run.id or 0):
            if attempt.status == "running":
                case.store.update_attempt(replace(attempt, status="cancelled", reason="its worker died"))


def _beat(case: Case, job_id: int, stop: threading.Event, ended: threading.Event) -> None:
    while not ended.wait(_BEAT_S):
        if not case.store.beat(job_id, os.getpid()) or case.store.cancel_requested(job_id):
            stop.set()


def _carry_out(case: Case, job: Job, stop: threading.Event) -> tuple[Literal["done", "failed", "cancelled"], str]:
    work = _WORK.get(job.kind)
    if work is None:
        return "failed", f"unknown kind of job `{job.kind}`; expected one of {', '.join(_WORK)}"
    try:
        with Bench(case, job_id=job.id, cancelled=stop.is_set) as bench:
            return "done", work(case, bench, job)
    except Cancelled as error:
        return "cancelled", f"{error}; what was finished is kept, starting again goes on from there"
    except LivepathError as error:
        return "failed", f"{error}" + (f" ({error.hint})" if error.hint else "")
    except Exception as error:  # the row must end whatever happens; the traceback goes to the worker's log
        traceback.print_exc()
        return "failed", f"a fault in Livepath itself: {type(error).__name__}: {error} (see worker-{job.id}.log)"


def _investigate(case: Case, bench: Bench, job: Job) -> str:
    from lab.investigate import investigate

    return investigate(case, bench)


def _run(case: Case, bench: Bench, job: Job) -> str:
    from lab.ab import run_arm

    return run_arm(case, bench, **job.argument)


def _ab(case: Case, bench: Bench, job: Job) -> str:
    from lab.ab import compare_patch

    return compare_patch(case, bench, **job.argument)


def _bisect(case: Case, bench: Bench, job: Job) -> str:
    from lab.bisect import bisect

    return bisect(case, bench, **job.argument)


def _sight(case: Case, bench: Bench, job: Job) -> str:
    from lab.inquiry import Inquiry
    from lab.sight_table import measure_table

    return measure_table(Inquiry(case, bench))


_WORK: dict[str, Callable[[Case, Bench, Job], str]] = {
    "investigate": _investigate,
    "run": _run,
    "ab": _ab,
    "bisect": _bisect,
    "sight": _sight,
}


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except JobError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
