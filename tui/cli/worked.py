"""An investigation from end to end: `livepath` without words, `livepath --headless`, and `livepath demo`."""

from __future__ import annotations

from pathlib import Path

import click

from tui.cli.output import Output, Row
from tui.cli.progress import wait_for
from tui.cli.reports import report_text
from tui.cli.session import Session, say, with_form
from tui.gateway import DEMO, SECOND_DEMO, Gateway, has_target
from tui.text.layout import Cell

_FOLDER = click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path, file_okay=False))


def investigate(session: Session, output: Output, folder: Path | None, slug: str | None) -> None:
    """Run what a case still needs and print its report.

    The case is that of the target here or above, or the one named; where there is no target, the worked case of the
    demo, made now where it is missing.
    """
    gateway = _gateway(session, folder, slug)
    try:
        job = wait_for(gateway, gateway.submit("investigate"))
        output.lines([report_text(gateway, output)])
        say(job.message)
    finally:
        gateway.close()


def open_screen(session: Session, folder: Path | None, slug: str | None) -> None:
    """Open the screen; the worked case's investigation starts at once, a case of one's own waits for its key."""
    from tui.app import run_app
    from tui.door import Door

    run_app(Door(lambda: _gateway(session, folder, slug), investigate=_is_worked(folder, slug)))


def _is_worked(folder: Path | None, slug: str | None) -> bool:
    return folder is None and slug is None and not has_target(Path.cwd())


def _gateway(session: Session, folder: Path | None, slug: str | None) -> Gateway:
    """The case that was named, or the worked one."""
    return session.worked(Path(DEMO)) if _is_worked(folder, slug) else session.gateway(folder or Path("."), slug)


@click.command()
@_FOLDER
@click.option("--chapter", type=click.IntRange(1, 2), default=1, help="Which part of the story. [default: 1]")
@click.option("--sight", is_flag=True, help="Measure which probe sees which planted fault, and print the table.")
@with_form
@click.pass_context
def demo(context: click.Context, folder: Path | None, chapter: int, sight: bool, output: Output) -> None:
    """Make the demo repository and its case in DIR, `.demo` when left out; running nothing yet.

    The repository holds the embedded engine with its stack of patches as commits; candidates and planted faults lie
    beside livepath.toml as patch files. The second chapter, in `.demo-2` when DIR is left out, is a case for `livepath
    bisect`: the fix went in, and with it one more patch.
    """
    session = context.find_object(Session) or Session()
    directory = folder or Path(DEMO if chapter == 1 else SECOND_DEMO)
    gateway = (session.worked if chapter == 1 else session.second)(directory)
    context.call_on_close(gateway.close)
    if not sight:
        info = gateway.store.case()
        made = {"repository": info.repo, "case": info.slug, "base": info.base, "head": info.head}
        output.thing(made, list(made.items()))
        where = "" if folder is None and chapter == 1 else f" -C {directory}"
        work = "livepath --headless" if chapter == 1 else "livepath bisect start --probe scaling"
        does = "investigates" if chapter == 1 else "names the patch"
        say(f"`livepath patch list{where}` shows the suspects, `{work}{where}` {does}")
        return
    wait_for(gateway, gateway.submit("sight"))
    found = gateway.store.meta("sight", [])
    head = ("probe", "kind", "", "planted fault", "measured")
    output.rows(found, head, _sight, prose=4, empty="no control is declared in livepath.toml")


def _sight(row: dict[str, object]) -> Row:
    seen = Cell("sees it", "good") if row["seen"] else Cell("blind", "warn")
    return str(row["probe"]), str(row["kind"]), seen, str(row["control"]), f"{row['text']} on {row['background']}"
