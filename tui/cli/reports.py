"""`livepath report`: the case as text, Markdown or JSON."""

from __future__ import annotations

import json
from pathlib import Path

import click

from store.errors import StoreError, UsageError
from tui.cli.output import Output
from tui.cli.session import on_case, say
from tui.gateway import Gateway
from tui.text.layout import Page
from tui.text.report import report_lines


@click.command()
@click.option("--markdown", is_flag=True, help="For a pull request.")
@click.option("-o", "--to", "path", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file instead.")
@on_case()
def report(gateway: Gateway, output: Output, markdown: bool, path: Path | None) -> None:
    """Print the case: symptom, rule-out, path evidence, findings with diffs, what is not verified."""
    if markdown and output.form == "json":
        raise UsageError("`--markdown` and `--json` exclude each other")
    if path is None:
        output.lines([report_text(gateway, output, markdown=markdown)])
        return
    text = report_text(gateway, Output(output.form, Page(width=100)), markdown=markdown)
    try:
        path.write_text(text + "\n", encoding="utf-8", errors="replace")
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}", hint="name another file") from error
    say(f"the report is in {path}")


def report_text(gateway: Gateway, output: Output, *, markdown: bool = False) -> str:
    """The report in the form asked for."""
    built = gateway.report()
    if markdown:
        return gateway.markdown(built).rstrip("\n")
    if output.form == "json":
        return json.dumps(built, indent=2, allow_nan=False)
    return "\n".join(report_lines(built, output.page))
