"""Jobs: rows in the store, each carried out by one worker process of its own.

Contract: whoever wants work done inserts a row and starts `python -m lab.worker CASE JOB` in a process group of its
own; screen, command line and agents only watch rows and ask for cancel, so none of them needs to stay alive. A job
whose worker died is taken over by the next one.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.case import Case
from lab.series import ROOT
from store.errors import JobError, RepoError
from store.models import Job

# A worker beats once a second; one that has been silent this long is gone.
SILENT_S = 15.0
_POLL_S = 0.2
# Set it to run although tracked files are changed; the changes take no part.
ALLOW_DIRTY = "LIVEPATH_ALLOW_DIRTY"
_OPEN = ("queued", "running")
# Kept so that a worker that ends before we do is reaped; it does not end with us.
_workers: list[subprocess.Popen[bytes]] = []


@atexit.register
def _let_go() -> None:
    """A worker outlives whoever started it, which `Popen` would warn about when it is collected."""
    for worker in _workers:
        worker.returncode = worker.poll() or 0


def submit(case: Case, kind: str, argument: dict[str, Any] | None = None) -> Job:
    """Insert a job and start its worker; an open job of the same kind and argument is returned instead of a second.

    Raises:
        RepoError: tracked files are changed and not committed, so the runs would not be of the code on disk.
    """
    argument = argument or {}
    refuse_dirty(case)
    for job in case.store.jobs():
        if job.state in _OPEN and job.kind == kind and job.argument == argument:
            return job if alive(job) else start_worker(case, job)
    try:
        return start_worker(case, case.store.add_job(Job(kind=kind, argument=argument)))
    except KeyboardInterrupt:
        # Whoever stops while it starts wants no worker either; the row may be there and nobody have its number yet.
        for job in case.store.jobs():
            if job.state in _OPEN and job.kind == kind and job.argument == argument:
                case.store.request_cancel(job.id)
        raise


def refuse_dirty(case: Case) -> None:
    """Runs are of committed trees; whoever edited a file and did not commit would learn nothing about the edit."""
    # livepath.toml is read from disk, so a change of it does take part.
    changed = [name for name in case.git.dirty() if case.git.root / name != case.target.path]
    if changed and not os.environ.get(ALLOW_DIRTY):
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise RepoError(
            f"{changed[0]}{more} changed and not committed: no run would include that",
            hint=f"commit or stash it, or set {ALLOW_DIRTY}=1 to run without it",
        )


def start_worker(case: Case, job: Job) -> Job:
    """Start the process that carries out `job`; it outlives the one that asked."""
    assert job.id is not None
    case.folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    with (case.folder / f"worker-{job.id}.log").open("ab") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "lab.worker", str(case.target.path.parent), case.slug, str(job.id)],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _workers.append(worker)
    return job


def alive(job: Job) -> bool:
    """Whether a worker holds the job: its process exists. A queued job has none yet."""
    _workers[:] = [worker for worker in _workers if worker.poll() is None]
    if job.pid is None:
        return False
    try:
        os.kill(job.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(job.pid)


def _is_zombie(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0] == "Z"
        )
    except OSError:
        return False


def watch(case: Case, job_id: int, *, takeovers: int = 1) -> Iterator[Job]:
    """Yield the job's row whenever it changes, until it has ended.

    A worker that dies is replaced `takeovers` times: what it finished is kept, the rest is done again.

    Raises:
        JobError: the worker died again.
    """
    last: Job | None = None
    dead_since: float | None = None
    while True:
        job = case.store.job(job_id)
        if job != last:
            yield job
            last = job
        if job.state not in _OPEN:
            return
        if alive(job):
            dead_since = None
        else:
            now = time.monotonic()
            dead_since = dead_since or now
            # A fresh worker needs a moment to claim its row.
            if now - dead_since > (SILENT_S if job.pid is None else 2.0):
                if not takeovers:
                    raise JobError(
                        f"the worker of job {job_id} died",
                        hint=f"see {case.folder / f'worker-{job_id}.log'}; starting again goes on where it stopped",
                    )
                takeovers -= 1
                dead_since = None
                start_worker(case, job)
        time.sleep(_POLL_S)


def cancel(case: Case, job_id: int) -> None:
    """Ask for the job to stop; its worker ends the running probes, cleans up and says so in the row."""
    case.store.request_cancel(job_id)
