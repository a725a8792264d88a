"""`livepath judge`: the check for plain `git bisect run`."""

from __future__ import annotations

from pathlib import Path

import click

from tui.cli.output import Output
from tui.cli.session import say, with_form
from tui.gateway import judge_checkout
from tui.text import words
from tui.text.layout import Cell


@click.command()
@click.argument("probe")
@click.option("--live", default="", metavar="PATH[:A-B][@REV]", help="Lines that must run, or the commit is skipped.")
@click.option(
    "-C",
    "--target",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of livepath.toml, or one below it. [default: here]",
)
@with_form
def judge(probe: str, live: str, folder: Path | None, output: Output) -> None:
    """Judge the checked-out commit by PROBE, with the exit code that `git bisect run` wants.

    0 good, 1 bad, 125 cannot be tested or void (the lines named by --live did not run), 128 where the words make no
    sense or the machine failed. The commit runs in a worktree of its own, and the same tree is run once only.
    """
    sentence = judge_checkout(folder or Path("."), probe, live, say)
    for name in sentence.dirty[:3]:
        say(f"{name} has uncommitted changes, which take no part")
    fields = [
        ("verdict", words.word(sentence.state.replace(" ", "_"))),
        ("probe", Cell(sentence.probe)),
        ("commit", Cell(sentence.commit)),
        ("why", Cell(sentence.reason)),
    ]
    output.thing(sentence.as_data(), fields)
    raise click.exceptions.Exit(sentence.exit_code)
