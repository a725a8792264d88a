"""Bisect: the searches of the stack, and on the stack itself where each prefix that was tried turned worse."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from store.models import Bisect
from tui.screens.base import CaseScreen, Field, Keys
from tui.view import CaseView, SuspectView
from tui.widgets.diff_view import DiffView
from tui.widgets.line_view import LineView
from tui.widgets.row_list import Column, Row, RowList
from tui.widgets.signs import Sign, verdict_sign
from tui.widgets.spans import Span, Spans, title
from tui.widgets.text_pane import TextPane
from tui.words import number, suspect_page

_OUTCOMES: dict[str, Sign] = {
    "": Sign("►", "searching", "cool"),
    "culprit": Sign("✗", "culprit", "bad"),
    "not reproduced": Sign("~", "not reproduced", "warn"),
    "older than the stack": Sign("~", "older", "warn"),
    "inconclusive": Sign("~", "inconclusive", "warn"),
}
_STEPS: dict[str, Sign] = {
    "worse": Sign("✗", "worse", "bad"),
    "better": Sign("+", "better", "good"),
    "equivalent": Sign("✓", "equivalent", "good"),
    "undecided": Sign("~", "undecided", "warn"),
    "cannot_be_tested": Sign("!", "cannot test", "warn"),
}
_BRACKET = "bracket "


class BisectScreen(CaseScreen):
    """The stack in order, with trials and verdicts."""

    NAME = "bisect"
    CSS_PATH = "bisect.tcss"
    HELP_TITLE = "Bisect"
    KEYS: ClassVar[Keys] = (("enter", "Patch"), ("tab", "Next pane"), ("c", "Start a bisect"), ("x", "Stop job"))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "start_bisect", "Search the stack with one probe for what makes it worse"),
    ]

    def compose_body(self) -> ComposeResult:
        searches = RowList(
            [
                Column("probe", 12),
                Column("against", 10),
                Column("outcome", 16),
                Column("culprit"),
                Column("sure", 6, right=True),
            ],
            empty="no search yet: press c to search the stack with one probe",
            id="searches",
        )
        searches.border_title = "Searches"
        stack = RowList(
            [
                Column("", 2, right=True),
                Column("patch", 24, roomy=30),
                Column("up to here", 14),
                Column("difference", 12, roomy=20, hide_below=60),
                Column("verdict"),
            ],
            empty="the stack is being read",
            id="stack",
        )
        stack.border_title = "Stack, first patch first"
        said = TextPane(id="said", indent=2)
        said.border_title = "Trials"
        diff = DiffView(id="bisect-diff", empty="the diff of the patch under the cursor")
        with Horizontal(id="bisect"):
            with Vertical(id="bisect-side"):
                yield searches
                yield stack
                yield said
            yield diff

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#searches" if self.case_view and self.case_view.bisects else "#stack").focus()

    def show_view(self, view: CaseView) -> None:
        self.query_one("#searches", RowList).show([_search_row(search) for search in reversed(view.bisects)])
        self._show_stack()

    def _current(self) -> Bisect | None:
        row = self.query_one("#searches", RowList).row
        if row is None or self.case_view is None:
            return None
        return next((search for search in self.case_view.bisects if str(search.id) == row.key), None)

    def _show_stack(self) -> None:
        view, search = self.case_view, self._current()
        if view is None:
            return
        patches = sorted((s for s in view.suspects if s.patch.role == "stack"), key=lambda s: s.patch.position)
        self.query_one("#stack", RowList).show([_stack_row(suspect, search) for suspect in patches])
        self.query_one("#said", TextPane).show(trial_lines(search))
        self._show_diff()

    def _suspect(self) -> SuspectView | None:
        row = self.query_one("#stack", RowList).row
        return self.case_view.suspect(row.key) if row and self.case_view else None

    @on(LineView.Highlighted, "#stack")
    def _show_diff(self) -> None:
        suspect = self._suspect()
        if suspect is not None:
            pane = self.query_one(DiffView)
            pane.border_title = title(f"Diff of {suspect.patch.name}")
            pane.show(suspect.patch.diff, suspect.liveness.lines if suspect.liveness else ())

    @on(LineView.Highlighted, "#searches")
    def _highlighted(self) -> None:
        self._show_stack()

    @on(LineView.Chosen, "#stack")
    def _chosen(self) -> None:
        suspect = self._suspect()
        if suspect is not None and self.case_view is not None:
            self.livepath.open_page(suspect.patch.name, suspect_page(suspect, self.case_view))

    def action_start_bisect(self) -> None:
        gateway = self.livepath.gateway
        self.livepath.open_form(
            "Search the stack",
            [Field(name="probe", label="Probe (empty: the target's first)", placeholder="scaling")],
            lambda words: gateway.start_bisect(words["probe"]),
            explain="Ends first, then halves. What crashes or needs another patch is never called bad.",
        )


def _search_row(search: Bisect) -> Row:
    sure = f"{100 * search.confidence:.1f}%" if search.confidence is not None else ""
    return Row(
        str(search.id),
        (
            (search.probe, "plain"),
            (search.background, "plain"),
            _OUTCOMES[search.outcome].span,
            (", ".join(search.culprits), "strong"),
            (sure, "plain"),
        ),
    )


def _steps_at(search: Bisect | None, patch: str) -> list[dict[str, object]]:
    """The trials of the prefix that ends with this patch, the bracket last."""
    return [dict(step) for step in search.steps if step.get("last") == patch] if search else []


def step_sign(outcome: str) -> Sign:
    return _STEPS.get(outcome.removeprefix(_BRACKET), Sign("?", outcome, "warn"))


def _difference(step: dict[str, object]) -> str:
    value, n = step.get("difference"), step.get("n")
    return f"{number(value, sign=True)} n={n}" if isinstance(value, float) else ""


def _stack_row(suspect: SuspectView, search: Bisect | None) -> Row:
    patch = suspect.patch
    steps = _steps_at(search, patch.name)
    sign: Span = step_sign(str(steps[-1].get("outcome", ""))).span if steps else ("·", "dim")
    if search is not None and patch.name in search.culprits:
        sign = ("✗ first bad", "bad")
    verdict = verdict_sign(suspect.verdict.verdict if suspect.verdict else None)
    return Row(
        patch.name,
        (
            (str(patch.position + 1), "dim"),
            (patch.name, "plain"),
            sign,
            (_difference(steps[-1]) if steps else "", "plain"),
            verdict.span,
        ),
    )


def trial_lines(search: Bisect | None) -> list[Spans]:
    """What came of the search, then its trials in the order they were made."""
    if search is None:
        return [(("the trials of the search under the cursor", "dim"),)]
    lines: list[Spans] = []
    head: Span
    difference: Span
    if search.text:
        lines.append(((search.text, "strong"),))
    for count, step in enumerate(search.steps, start=1):
        outcome = str(step.get("outcome", ""))
        kind = "bracket, fresh items: " if outcome.startswith(_BRACKET) else "up to "
        place = f"{kind}{step.get('last', '')}"
        head, difference = (f"{count:>2}  ", "dim"), (f"  {_difference(dict(step))}", "dim")
        lines.append((head, (f"{place}  ", "plain"), step_sign(outcome).span, difference))
    return lines or [(("the ends are being measured", "dim"),)]
