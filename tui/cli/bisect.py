"""`livepath bisect`: the search of the stack for what makes a probe worse."""

from __future__ import annotations

from typing import Any

import click

from tui.cli.output import Output, Row
from tui.cli.runs import WAIT, ask_for
from tui.cli.session import on_case, say
from tui.gateway import Gateway
from tui.text import words

_KIND = "bisect"


@click.group()
def bisect() -> None:
    """Bisects: which patch of the stack makes a probe worse."""


@bisect.command("start")
@click.option("--probe", default="", help="Which probe. [default: the target's first]")
@WAIT
@on_case()
def start_bisect(gateway: Gateway, output: Output, probe: str, wait: bool) -> None:
    """Search the stack; both ends first, the culprit run again on fresh items.

    A prefix of the stack that crashes or cannot be assembled is stepped over, never called bad. Started again after
    a stop it goes on: what was run is not run twice.
    """
    if probe:
        gateway.check_probe(probe)
    ask_for(gateway, output, _KIND, {"probe": probe}, wait)


@bisect.command("resume")
@WAIT
@on_case()
def resume_bisect(gateway: Gateway, output: Output, wait: bool) -> None:
    """Go on with the search that was asked for last."""
    asked = [job for job in gateway.store.jobs() if job.kind == _KIND]
    ask_for(gateway, output, _KIND, asked[-1].argument if asked else {"probe": ""}, wait)


@bisect.command("status")
@on_case()
def show_bisects(gateway: Gateway, output: Output) -> None:
    """Show every search with its steps, and the one that runs."""
    found = gateway.bisects()
    open_jobs = [job for job in gateway.store.jobs() if job.kind == _KIND and job.state in ("queued", "running")]
    if output.form == "json":
        output.json({"bisects": found, "jobs": open_jobs})
    else:
        head = ("id", "probe", "", "runs", "against", "what came of it")
        empty = "no search yet: `livepath bisect start --probe PROBE` makes one"
        output.rows(found, head, _row, prose=5, empty=empty)
        if output.form == "text":
            for one in found:
                output.lines(_steps(output, one))
    for job in open_jobs:
        say(f"job {job.id} is {job.state}: {job.note or 'waiting for its worker'}")


def _row(one: dict[str, Any]) -> Row:
    runs, said = str(len(one["runs"])), one["text"] or ", ".join(one["culprits"])
    return str(one["id"]), one["probe"], words.word(one["verdict"]), runs, one["background"], said


def _steps(output: Output, one: dict[str, Any]) -> list[str]:
    def row(step: dict[str, Any]) -> Row:
        difference = step.get("difference")
        measured = f"{words.number(difference)} (n {step['n']})" if difference is not None else ""
        return step["last"], words.word(step["outcome"]), measured, step["arm"]

    table = output.page.table(("up to and with", "", "difference", "arm"), map(row, one["steps"]), prose=3)
    return [*output.page.heading(f"Search {one['id']}: {one['probe']}"), *table] if one["steps"] else []


@bisect.command("stop")
@on_case(reads=False)
def stop_bisect(gateway: Gateway) -> None:
    """Ask the search that runs to stop; its finished runs are kept."""
    open_jobs = [job for job in gateway.store.jobs() if job.kind == _KIND and job.state in ("queued", "running")]
    for job in open_jobs:
        assert job.id is not None
        gateway.cancel(job.id)
        say(f"job {job.id} was asked to stop; `livepath bisect resume` goes on from there")
    if not open_jobs:
        say("no search is running")
