"""Waiting for a job: its progress on stderr, ctrl-C asks it to stop.

Contract: on a terminal one line is drawn over and over; otherwise a line is printed when a step is done, and now and
then between. The job is another process: the first ctrl-C asks it to stop and waits for its clean-up, a second one
leaves it to finish alone.
"""

from __future__ import annotations

import os
import shutil
import sys
import time

from rich.cells import cell_len, set_cell_size

from store.errors import Cancelled, JobError, StoreError
from store.models import Job
from tui.gateway import Gateway
from tui.text.clean import clean

_BAR = 20
_QUIET_S = 10.0  # without a terminal, time left is not told more often than this


def wait_for(gateway: Gateway, job: Job) -> Job:
    """Show a job's progress until it has ended.

    Raises:
        JobError: it failed.
        Cancelled: somebody stopped it.
    """
    meter = Meter()
    try:
        job = _until_ended(gateway, job, meter)
    finally:
        meter.close()
    if job.state == "failed":
        raise JobError(job.message or f"job {job.id} failed and left no message")
    if job.state == "cancelled":
        raise Cancelled(job.message or "stopped; what was finished is kept, start again to go on")
    return job


def _until_ended(gateway: Gateway, job: Job, meter: Meter) -> Job:
    job_id = job.id
    assert job_id is not None
    asked = False
    while True:
        try:
            for row in gateway.watch(job_id):
                meter.show(row)
                job = row
            return job
        except KeyboardInterrupt:
            if asked:
                raise Cancelled("left; the job cleans up on its own", hint="start again to go on") from None
            asked = True
            meter.say("stopping: the running probes are ended and cleaned up (ctrl-C again leaves at once)")
            _ask_to_stop(gateway, job_id)


def _ask_to_stop(gateway: Gateway, job_id: int) -> None:
    try:
        gateway.cancel(job_id)
    except StoreError:
        return  # it ended in this very moment; the next look at its row says how


class Meter:
    """A line of progress on stderr."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = False
        self._started = time.monotonic()
        self._last = (-1, "", self._started)  # steps done, note and time of the line last printed

    def show(self, job: Job) -> None:
        """Draw how far the job is."""
        if job.state not in ("queued", "running"):
            return
        note = clean(job.note) or ("waiting for its worker" if job.state == "queued" else "starting")
        if self._live:
            filled = _BAR * min(job.done, job.total) // job.total if job.total else 0
            line = f"[{'#' * filled}{'.' * (_BAR - filled)}] {job.done}/{job.total or '?'} {note}"
            columns = shutil.get_terminal_size((80, 24)).columns - 1
            line = line if cell_len(line) <= columns else set_cell_size(line, columns)
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
            self._drawn = True
            return
        now = time.monotonic()
        done, said, when = self._last
        if job.done != done or (note != said and now - when >= _QUIET_S):
            print(f"{now - self._started:5.0f} s  {job.done}/{job.total or '?'}  {note}", file=sys.stderr, flush=True)
            self._last = (job.done, note, now)

    def say(self, text: str) -> None:
        """A line of its own."""
        self.close()
        print(clean(text), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Wipe the line that was drawn."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False
