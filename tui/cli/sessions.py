"""`livepath session import`: a recorded terminal session becomes readings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tui.cli.output import Output, Row
from tui.cli.readings import place
from tui.cli.session import on_case, say
from tui.gateway import Gateway
from tui.text import words
from tui.text.layout import Cell

if TYPE_CHECKING:
    from lab.session import Imported

_STATES = {"matched": ("matched", "good"), "elsewhere": ("other lines", "warn"), "unmatched": ("unmatched", "warn")}


@click.group()
def session() -> None:
    """Terminal sessions: what somebody looked at, as readings."""


@session.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--host", default="", help="Where it was recorded. [default: as its prompts say]")
@on_case()
def import_session(gateway: Gateway, output: Output, file: Path, host: str) -> None:
    """Take a log of commands and outputs, or an asciicast, into the case.

    Every look at lines of a file (sed, cat, head, tail, grep -n, git show, git diff, also behind ssh) becomes a
    reading, found in the repository by what was printed.
    """
    found = gateway.import_session(file, host)

    def row(one: Imported) -> Row:
        live = words.liveness({"word": one.liveness.word} if one.liveness else None)
        ran = next((str(sibling["qualname"]) for sibling in one.liveness.siblings), "") if one.liveness else ""
        what = one.reading.qualname + (f"; ran in its stead: {ran}" if ran else "")
        text = "; ".join(filter(None, [what, one.remark]))
        return str(one.reading.id), Cell(*_STATES[one.state]), place(one.reading), live, text

    if output.form == "json":
        output.json(found.as_data())
    else:
        head = ("id", "", "lines", "liveness", "what")
        output.rows(found.readings, head, row, prose=4, empty="nothing in it looks at lines of a file")
    say(found.text)
