"""Runs: what waits and works, what each run measured, the end of its output and the command that repeats it."""

from __future__ import annotations

from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from store.errors import LivepathError
from store.models import Job
from tui.grids import grids_of
from tui.messages import TailRead
from tui.progress import meter
from tui.screens.base import CaseScreen, Keys
from tui.view import CaseView, RunView
from tui.widgets.grid_map import GridMap
from tui.widgets.line_view import LineView
from tui.widgets.row_list import Column, Row, RowList
from tui.widgets.signs import state_sign
from tui.widgets.spans import Span, Spans, title
from tui.widgets.text_pane import TextPane
from tui.words import run_value


class RunsScreen(CaseScreen):
    """The runs of the case, newest first."""

    NAME = "runs"
    CSS_PATH = "runs.tcss"
    HELP_TITLE = "Runs"
    KEYS: ClassVar[Keys] = (
        ("enter", "Detail"),
        ("tab", "Next pane"),
        ("t", "Output"),
        ("y", "Copy command"),
        ("x", "Stop job"),
        ("/", "Filter"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "toggle_tail", "Measurements or output, where there is no room for both"),
        Binding("y", "copy", "Copy the command that repeats this run"),
    ]

    def compose_body(self) -> ComposeResult:
        runs = RowList(
            [
                Column("", 4),
                Column("probe", 12),
                Column("arm", middle=True),
                Column("state", 9, roomy=18, hide_from=90),
                Column("state", 18, hide_below=90),
                Column("value", 14, roomy=24),
                Column("took", 6, right=True, hide_below=84),
            ],
            empty="no run yet: press ! to start the investigation",
            id="runs-list",
        )
        runs.border_title = "Runs"
        measured = GridMap(id="measured", empty="nothing measured yet by this run")
        measured.border_title = "Measured"
        tail = TextPane(id="tail", follow=True)
        tail.border_title = "Output"
        command = TextPane(id="command", indent=2)
        with Horizontal(id="runs"):
            with Vertical(id="runs-side"):
                yield TextPane(id="queue")
                yield runs
            with Vertical(id="runs-main"):
                yield measured
                yield tail
                yield command

    def on_mount(self) -> None:
        self.query_one("#command", TextPane).can_focus = False
        self.query_one("#queue", TextPane).can_focus = False
        super().on_mount()
        self.query_one("#runs-list").focus()
        self.set_interval(1.0, self._follow)

    # Showing.

    def receive(self, view: CaseView | None) -> None:
        super().receive(view)
        if self.ready and view is not None:
            self.query_one("#queue", TextPane).show(queue_lines(view.jobs))

    def show_view(self, view: CaseView) -> None:
        self.query_one("#runs-list", RowList).show([run_row(run) for run in reversed(view.runs)])
        self._show_current()

    def _current(self) -> RunView | None:
        row = self.query_one("#runs-list", RowList).row
        return self.case_view.run(int(row.key)) if row and self.case_view else None

    def _show_current(self) -> None:
        current = self._current()
        if current is None or self.case_view is None:
            return
        run = current.run
        pane = self.query_one(GridMap)
        pane.border_title = title(f"Run {run.id}: {run.probe} on {run.arm}")
        pane.show(grids_of(current, self.case_view))
        self.query_one("#command", TextPane).show([(("repeat: ", "dim"), (run.command, "plain"))])
        self._read_tail(run.id or 0)

    def _follow(self) -> None:
        current = self._current()
        if self.is_current and current and current.attempt and current.attempt.status == "running":
            self._read_tail(current.run.id or 0)

    @work(thread=True, exclusive=True, group="tail", exit_on_error=False)
    def _read_tail(self, run_id: int) -> None:
        try:
            text = self.livepath.gateway.tail(run_id)
        except (LivepathError, OSError) as error:
            text = f"the output cannot be read: {error}"
        self.post_message(TailRead(run_id, text))

    @on(TailRead)
    def _tail_read(self, message: TailRead) -> None:
        current = self._current()
        if current is None or current.run.id != message.run_id:
            return
        lines: list[Spans] = [((line, "plain"),) for line in message.text.splitlines()]
        if current.attempt is not None and current.attempt.reason:
            lines.append(((current.attempt.reason, "warn"),))
        self.query_one("#tail", TextPane).show(lines or [(("no output", "dim"),)])

    @on(LineView.Highlighted, "#runs-list")
    def _highlighted(self) -> None:
        self._show_current()

    @on(LineView.Chosen, "#runs-list")
    def _chosen(self) -> None:
        current = self._current()
        if current is not None:
            self.livepath.open_page(f"Run {current.run.id}", run_page(current))

    # Doing.

    def action_toggle_tail(self) -> None:
        self.toggle_class("-tail")

    def action_copy(self) -> None:
        current = self._current()
        if current is None:
            self.livepath.tell("no run under the cursor")
            return
        self.app.copy_to_clipboard(current.run.command)
        self.livepath.tell("the command is in the terminal's clipboard; it also stands below")


def queue_lines(jobs: tuple[Job, ...]) -> list[Spans]:
    """The jobs that run or wait, one line each; else how the last one ended."""
    open_jobs = [job for job in jobs if job.state in ("running", "queued")]
    lines: list[Spans] = []
    for job in open_jobs[:4]:
        about = str(job.argument.get("patch", "")) if job.argument else ""
        lines.append((*meter(job, 6), (f"  {about} {job.note}", "dim")))
    if len(open_jobs) > 4:
        lines.append(((f"and {len(open_jobs) - 4} more waiting", "dim"),))
    if not lines and jobs:
        lines.append((*meter(jobs[-1], 0), (f"  {jobs[-1].message}", "dim")))
    return lines or [(("no work asked for: press ! to start the investigation", "dim"),)]


def run_row(view: RunView) -> Row:
    attempt = view.attempt
    state: Span = state_sign(attempt.status).span if attempt else ("· waiting", "dim")
    took = f"{attempt.wall_s:.1f}s" if attempt and attempt.wall_s is not None else ""
    return Row(
        str(view.run.id),
        (
            (f"{view.run.id}", "dim"),
            (view.run.probe, "plain"),
            (view.run.arm, "plain"),
            state,
            state,
            (run_value(view), "plain"),
            (took, "dim"),
        ),
    )


def run_page(view: RunView) -> list[Spans]:
    """All that is known of a run."""
    run, attempt = view.run, view.attempt
    page: list[Spans] = [
        ((f"{run.probe} on {run.arm}", "strong"),),
        ((f"tree {run.tree[:12]}  seed {run.seed}  {run.instrumentation}", "dim"),),
        ((f"patches: {', '.join(run.patches) or 'none'}", "plain"),),
        (),
    ]
    if attempt is not None:
        sign = state_sign(attempt.status)
        exit_words = f"  exit {attempt.exit_code}" if attempt.exit_code is not None else ""
        page.append((sign.span, (f"  attempt {attempt.number}{exit_words}", "dim")))
        if attempt.reason:
            page.append(((attempt.reason, "plain"),))
        traced = (
            "fully traced" if attempt.fully_traced else "not fully traced: " + (", ".join(attempt.blind) or "unknown")
        )
        page.append(((traced, "plain"),))
        if attempt.unreadable_events:
            page.append(((f"{attempt.unreadable_events} lines of events could not be read", "warn"),))
        if attempt.stderr_tail:
            page += [(), (("stderr", "head"),), ((attempt.stderr_tail, "plain"),)]
    page += [(), (("repeat it", "head"),), ((run.command, "plain"),)]
    return page
