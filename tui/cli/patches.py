"""`livepath patch`: the suspects, what is thought of them and what was proved."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from store.models import ChangedLine, Patch, PatchVerdict
from tui.cli.output import Field, Output, Row
from tui.cli.session import on_case, say
from tui.gateway import Gateway
from tui.text import words
from tui.text.layout import Cell


@click.group()
def patch() -> None:
    """Patches: the stack under suspicion, the candidate fixes, the planted faults."""


@patch.command("list")
@click.option("--role", type=click.Choice(["stack", "candidate", "control"]), help="Only these.")
@on_case()
def list_patches(gateway: Gateway, output: Output, role: Any) -> None:
    """List the patches with tier and worst verdict; planted faults only with `--role control`."""
    store = gateway.store
    shown = [patch for patch in store.patches(role) if role or patch.role != "control"]
    verdicts = {patch.name: _summary(gateway, patch.name) for patch in shown}

    def row(one: Patch) -> Row:
        tier = "" if one.tier is None else str(one.tier)
        return Cell(one.name, "strong"), one.role, tier, words.word(verdicts[one.name]), one.reason or one.subject

    if output.form == "json":
        output.json([{**_brief(one), "verdict": verdicts[one.name]} for one in shown])
    else:
        head = ("patch", "role", "tier", "verdict", "why suspected")
        output.rows(shown, head, row, prose=4, empty="the target has no patches between base and head")


def _brief(one: Patch) -> dict[str, Any]:
    """A patch without its diff."""
    return {name: value for name, value in dataclasses.asdict(one).items() if name != "diff"}


@patch.command("show")
@click.argument("name")
@on_case()
def show_patch(gateway: Gateway, output: Output, name: str) -> None:
    """Show one patch: every verdict on it, which of its lines ran, and its diff."""
    store = gateway.store
    one = store.patch(name)
    verdicts, lines = store.verdicts(name), store.changed_lines(name)
    newest = [line for line in lines if line.run_id == max(each.run_id for each in lines)]
    page = output.page
    changed = f"Changed lines, in run {newest[0].run_id}" if newest else ""
    fields: list[Field] = [
        ("patch", Cell(one.name, "strong")),
        ("role", one.role),
        ("subject", one.subject),
        ("tier", "" if one.tier is None else str(one.tier)),
        ("suspected", ", ".join(one.suspected)),
        ("reason", one.reason),
        ("commit", one.commit or one.source),
        ("patch id", one.patch_id),
        ("verdict", words.word(_summary(gateway, name), missing="not judged yet")),
    ]
    output.thing(
        {"patch": one, "verdicts": verdicts, "changed_lines": lines},
        fields,
        ("Verdicts", page.table(("probe", "background", "verdict", "reason"), map(_verdict, verdicts), prose=3)),
        (changed, page.table(("line", "", "text"), map(_line, newest))),
        ("Diff", page.block(one.diff)),
    )


def _summary(gateway: Gateway, name: str) -> str | None:
    verdict = gateway.verdict(name)
    return verdict.verdict if verdict else None


def _verdict(verdict: PatchVerdict) -> Row:
    return verdict.probe or "-", verdict.background, words.word(verdict.verdict), verdict.reason


def _line(line: ChangedLine) -> Row:
    place = f"{line.path}:{line.line}"
    return place if len(place) < 34 else f"...{place[-31:]}", words.liveness({"word": line.word}), line.text


@patch.command("rank")
@click.argument("name")
@click.argument("tier", type=click.IntRange(1, 9))
@click.option("--reason", help="Why it is suspected.")
@click.option("--suspect", "kinds", multiple=True, metavar="KIND", help="Kind of fault it could be, as in `controls`.")
@on_case(reads=False)
def rank_patch(gateway: Gateway, name: str, tier: int, reason: str | None, kinds: tuple[str, ...]) -> None:
    """Say how likely a patch is: TIER 1 is looked at first."""
    one = gateway.store.patch(name)
    ranked = dataclasses.replace(
        one, tier=tier, reason=one.reason if reason is None else reason, suspected=kinds or one.suspected
    )
    gateway.store.put_patch(ranked)
    say(f"{name} is in tier {tier}")
