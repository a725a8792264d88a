"""What a target says of itself: JSON lines in the file LIVEPATH_EVENTS. Claims, never proof.

Contract: every readable line carries `v` = 1 and `event`. `item` and `metric` become rows, `progress` and `end` are
kept as such, every other event is a claim and kept whole. Fields that are not known land in the tags. A line that
cannot be read is counted and the first few are explained; NaN and infinities may be written as strings. Reading stops
at a cap, and says so: memory is bounded whatever a target writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

VERSION = 1
MAX_BYTES = 64 << 20
MAX_LINES = 500_000
MAX_LINE_BYTES = 1 << 20
_EXPLAINED = 5


class ItemRow(TypedDict):
    item: str
    cluster: str
    score: float
    tags: dict[str, Any]


class MetricRow(TypedDict):
    name: str
    value: float
    n: int | None
    low: float | None
    high: float | None
    higher_is_better: bool | None
    tags: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Progress:
    done: float
    total: float
    note: str = ""


@dataclass(slots=True)
class Events:
    """All that one run said."""

    items: list[ItemRow] = field(default_factory=list)
    metrics: list[MetricRow] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)  # each with its `event`
    end: str | None = None  # the status of the `end` event: ok or failed
    end_wall_s: float | None = None
    readable: int = 0
    unreadable: int = 0
    problems: list[str] = field(default_factory=list)  # why the first unreadable lines are
    cut: str = ""  # why reading stopped early, "" if it did not


class _Unreadable(Exception):
    """A line that breaks the contract; the message says how."""


def read_events(path: Path, *, max_bytes: int = MAX_BYTES, max_lines: int = MAX_LINES) -> Events:
    """Read an events file; a missing file is a target that said nothing."""
    events = Events()
    seen: set[str] = set()
    number = size = 0
    for line in _lines(path):
        number += 1
        size += len(line)
        if number > max_lines or size > max_bytes:
            events.cut = f"events were read up to line {number - 1}: more than {max_lines} lines or {max_bytes} bytes"
            break
        if not line.strip():
            continue
        try:
            _take(events, _parse(line), seen)
            events.readable += 1
        except _Unreadable as problem:
            events.unreadable += 1
            if len(events.problems) < _EXPLAINED:
                events.problems.append(f"line {number}: {problem}")
    return events


class ProgressTail:
    """Follows an events file while it is written and yields the progress in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def news(self) -> list[Progress]:
        """Progress events since the last call; everything else is left for `read_events`."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                block = file.read(MAX_LINE_BYTES)
        except FileNotFoundError:
            return []
        self._offset += len(block)
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b""
        found = []
        for line in lines:
            if b'"progress"' in line:
                try:
                    found.append(_progress(_parse(line)))
                except _Unreadable:
                    continue
        return found


def _lines(path: Path) -> Iterator[bytes]:
    """Lines of a file, each at most MAX_LINE_BYTES + 1 long: the rest of a longer one is passed over."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            yield line
            while not line.endswith(b"\n") and len(line) > MAX_LINE_BYTES:
                line = file.readline(MAX_LINE_BYTES + 1)


def _parse(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise _Unreadable(f"longer than {MAX_LINE_BYTES} bytes")
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _Unreadable("not JSON") from error
    if not isinstance(event, dict):
        raise _Unreadable("not a JSON object")
    if event.get("v") != VERSION:
        raise _Unreadable(f"`v` is {event.get('v')!r}, expected {VERSION}")
    if not isinstance(event.get("event"), str):
        raise _Unreadable("`event` is missing")
    if b"\\ud" in line.lower():
        event = _without_surrogates(event)
    return event


def _take(events: Events, event: dict[str, Any], seen: set[str]) -> None:
    match event["event"]:
        case "item":
            row = _item(event)
            if row["item"] in seen:
                raise _Unreadable(f"item `{row['item']}` is there twice")
            seen.add(row["item"])
            events.items.append(row)
        case "metric":
            events.metrics.append(_metric(event))
        case "progress":
            _progress(event)
        case "end":
            if event.get("status") not in ("ok", "failed"):
                raise _Unreadable(f"`status` of end is {event.get('status')!r}, expected ok or failed")
            events.end = event["status"]
            events.end_wall_s = _optional(event, "wall_s")
        case _:
            events.claims.append({key: value for key, value in event.items() if key != "v"})


def _item(event: dict[str, Any]) -> ItemRow:
    if not isinstance(event.get("id"), str | int) or isinstance(event["id"], bool):
        raise _Unreadable("an item needs an `id`")
    ok = event.get("ok")
    score = float(ok) if isinstance(ok, bool) else _number(event, "score")
    name = str(event["id"])
    return ItemRow(
        item=name,
        cluster=str(event.get("cluster", name)),
        score=score,
        tags=_tags(event, {"id", "cluster", "ok", "score"}),
    )


def _metric(event: dict[str, Any]) -> MetricRow:
    if not isinstance(event.get("name"), str):
        raise _Unreadable("a metric needs a `name`")
    better, count = event.get("higher_is_better"), _optional(event, "n")
    return MetricRow(
        name=event["name"],
        value=_number(event, "value"),
        n=int(count) if count is not None and math.isfinite(count) else None,
        low=_optional(event, "low"),
        high=_optional(event, "high"),
        higher_is_better=better if isinstance(better, bool) else None,
        tags=_tags(event, {"name", "value", "n", "low", "high", "higher_is_better"}),
    )


def _progress(event: dict[str, Any]) -> Progress:
    return Progress(done=_number(event, "done"), total=_number(event, "total"), note=str(event.get("note", "")))


def _tags(event: dict[str, Any], known: set[str]) -> dict[str, Any]:
    tags = event.get("tags", {})
    if not isinstance(tags, dict):
        raise _Unreadable("`tags` is no object")
    other = {key: value for key, value in event.items() if key not in known | {"v", "event", "tags"}}
    return {**other, **tags}


def _number(event: dict[str, Any], key: str) -> float:
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _Unreadable(f"`{key}` is {value!r}, expected a number")
    try:
        return float(value)
    except (ValueError, OverflowError) as error:
        raise _Unreadable(f"`{key}` is {value!r:.40}, expected a number") from error


def _optional(event: dict[str, Any], key: str) -> float | None:
    return None if event.get(key) is None else _number(event, key)


def _without_surrogates(value: Any) -> Any:
    """Lone surrogates are legal in JSON and cannot be stored: they become U+FFFD."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case list():
            return [_without_surrogates(item) for item in value]
        case dict():
            return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
        case _:
            return value
