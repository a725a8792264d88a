"""What every command shares: which case it asks about, and the form of its answer.

Contract: a command decorated with `on_case` gets an open `Gateway` first, and with `reads=True` an `Output` second;
both are closed and flushed for it. Tests put a `Session` with another gateway into the click context.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from store.errors import UsageError
from tui.cli.output import Form, Output
from tui.gateway import Gateway

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Session:
    """How commands reach a case."""

    gateway: Callable[[Path, str | None], Gateway] = Gateway
    worked: Callable[[Path], Gateway] = Gateway.worked
    second: Callable[[Path], Gateway] = Gateway.second


def on_case(*, reads: bool = True) -> Callable[[Command], Command]:
    """Give a command its gateway, and an output in the form asked for."""

    def decorate(command: Command) -> Command:
        @click.pass_context
        @functools.wraps(command)
        def wrapper(context: click.Context, /, case_slug: str | None, folder: Path | None, **words: Any) -> None:
            session = context.find_object(Session) or Session()
            gateway = session.gateway(folder or Path("."), case_slug)
            context.call_on_close(gateway.close)
            if reads:
                command(gateway, words.pop("output"), **words)
            else:
                command(gateway, **words)

        placed = with_place(wrapper)
        return with_form(placed) if reads else placed

    return decorate


def with_place(command: Command) -> Command:
    """Add `--case` and `-C`; the command gets `case_slug` and `folder`."""
    case = click.option("--case", "case_slug", metavar="SLUG", help="Which case, where the target has several.")
    target = click.option(
        "-C",
        "--target",
        "folder",
        metavar="DIR",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of livepath.toml, or one below it. [default: here]",
    )
    return case(target(command))


def with_form(command: Command) -> Command:
    """Add `--json` and `--plain`; the command gets `output`."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.option("--plain", is_flag=True, help="Print lines with tabs, nothing cut, no colour.")
    @functools.wraps(command)
    def wrapper(*things: Any, as_json: bool, plain: bool, **words: Any) -> None:
        if as_json and plain:
            raise UsageError("`--json` and `--plain` exclude each other")
        form: Form = "json" if as_json else "plain" if plain else "text"
        command(*things, output=Output.of(form), **words)

    return wrapper


def say(text: str) -> None:
    """Talk about what was done: to stderr."""
    Output().say(text)


def parse_evidence(words: tuple[str, ...]) -> list[dict[str, Any]]:
    """`run:3 reading:1` as evidence rows.

    Raises:
        UsageError: a word has another form.
    """
    rows = []
    for given in words:
        kind, _, number = given.partition(":")
        if kind not in ("run", "reading", "comparison", "finding") or not number.isdigit():
            raise UsageError(f"`{given}` is no evidence: expected run:N, reading:N, comparison:N or finding:N")
        rows.append({"kind": kind, "id": int(number)})
    return rows
