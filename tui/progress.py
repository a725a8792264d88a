"""A job's progress in one line: state, bar, how far, time left, note."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tui.widgets.signs import state_sign
from tui.widgets.spans import Span, Spans

if TYPE_CHECKING:
    from store.models import Job

_SILENT_S = 15.0  # a worker beats once a second; one this silent is gone


def now_utc() -> datetime:
    return datetime.now(UTC)


def seconds_since(stamp_utc: str | None) -> float | None:
    """Seconds since an ISO stamp of the store; None where there is none."""
    if not stamp_utc:
        return None
    try:
        then = datetime.fromisoformat(stamp_utc)
    except ValueError:
        return None
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return (now_utc() - then).total_seconds()


def clock(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def bar(done: int, total: int, width: int) -> str:
    """A bar that is readable without colour."""
    filled = 0 if total <= 0 else min(width, width * done // total)
    return "█" * filled + "░" * (width - filled)


def meter(job: Job | None, width: int) -> Spans:
    """How far a job is, in at most a few words; `width` cells of bar, 0 for none."""
    if job is None:
        return (("no work asked for", "dim"),)
    sign = state_sign(job.state)
    if job.state != "running":
        return ((f"{sign.glyph} {job.kind} {sign.word}", sign.tone),)
    silent = seconds_since(job.heartbeat_utc)
    if silent is not None and silent > _SILENT_S:
        return ((f"! {job.kind}: no sign of its worker for {clock(silent)}", "warn"),)
    spans: list[Span] = [(f"{sign.glyph} {job.kind} ", sign.tone)]
    if job.cancel_requested:
        spans.append(("stopping ", "warn"))
    if job.total > 0:
        if width:
            spans.append((bar(job.done, job.total, width) + " ", "cool"))
        spans.append((f"{job.done}/{job.total}", "plain"))
    elapsed = seconds_since(job.created_utc)
    if elapsed is not None:
        spans.append((f"  {clock(elapsed)}", "dim"))
    return tuple(spans)
