"""The root command: the verbs, and what happens without one."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tui.cli import bisect, cases, findings, judge, patches, readings, record, reports, runs, sessions, thoughts, worked
from tui.cli.output import Output
from tui.cli.session import Session, with_form, with_place

_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(invoke_without_command=True, context_settings=_HELP, no_args_is_help=False)
@click.option("--headless", is_flag=True, help="Investigate without a screen and print the report.")
@click.option("--version", "show_version", is_flag=True, help="Print the version.")
@with_place
@with_form
@click.pass_context
def livepath(
    context: click.Context,
    headless: bool,
    show_version: bool,
    case_slug: str | None,
    folder: Path | None,
    output: Output,
) -> None:
    """Hunt silent regressions in inference engines: which patch did it, and did its lines run at all.

    Without a verb the screen opens on the case of the target here; where there is no target, on the worked case of the
    embedded engine in `.demo`, whose investigation starts at once. `--headless`, or output that is no terminal,
    investigates without a screen and prints the report.
    """
    if context.invoked_subcommand is not None:
        if headless or output.form != "text" or case_slug or folder:
            raise click.UsageError(f"put options after the verb: livepath {context.invoked_subcommand} ...")
        return
    if show_version:
        from lab.version import livepath_version

        click.echo(f"livepath {livepath_version()}")
        return
    session = context.find_object(Session) or Session()
    if not headless and output.form == "text" and sys.stdin.isatty() and sys.stdout.isatty():
        worked.open_screen(session, folder, case_slug)
    else:
        worked.investigate(session, output, folder, case_slug)


for command in (
    worked.demo,
    cases.case,
    patches.patch,
    thoughts.question,
    thoughts.hypothesis,
    thoughts.assumption,
    readings.reading,
    readings.live,
    runs.run,
    runs.ab,
    bisect.bisect,
    judge.judge,
    sessions.session,
    findings.finding,
    reports.report,
    record.search,
    record.log,
    record.undo,
):
    livepath.add_command(command)
