"""`livepath reading` and `livepath live`: lines somebody looked at, and whether they ran."""

from __future__ import annotations

import re
from typing import Any

import click

from store.errors import UsageError
from store.models import Reading, ReadingLiveness
from tui.cli.output import Field, Output, Row
from tui.cli.session import on_case, say
from tui.gateway import Gateway
from tui.text import words
from tui.text.layout import Cell

_RANGE = re.compile(r"(?P<path>.+?)(?::(?P<start>\d+)(?:-(?P<end>\d+))?)?")


@click.group()
def reading() -> None:
    """Readings: lines of a file at a commit, with what runs proved about them."""


@reading.command("add")
@click.argument("place", metavar="[HOST:]PATH:A-B[@REV]")
@click.option("--note", default="", help="What was seen there.")
@on_case(reads=False)
def add_reading(gateway: Gateway, place: str, note: str) -> None:
    """Take the lines you looked at into the case; REV defaults to the head of the stack."""
    added = gateway.add_reading(place, note)
    say(f"reading {added.id} is {added.path}:{added.start}-{added.end} at {added.rev[:10]}")


@reading.command("list")
@on_case()
def list_readings(gateway: Gateway, output: Output) -> None:
    """List the readings with their liveness in the newest run that saw them."""
    store = gateway.store
    newest = {one.id: _newest(store.reading_liveness(one.id)) for one in store.readings()}

    def row(one: Reading) -> Row:
        live = newest[one.id]
        return str(one.id), place(one), words.liveness({"word": live.word} if live else None), one.qualname or one.note

    if output.form == "json":
        output.json([{"reading": one, "liveness": newest[one.id]} for one in store.readings()])
    else:
        head = ("id", "lines", "liveness", "what")
        output.rows(
            store.readings(), head, row, prose=3, empty="nothing was read yet; try `livepath reading add PATH:A-B`"
        )


@reading.command("show")
@click.argument("id", type=int)
@on_case()
def show_reading(gateway: Gateway, output: Output, id: int) -> None:
    """Show one reading: its lines, what every run proved, and what ran in its stead."""
    one = gateway.store.reading(id)
    proofs = gateway.store.reading_liveness(id)
    page = output.page
    fields: list[Field] = [
        ("reading", place(one)),
        ("commit", one.rev),
        ("host", one.host),
        ("in", one.qualname),
        ("note", one.note),
        ("read", one.created_utc),
    ]
    output.thing(
        {"reading": one, "liveness": proofs},
        fields,
        ("Liveness", page.table(("run", "", "why"), map(_proof, proofs), prose=2)),
        ("Lines", page.block(numbered(one.text, one.start), tone="plain")),
    )


def place(one: Reading) -> str:
    """`PATH:A-B` of a reading."""
    return f"{one.path}:{one.start}-{one.end}"


def numbered(text: str, start: int) -> str:
    """Lines with their numbers in the file."""
    return "\n".join(f"{number:5} {line}" for number, line in enumerate(text.splitlines(), start))


def _newest(proofs: list[ReadingLiveness]) -> ReadingLiveness | None:
    return max(proofs, key=lambda proof: proof.run_id, default=None)


def _proof(proof: ReadingLiveness) -> Row:
    return (
        str(proof.run_id),
        words.liveness({"word": proof.word, "count": proof.count}),
        _why(proof.reason, proof.siblings),
    )


def _why(reason: str, siblings: Any) -> str:
    ran = ", ".join(f"{s['qualname']} ({s['path']}:{s['start']})" for s in siblings)
    return f"{reason}; ran in its stead: {ran}" if ran else reason


@click.command()
@click.argument("place", metavar="PATH[:A-B]")
@on_case()
def live(gateway: Gateway, output: Output, place: str) -> None:
    """Say, for every run on record, whether lines of a file ran."""
    match = _RANGE.fullmatch(place)
    if match is None:
        raise UsageError(f"`{place}` names no lines: expected PATH, PATH:A or PATH:A-B")
    start = int(match["start"]) if match["start"] else None
    end = int(match["end"] or match["start"]) if match["start"] else None

    def row(one: Any) -> Row:
        lines = f"{one.path}:{one.start}-{one.end}"
        state = words.liveness({"word": one.word, "count": one.count})
        return str(one.run), one.probe, one.arm, Cell(lines), state, _why(one.reason, one.siblings)

    head = ("run", "probe", "arm", "lines", "liveness", "why")
    found = gateway.liveness(match["path"], start, end)
    output.rows(found, head, row, prose=5, empty="no run on record: `livepath run start PROBE --arm full` makes one")
