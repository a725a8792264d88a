"""`livepath search`, `log`, `undo`: the whole record of a case, and taking a change back."""

from __future__ import annotations

import click

from store.journal import Entry
from store.search import Hit
from tui.cli.output import Output, Row
from tui.cli.session import on_case, say
from tui.gateway import Gateway


@click.command()
@click.argument("text")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many.")
@on_case()
def search(gateway: Gateway, output: Output, text: str, limit: int) -> None:
    """Find words, or parts of them, in everything the case holds."""

    def row(hit: Hit) -> Row:
        return hit.noun.replace("_", " "), str(hit.id), hit.excerpt

    found = gateway.store.search(text, limit=limit)
    output.rows(found, ("what", "id", "text"), row, prose=2, empty=f"nothing holds {text!r}")


@click.command()
@click.option("-n", "--newest", type=click.IntRange(1), default=30, show_default=True, help="So many.")
@on_case()
def log(gateway: Gateway, output: Output, newest: int) -> None:
    """Print the newest changes of the case, oldest first."""

    def row(entry: Entry) -> Row:
        return str(entry.id), entry.at_utc[:19].replace("T", " "), entry.actor, f"{entry.action} {_what(entry)}"

    entries = gateway.store.journal(newest=newest)
    output.rows(entries, ("id", "when, UTC", "who", "change"), row, prose=3, empty="nothing happened yet")


def _what(entry: Entry) -> str:
    noun = f"{entry.noun.replace('_', ' ')} {entry.row_id}"
    if entry.undoes is not None:
        return f"{noun} (takes back change {entry.undoes})"
    if not entry.before or not entry.after:
        return noun
    return f"{noun}: {', '.join(name for name in entry.after if entry.before.get(name) != entry.after[name])}"


@click.command()
@on_case(reads=False)
def undo(gateway: Gateway) -> None:
    """Take back your newest change; what was measured stays."""
    entry = gateway.store.undo()
    say(f"change {entry.undoes} ({entry.noun.replace('_', ' ')} {entry.row_id}) is taken back")
