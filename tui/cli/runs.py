"""`livepath run` and `livepath ab`: asking for measurements and looking at them."""

from __future__ import annotations

from typing import Any

import click

from store.models import Attempt, Job, Metric, Run
from tui.cli.output import Field, Output, Row
from tui.cli.progress import wait_for
from tui.cli.session import on_case, say
from tui.gateway import Gateway
from tui.text import words
from tui.text.layout import Cell

WAIT = click.option("--wait/--no-wait", default=True, help="Wait for the end, or leave the work to itself.")


@click.group()
def run() -> None:
    """Runs: one probe on one assembled tree."""


@run.command("start")
@click.argument("probe")
@click.option("--arm", default="full", show_default=True, help="base, full, base+C, full-P, full+fix, full+fix-P.")
@click.option("--seed", type=int, help="Another seed than the probe's first.")
@WAIT
@on_case()
def start_run(gateway: Gateway, output: Output, probe: str, arm: str, seed: int | None, wait: bool) -> None:
    """Run a probe on an arm; a result on record for the same tree, inputs and machine is used again."""
    ask_for(gateway, output, "run", {"probe": probe, "arm": arm, "seed": seed}, wait)


@run.command("list")
@click.option("--probe", help="Only of this probe.")
@click.option("--arm", help="Only of this arm.")
@on_case()
def list_runs(gateway: Gateway, output: Output, probe: str | None, arm: str | None) -> None:
    """List the runs with how their last attempt ended."""
    store = gateway.store
    runs = store.runs(probe=probe, arm=arm)
    last = {one.id: next(reversed(store.attempts(one.id)), None) for one in runs}

    def row(one: Run) -> Row:
        attempt = last[one.id]
        status = words.word(attempt.status if attempt else None, missing="never ran")
        seconds = f"{attempt.wall_s:.1f} s" if attempt and attempt.wall_s is not None else ""
        return str(one.id), Cell(one.probe, "strong"), status, seconds, one.arm, attempt.reason if attempt else ""

    if output.form == "json":
        output.json([{"run": one, "last_attempt": last[one.id]} for one in runs])
    else:
        output.rows(runs, ("id", "probe", "status", "took", "arm", "reason"), row, prose=5, empty="nothing was run yet")


@run.command("show")
@click.argument("id", type=int)
@on_case()
def show_run(gateway: Gateway, output: Output, id: int) -> None:
    """Show one run: how to repeat it, its attempts, and what the last one measured."""
    store = gateway.store
    one, attempts, counted = store.run(id), store.attempts(id), store.last_good_attempt(id)
    metrics = store.metrics(counted.id) if counted else []
    items = store.items(counted.id) if counted else []
    page = output.page
    fields: list[Field] = [
        ("run", f"{one.id}: {one.probe} on {one.arm}"),
        ("patches", ", ".join(one.patches) or "none"),
        ("tree", one.tree),
        ("seed", str(one.seed)),
        ("recorder", one.instrumentation),
        ("repeat with", one.command),
        ("measured", f"mean {sum(i.score for i in items) / len(items):.4g} of {len(items)} items" if items else ""),
    ]
    last = attempts[-1] if attempts else None
    output.thing(
        {"run": one, "attempts": attempts, "metrics": metrics, "items": len(items)},
        fields,
        ("Attempts", page.table(("n", "status", "took", "reason"), map(_attempt, attempts), prose=3)),
        ("Metrics", page.table(("metric", "value", "n", "where"), map(_metric, metrics), prose=3)),
        ("The end of its stderr", page.block(last.stderr_tail, tone="plain") if last and last != counted else []),
    )


def _attempt(attempt: Attempt) -> Row:
    notes = [attempt.reason, *(f"blind: {spot}" for spot in attempt.blind)]
    if attempt.unreadable_events:
        notes.append(f"{attempt.unreadable_events} unreadable lines of events")
    seconds = "" if attempt.wall_s is None else f"{attempt.wall_s:.1f} s"
    return str(attempt.number), words.word(attempt.status), seconds, "; ".join(filter(None, notes))


def _metric(metric: Metric) -> Row:
    tags = {name: words.number(value) if isinstance(value, float) else value for name, value in metric.tags.items()}
    where = ", ".join(f"{name} {value}" for name, value in tags.items())
    interval = "" if metric.low is None else f" [{words.number(metric.low)}, {words.number(metric.high)}]"
    return metric.name, words.number(metric.value) + interval, "" if metric.n is None else str(metric.n), where


@run.command("cancel")
@click.argument("job", type=int, required=False)
@on_case(reads=False)
def cancel_run(gateway: Gateway, job: int | None) -> None:
    """Ask a JOB to stop, or all that run or wait; what is finished is kept."""
    jobs = gateway.store.jobs() if job is None else [gateway.store.job(job)]
    open_jobs = [one for one in jobs if job is not None or one.state in ("queued", "running")]
    for one in open_jobs:
        assert one.id is not None
        gateway.cancel(one.id)
        say(f"job {one.id} ({one.kind}) was asked to stop")
    if not open_jobs:
        say("nothing is running")


@click.command()
@click.argument("patch")
@click.option("--probe", default="", help="Which probe. [default: the target's first]")
@click.option("--background", default="full", show_default=True, help="The arm in which the patch is judged.")
@WAIT
@on_case()
def ab(gateway: Gateway, output: Output, patch: str, probe: str, background: str, wait: bool) -> None:
    """Compare a background with and without PATCH; no run is spent on lines that cannot run."""
    gateway.store.patch(patch)
    ask_for(gateway, output, "ab", {"patch": patch, "probe": probe, "background": background}, wait)


def ask_for(gateway: Gateway, output: Output, kind: str, argument: dict[str, Any], wait: bool) -> None:
    """Insert a job and, if asked to, wait for its end and print what came of it."""
    job: Job = gateway.submit(kind, argument)
    if wait:
        job = wait_for(gateway, job)
    if output.form == "json":
        output.json(job)
    elif wait:
        output.lines(output.page.prose(job.message))
    else:
        say(f"job {job.id} was started; `livepath run cancel {job.id}` stops it")
