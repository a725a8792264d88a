"""`livepath case`: the investigations of a target."""

from __future__ import annotations

from typing import Any

import click

from store.errors import UsageError
from store.models import CaseInfo
from tui.cli.output import Field, Output, Row
from tui.cli.session import on_case, say
from tui.gateway import Gateway
from tui.text.layout import Cell


@click.group()
def case() -> None:
    """Cases: one investigation each, a symptom and a stack of patches."""


@case.command("list")
@on_case()
def list_cases(gateway: Gateway, output: Output) -> None:
    """List the cases of the target."""
    output.rows(
        gateway.cases(),
        ("case", "state", "opened", "symptom"),
        _row,
        prose=3,
        empty="this target has no case yet; make one with `livepath case new SLUG --symptom TEXT`",
    )


def _row(info: CaseInfo) -> Row:
    state = Cell("closed", "dim") if info.closed_utc else "open"
    return Cell(info.slug, "strong"), state, info.created_utc[:16].replace("T", " "), info.symptom


@case.command("show")
@on_case()
def show_case(gateway: Gateway, output: Output) -> None:
    """Show one case: what it is about and what it holds."""
    store = gateway.store
    info = store.case()
    counts = {
        "patches": len(store.patches()),
        "questions": len(store.questions()),
        "hypotheses": len(store.hypotheses()),
        "assumptions": len(store.assumptions()),
        "readings": len(store.readings()),
        "runs": len(store.runs()),
        "findings": len(store.findings()),
    }
    fields: list[Field] = [
        ("case", Cell(info.slug, "strong")),
        ("symptom", info.symptom),
        ("repository", info.repo),
        ("base", info.base),
        ("head", info.head),
        ("machine", _machine(info.machine)),
        ("livepath", info.livepath_version),
        ("opened", info.created_utc),
        ("closed", info.closed_utc or ""),
        ("holds", ", ".join(f"{count} {noun}" for noun, count in counts.items() if count)),
    ]
    output.thing({"case": info, "counts": counts}, fields)


def _machine(facts: dict[str, Any]) -> str:
    """The machine in one line: what it is, without the digests that only tell two machines apart."""
    shown = {name: value for name, value in facts.items() if value and not name.endswith("sha256")}
    return ", ".join(f"{name} {' '.join(map(str, v)) if isinstance(v, list) else v}" for name, v in shown.items())


@case.command("new")
@click.argument("slug")
@click.option("--symptom", required=True, help="What is wrong, as a user would say it.")
@on_case(reads=False)
def new_case(gateway: Gateway, slug: str, symptom: str) -> None:
    """Make a case SLUG for the target whose livepath.toml is here or above."""
    if not symptom.strip():
        raise UsageError("the symptom is empty", hint="say what is wrong, as a user would say it")
    info = gateway.new_case(slug, symptom)
    say(f"case {info.slug} is open; `livepath patch list` shows its suspects")


@case.command("close")
@on_case(reads=False)
def close_case(gateway: Gateway) -> None:
    """Mark a case as closed; everything in it stays."""
    say(f"case {gateway.store.close_case().slug} is closed")
