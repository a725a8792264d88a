"""Measurements made by hand: what a run of a probe leaves behind, without running one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.metric import Measurement
from lab.target import Good, Probe
from store.models import Attempt, AttemptStatus, Item, Metric, Run

STARTED = "2026-01-02T00:00:00.000000Z"


def probe(name: str = "needle", *, metric: str = "recall", good: str = "", **fields: Any) -> Probe:
    operator, _, number = good.partition(" ")
    judged = Good(operator=operator, number=float(number)) if good else None
    return Probe(name=name, command="true", metric=metric, good=judged, **fields)


def measurement(
    arm: str = "base",
    *,
    scores: Mapping[str, Sequence[float]] | None = None,
    tags: Mapping[str, Mapping[str, Any]] | None = None,
    rows: Sequence[tuple[Any, ...]] = (),
    status: AttemptStatus = "ok",
    seed: int = 0,
    run_id: int = 1,
    tree: str = "",
    started_utc: str = STARTED,
    probe: str = "needle",
) -> Measurement:
    """One run; `scores` maps a cluster to the scores of its items, `tags` a cluster to the tags of its items; a row is
    (name, value, tags) with its n where it has one."""
    run = Run(
        id=run_id,
        key=f"{arm}{seed}{run_id}",
        probe=probe,
        arm=arm,
        patches=(),
        tree=tree or arm,
        seed=seed,
        command="true",
        instrumentation="traced",
    )
    attempt = Attempt(id=run_id, run_id=run_id, number=1, status=status, folder="", started_utc=started_utc)
    items = tuple(
        Item(
            attempt_id=run_id,
            item=f"{cluster}/q{number}",
            cluster=cluster,
            score=score,
            tags=dict((tags or {}).get(cluster, {})),
        )
        for cluster, values in (scores or {}).items()
        for number, score in enumerate(values)
    )
    metrics = tuple(
        Metric(attempt_id=run_id, name=name, value=value, tags=dict(tag), n=n)
        for name, value, tag, n in ((*row, None)[:4] for row in rows)
    )
    return Measurement(run=run, attempt=attempt, items=items, metrics=metrics)


def contexts(
    count: int, *, right: float = 1.0, questions: int = 4, length: int = 1024
) -> tuple[dict[str, list[float]], dict[str, dict[str, int]]]:
    """`count` contexts of one length; the last ones are wrong as a whole, so that the recall is `right`."""
    names = [f"L{length}/c{number}" for number in range(count)]
    whole = round(count * right)
    scores = {name: [float(number < whole)] * questions for number, name in enumerate(names)}
    return scores, {name: {"length": length} for name in names}
