"""`livepath finding`: claims with their evidence and their diff."""

from __future__ import annotations

import click

from store.errors import UsageError
from store.models import Finding
from tui.cli.output import Field, Output, Row
from tui.cli.session import on_case, parse_evidence, say
from tui.gateway import Gateway
from tui.text import words
from tui.text.layout import Cell


@click.group()
def finding() -> None:
    """Findings: a claim, what it rests on, and the diff it concerns."""


@finding.command("add")
@click.argument("claim")
@click.option("--patch", "name", default="", help="The patch it concerns.")
@click.option(
    "--evidence",
    multiple=True,
    metavar="KIND:ID",
    required=True,
    help="What it rests on: run:3, reading:1; may be given again.",
)
@on_case(reads=False)
def add_finding(gateway: Gateway, claim: str, name: str, evidence: tuple[str, ...]) -> None:
    """Write down a finding of your own; it rests on runs or readings."""
    if not claim.strip():
        raise UsageError("the claim is empty", hint="say what was found")
    store = gateway.store
    rows = parse_evidence(evidence)
    for row in rows:
        getattr(store, row["kind"])(row["id"])
    patch = store.patch(name) if name else None
    added = store.put_finding(
        Finding(
            claim=claim.strip(),
            verdict=None,
            patch_id=patch.patch_id if patch else "",
            patch=name,
            diff=patch.diff if patch else "",
            evidence=tuple(rows),
        )
    )
    say(f"finding {added.id} is on record")


@finding.command("list")
@click.option("--withdrawn/--no-withdrawn", default=True, help="Also those taken back. [default: also]")
@on_case()
def list_findings(gateway: Gateway, output: Output, withdrawn: bool) -> None:
    """List the findings."""
    head = ("id", "verdict", "state", "patch", "claim")
    found = gateway.store.findings(include_withdrawn=withdrawn)
    output.rows(found, head, _row, prose=4, empty="nothing was found yet")


def state(one: Finding) -> Cell:
    """Whether a finding still stands."""
    if one.withdrawn_utc:
        return Cell("withdrawn", "dim")
    return Cell("flagged", "warn") if one.flagged else Cell("stands")


def _row(one: Finding) -> Row:
    return str(one.id), words.word(one.verdict), state(one), one.patch, one.claim


@finding.command("show")
@click.argument("id", type=int)
@on_case()
def show_finding(gateway: Gateway, output: Output, id: int) -> None:
    """Show one finding with its evidence and its diff."""
    one = gateway.store.finding(id)
    fields: list[Field] = [
        ("finding", one.claim),
        ("verdict", words.word(one.verdict)),
        ("state", state(one)),
        ("flagged", one.flagged),
        ("withdrawn", f"{one.withdrawn_utc}: {one.withdrawn_reason}" if one.withdrawn_utc else ""),
        ("evidence", words.evidence(one.evidence)),
        ("patch", one.patch),
        ("patch id", one.patch_id),
        ("found", one.created_utc),
    ]
    output.thing(one, fields, ("Diff", output.page.block(one.diff)))


@finding.command("withdraw")
@click.argument("id", type=int)
@click.option("--reason", required=True, help="Why it no longer holds.")
@on_case(reads=False)
def withdraw_finding(gateway: Gateway, id: int, reason: str) -> None:
    """Take a finding back; it stays in the case, with the reason."""
    gateway.store.withdraw_finding(id, reason)
    say(f"finding {id} is withdrawn")
