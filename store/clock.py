"""The one clock: UTC, ISO-8601, microseconds, ending in Z, so that text order is time order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def utc_now() -> str:
    """The time now, as it is stored in every `_utc` column."""
    return stamp(datetime.now(UTC))


def utc_ago(seconds: float) -> str:
    """The time `seconds` ago, to be compared with stored times as text."""
    return stamp(datetime.now(UTC) - timedelta(seconds=seconds))


def stamp(moment: datetime) -> str:
    """One moment as stored text."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
