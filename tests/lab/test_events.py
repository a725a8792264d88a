from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.events import Events, Progress, ProgressTail, read_events

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TAGS = st.dictionaries(st.text(max_size=8), st.one_of(st.text(max_size=8), st.integers(), FINITE), max_size=3)


def write(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps({"v": 1, **event}) + "\n" for event in events), encoding="utf-8")
    return path


def read(tmp_path: Path, *events: dict[str, Any]) -> Events:
    return read_events(write(tmp_path / "events.jsonl", *events))


def test_a_target_that_says_nothing_has_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path / "none.jsonl") == Events()


def test_items_metrics_claims_and_end_are_told_apart(tmp_path: Path) -> None:
    events = read(
        tmp_path,
        {"event": "identity", "commit": "abc", "files": {"m": ["p", "sha"]}},
        {"event": "item", "id": "L1/c2", "cluster": "c2", "ok": True, "tags": {"length": 1024}, "note": "kept"},
        {"event": "item", "id": 7, "score": "0.5"},
        {"event": "metric", "name": "exponent", "value": 1, "n": 4, "low": 0.5, "layer": 2, "higher_is_better": False},
        {"event": "route", "op": "moe", "implementation": "triton", "later": "kept"},
        {"event": "progress", "done": 1, "total": 2},
        {"event": "end", "status": "ok", "wall_s": 1.5},
    )

    assert events.items == [
        {"item": "L1/c2", "cluster": "c2", "score": 1.0, "tags": {"length": 1024, "note": "kept"}},
        {"item": "7", "cluster": "7", "score": 0.5, "tags": {}},
    ]
    assert events.metrics == [
        {
            "name": "exponent",
            "value": 1.0,
            "n": 4,
            "low": 0.5,
            "high": None,
            "higher_is_better": False,
            "tags": {"layer": 2},
        }
    ]
    assert events.claims == [
        {"event": "identity", "commit": "abc", "files": {"m": ["p", "sha"]}},
        {"event": "route", "op": "moe", "implementation": "triton", "later": "kept"},
    ]
    assert (events.end, events.end_wall_s, events.readable, events.unreadable) == ("ok", 1.5, 7, 0)


@pytest.mark.parametrize(
    ("text", "value"), [("NaN", math.nan), ("nan", math.nan), ("Infinity", math.inf), ("-inf", -math.inf)]
)
def test_nan_and_infinities_are_strings(tmp_path: Path, text: str, value: float) -> None:
    (row,) = read(tmp_path, {"event": "metric", "name": "x", "value": text}).metrics

    assert row["value"] == value or (math.isnan(value) and math.isnan(row["value"]))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"loss = 3", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"event": "end", "status": "ok"}', "`v` is None, expected 1"),
        (b'{"v": 2, "event": "end"}', "`v` is 2"),
        (b'{"v": 1}', "`event` is missing"),
        (b'{"v": 1, "event": "item", "ok": true}', "an item needs an `id`"),
        (b'{"v": 1, "event": "item", "id": "a"}', "`score` is None"),
        (b'{"v": 1, "event": "item", "id": "a", "score": "high"}', "`score` is 'high'"),
        (b'{"v": 1, "event": "item", "id": "a", "ok": true, "tags": 3}', "`tags` is no object"),
        (b'{"v": 1, "event": "metric", "value": 1}', "a metric needs a `name`"),
        (b'{"v": 1, "event": "metric", "name": "x", "value": true}', "`value` is True"),
        (b'{"v": 1, "event": "end", "status": "fine"}', "expected ok or failed"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b'"' + b"x" * (2 << 20), "longer than"),
    ],
)
def test_an_unreadable_line_is_counted_explained_and_costs_no_other(tmp_path: Path, line: bytes, why: str) -> None:
    path = tmp_path / "events.jsonl"
    good = b'{"v": 1, "event": "end", "status": "ok"}\n'
    path.write_bytes(good.replace(b"end", b"route") + line + b"\n" + good)

    events = read_events(path)

    assert (events.unreadable, events.readable, events.end) == (1, 2, "ok")
    assert events.problems[0].startswith("line 2: ")
    assert why in events.problems[0]


def test_an_item_that_is_there_twice_would_not_pair_and_is_refused(tmp_path: Path) -> None:
    events = read(tmp_path, {"event": "item", "id": "a", "ok": True}, {"event": "item", "id": "a", "ok": False})

    assert [row["score"] for row in events.items] == [1.0]
    assert events.problems == ["line 2: item `a` is there twice"]


def test_reading_stops_at_a_cap_and_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "events.jsonl", *({"event": "item", "id": n, "ok": True} for n in range(100)))

    assert len(read_events(path, max_lines=10).items) == 10
    assert read_events(path, max_lines=10).cut.startswith("events were read up to line 10")
    assert len(read_events(path, max_bytes=500).items) < 100
    assert read_events(path).cut == ""


def test_lone_surrogates_become_storable(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"v": 1, "event": "item", "id": "a\\ud800", "ok": true, "tags": {"t": ["\\udfff"]}}\n')

    (row,) = read_events(path).items

    assert row["item"].encode("utf-8")
    assert json.dumps(row["tags"], ensure_ascii=False).encode("utf-8")


def test_progress_is_followed_while_the_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = ProgressTail(path)
    assert tail.news() == []

    line = json.dumps({"v": 1, "event": "progress", "done": 1, "total": 4, "note": "x"}).encode()
    path.write_bytes(line[:20])
    assert tail.news() == []
    with path.open("ab") as file:
        file.write(line[20:] + b'\n{"progress" garbage\n' + line + b"\n")

    assert tail.news() == [Progress(1.0, 4.0, "x")] * 2
    assert tail.news() == []


@settings(max_examples=50, deadline=None)
@given(
    scores=st.dictionaries(st.text(max_size=6), st.one_of(FINITE, st.booleans()), max_size=6),
    tags=TAGS,
    garbage=st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line and line.strip()), max_size=3),
)
def test_what_is_written_by_the_contract_is_read_back_among_garbage(
    tmp_path_factory: pytest.TempPathFactory, scores: dict[str, float], tags: dict[str, Any], garbage: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("e") / "events.jsonl"
    lines = [
        json.dumps(
            {
                "v": 1,
                "event": "item",
                "id": name,
                ("ok" if isinstance(value, bool) else "score"): value,
                "tags": tags,
            }
        ).encode()
        for name, value in scores.items()
    ]
    path.write_bytes(b"\n".join([*garbage, *lines]))

    events = read_events(path)

    assert {row["item"]: row["score"] for row in events.items} == {k: float(v) for k, v in scores.items()}
    assert all(row["tags"] == tags for row in events.items)
    assert events.unreadable == len(garbage)
