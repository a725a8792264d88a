"""An investigation from end to end: `livepath` without words, `livepath --headless`, and `livepath demo`."""

from __future__ import annotations

from pathlib import Path

import click

from tui.cli.output import Output, Row
from tui.cli.progress import wait_for
from tui.cli.reports import report_text
from tui.cli.session import Session, say, with_form
from tui.gateway import DEMO, has_target
from tui.text.layout import Cell

_FOLDER = click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path, file_okay=False))


def investigate(session: Session, output: Output, folder: Path | None, slug: str | None) -> None:
    """Run what a case still needs and print its report.

    The case is that of the target here or above, or the one named; where there is no target, the worked case of the
    demo, made now where it is missing.
    """
    if folder is None and slug is None and not has_target(Path.cwd()):
        gateway = session.worked(Path(DEMO))
    else:
        gateway = session.gateway(folder or Path("."), slug)
    try:
        job = wait_for(gateway, gateway.submit("investigate"))
        output.lines([report_text(gateway, output)])
        say(job.message)
    finally:
        gateway.close()


@click.command()
@_FOLDER
@click.option("--sight", is_flag=True, help="Measure which probe sees which planted fault, and print the table.")
@with_form
@click.pass_context
def demo(context: click.Context, folder: Path | None, sight: bool, output: Output) -> None:
    """Make the demo repository and its case in DIR, `.demo` when left out; running nothing yet.

    The repository holds the embedded engine with its stack of patches as commits; candidates and planted faults lie
    beside livepath.toml as patch files.
    """
    session = context.find_object(Session) or Session()
    directory = folder or Path(DEMO)
    gateway = session.worked(directory)
    context.call_on_close(gateway.close)
    if not sight:
        info = gateway.store.case()
        made = {"repository": info.repo, "case": info.slug, "base": info.base, "head": info.head}
        output.thing(made, list(made.items()))
        where = "" if folder is None else f" -C {directory}"
        say(f"`livepath patch list{where}` shows the suspects, `livepath --headless{where}` investigates")
        return
    wait_for(gateway, gateway.submit("sight"))
    found = gateway.store.meta("sight", [])
    head = ("probe", "kind", "", "planted fault", "measured")
    output.rows(found, head, _sight, prose=4, empty="no control is declared in livepath.toml")


def _sight(row: dict[str, object]) -> Row:
    seen = Cell("sees it", "good") if row["seen"] else Cell("blind", "warn")
    return str(row["probe"]), str(row["kind"]), seen, str(row["control"]), f"{row['text']} on {row['background']}"
