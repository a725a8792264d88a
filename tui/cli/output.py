"""Where a command's answer goes, in one of three forms.

Contract: stdout is data, stderr is talk. `--json` prints JSON, `--plain` one record per line with tabs between fields
and nothing cut, and neither has colour; otherwise text for a person, fitted to the terminal, with colour only on a
terminal and without NO_COLOR.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import click

from store.rows import to_json
from tui.text.clean import clean
from tui.text.layout import Cell, Page

Form = Literal["text", "plain", "json"]
Row = Sequence[Cell | str]
Field = tuple[str, Cell | str]


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """The form a person asked for, and the page it is set on."""

    form: Form = "text"
    page: Page = dataclasses.field(default_factory=Page)

    @classmethod
    def of(cls, form: Form) -> Output:
        """For this process's stdout."""
        colour = form == "text" and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        columns = shutil.get_terminal_size((100, 24)).columns
        return cls(form, Page(width=max(min(columns, 160), 60), colour=colour))

    def rows(
        self,
        data: Iterable[Any],
        head: Sequence[str],
        row: Callable[[Any], Row],
        *,
        prose: int | None = None,
        empty: str,
    ) -> None:
        """A list: JSON objects, lines with tabs, or a table."""
        things = list(data)
        if self.form == "json":
            self.json(things)
        elif self.form == "plain":
            for thing in things:
                click.echo("\t".join(_flat(cell) for cell in row(thing)))
        elif not things:
            self.say(empty)
        else:
            self.lines(self.page.table(head, map(row, things), prose=prose))

    def thing(self, data: Any, fields: Sequence[Field], *sections: tuple[str, list[str]]) -> None:
        """One thing: a JSON object, a line per field, or its fields with sections (title, lines) under them."""
        if self.form == "json":
            self.json(data)
        elif self.form == "plain":
            for name, value in fields:
                click.echo(f"{name}\t{_flat(value)}")
        else:
            filled = [(Cell(name, "dim"), value) for name, value in fields if _flat(value)]
            self.lines(self.page.table(("", ""), filled, prose=1)[1:])
            for title, lines in sections:
                self.lines([*self.page.heading(title), *lines] if lines else [])

    def json(self, data: Any) -> None:
        """Standard JSON; escapes keep control characters of a repository from the terminal."""
        click.echo(json.dumps(json.loads(to_json(as_data(data))), indent=2))

    def lines(self, lines: Iterable[str]) -> None:
        """Text that is clean already."""
        for line in lines:
            click.echo(line, color=self.page.colour)

    def say(self, text: str) -> None:
        """Talk: to stderr, so that it is never part of the data."""
        click.echo(clean(text), err=True)


def as_data(thing: Any) -> Any:
    """Dataclasses, also inside lists and dicts, as dicts."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return dataclasses.asdict(thing)
    if isinstance(thing, dict):
        return {key: as_data(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [as_data(value) for value in thing]
    return thing


def _flat(cell: Cell | str) -> str:
    text = cell.text if isinstance(cell, Cell) else cell
    return clean(" ".join(text.split("\n")))
