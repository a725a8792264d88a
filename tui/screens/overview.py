"""Overview: the suspects by tier, what was asked and thought, what was ruled out, what happened last."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from tui.progress import meter
from tui.screens.base import CaseScreen, Field, Keys
from tui.widgets.line_view import LineView
from tui.widgets.row_list import Column, Row, RowList
from tui.widgets.signs import state_sign, verdict_sign
from tui.widgets.spans import Span, Spans
from tui.widgets.text_pane import TextPane
from tui.words import (
    comparison_words,
    evidence_words,
    hypothesis_page,
    liveness_span,
    prediction_words,
    suspect_page,
    verdict_page,
    verdict_words,
)

if TYPE_CHECKING:
    from tui.view import CaseView, Event, RuleOut, SuspectView

_LOWER = ("thoughts", "ruled", "events")
_TITLES = {"thoughts": "Questions and hypotheses", "ruled": "Rule-out table", "events": "Last events"}
_TIMES = {"run": "run", "verdict": "verdict", "finding": "finding", "withdrawn": "withdrawn", "job": "job"}


class OverviewScreen(CaseScreen):
    """The board: what the case knows now."""

    NAME = "overview"
    CSS_PATH = "overview.tcss"
    HELP_TITLE = "Overview"
    KEYS: ClassVar[Keys] = (
        ("enter", "Detail"),
        ("tab", "Next pane"),
        ("a", "Add hypothesis"),
        ("b", "Start A/B"),
        ("/", "Filter"),
        ("!", "Investigate"),
        ("x", "Stop job"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "pane(1)", "Next pane", show=False, priority=True),
        Binding("shift+tab", "pane(-1)", "Pane before", show=False, priority=True),
        Binding("a", "add_hypothesis", "Add a hypothesis with a prediction"),
        Binding("b", "start_ab", "Start an A/B of the patch under the cursor"),
    ]

    def compose_body(self) -> ComposeResult:
        suspects = RowList(
            [
                Column("", 3),
                Column("patch", 24, roomy=26),
                Column("verdict", 18),
                Column("lines ran", 9, roomy=16),
                Column("evidence", hide_from=100),
                Column("evidence", hide_below=100),
            ],
            empty="no patch under suspicion yet: the case is being opened",
            id="suspects",
        )
        thoughts = RowList(
            [
                Column("", 3),
                Column("state", 12),
                Column("question, hypothesis, assumption", weight=3),
                Column("answer, reason or prediction", weight=2, hide_below=86),
            ],
            empty="no question, no hypothesis yet: press a to add one",
            id="thoughts",
        )
        ruled = RowList(
            [
                Column("patch", 24, roomy=26),
                Column("verdict", 18),
                Column("probe", 12),
                Column("background", 12, hide_below=72),
                Column("evidence", hide_below=90),
            ],
            empty="nothing judged yet: verdicts appear here as they fall",
            id="ruled",
        )
        events = RowList(
            [Column("UTC", 8), Column("what", 9), Column("")],
            empty="nothing happened yet: press ! to start the investigation",
            id="events",
        )
        suspects.border_title = "Suspects"
        detail = TextPane(id="detail", indent=2)
        detail.border_title = "Under the cursor"
        with Horizontal(id="overview"):
            with Vertical(id="overview-left"):
                yield suspects
                yield ruled
            with Vertical(id="overview-right"):
                yield thoughts
                yield detail
                yield events

    def on_mount(self) -> None:
        self._show_lower("thoughts")
        super().on_mount()
        self.query_one("#suspects").focus()

    # Panes.

    def _show_lower(self, name: str) -> None:
        """In a small terminal one lower pane is shown at a time, and its title says what tab leads to."""
        for other in _LOWER:
            self.set_class(other == name, f"-at-{other}")
            pane = self.query_one(f"#{other}", RowList)
            rest = " · ".join(_TITLES[title] for title in _LOWER if title != other)
            pane.border_title = _TITLES[other]
            pane.border_subtitle = f"tab: {rest}" if self.size.height < 35 else ""

    def on_resize(self) -> None:
        self._show_lower(next(name for name in _LOWER if self.has_class(f"-at-{name}")))

    def action_pane(self, step: int) -> None:
        order = ("suspects", *_LOWER)
        focused = self.focused.id if self.focused is not None else ""
        at = order.index(focused) if focused in order else -1
        name = order[(at + step) % len(order)]
        if name in _LOWER:
            self._show_lower(name)
        self.query_one(f"#{name}", RowList).focus()

    # Showing.

    def show_view(self, view: CaseView) -> None:
        self.query_one("#suspects", RowList).show(suspect_rows(view))
        self.query_one("#thoughts", RowList).show(thought_rows(view))
        self.query_one("#ruled", RowList).show([_ruled_row(rule) for rule in view.ruled])
        self.query_one("#events", RowList).show([_event_row(n, event) for n, event in enumerate(view.events)])
        self._show_detail()

    def receive(self, view: CaseView | None) -> None:
        super().receive(view)
        if self.ready:
            events = self.query_one("#events", RowList)
            note = view.job.note if view and view.job and view.job.state == "running" else ""
            self.query_one("#suspects", RowList).border_subtitle = (
                _plain(meter(view.job, 0), note) if note and view else ""
            )
            if view is None:
                events.empty = self.livepath.waiting

    def _page(self, row: Row | None) -> tuple[str, list[Spans]]:
        """Title and text of what is on record behind a row of any pane."""
        view = self.case_view
        if row is None or view is None:
            return "", []
        kind, _, key = row.key.partition(":")
        if kind == "patch" and (suspect := view.suspect(key)):
            return key, suspect_page(suspect, view)
        if kind == "hypothesis":
            hypothesis = next(item for item in view.hypotheses if str(item.id) == key)
            return f"Hypothesis {key}", hypothesis_page(hypothesis, view)
        if kind == "question":
            question = next(item for item in view.questions if str(item.id) == key)
            answer = question.answer or "not answered yet"
            page: list[Spans] = [
                ((question.text, "strong"),),
                (state_sign(question.state).span,),
                (),
                ((answer, "plain"),),
            ]
            for row_of in question.evidence:
                where = f"{row_of.get('path', '')}:{row_of.get('start', '')}" if row_of.get("path") else ""
                page.append(((f"  {where}  {row_of.get('text', '')}", "dim"),))
            return f"Question {key}", page
        if kind == "assumption":
            assumption = next(item for item in view.assumptions if str(item.id) == key)
            page = [
                ((assumption.text, "strong"),),
                (state_sign(assumption.state).span,),
                ((assumption.reason, "plain"),),
            ]
            return f"Assumption {key}", page
        if kind == "verdict":
            rule = next(item for item in view.ruled if str(item.verdict.id) == key)
            return rule.verdict.patch, verdict_page(rule.verdict, rule.comparison, view)
        return "Event", [((text, tone),) for text, tone in row.cells]

    def _show_detail(self) -> None:
        focused = self.focused
        target = focused if isinstance(focused, RowList) else self.query_one("#suspects", RowList)
        title, page = self._page(target.row)
        self.query_one("#detail", TextPane).show(page or [(("nothing under the cursor", "dim"),)])
        if title:
            self.query_one("#detail", TextPane).border_subtitle = ""

    def on_descendant_focus(self) -> None:
        self._show_detail()

    @on(LineView.Highlighted)
    def _highlighted(self) -> None:
        self._show_detail()

    @on(LineView.Chosen)
    def _chosen(self, message: LineView.Chosen) -> None:
        if isinstance(message.view, RowList):
            title, page = self._page(message.view.row)
            if page:
                self.livepath.open_page(title, page)

    # Doing.

    def action_add_hypothesis(self) -> None:
        gateway = self.livepath.gateway
        self.livepath.open_form(
            "Add a hypothesis",
            [
                Field(name="text", label="Statement", required=True, placeholder="fp8 precision loses the needle"),
                Field(
                    name="prediction",
                    label="Prediction: probe.metric on arm OP number (empty: a person judges)",
                    placeholder="needle.recall[length>=1024] on full+fix >= 0.95",
                ),
                Field(name="refuted_if", label="What would refute it"),
            ],
            lambda words: gateway.add_hypothesis(words["text"], words["prediction"], words["refuted_if"]),
            explain="A prediction must be written before the runs that decide it.",
        )

    def action_start_ab(self) -> None:
        gateway = self.livepath.gateway
        row = self.query_one("#suspects", RowList).row
        name = row.key.partition(":")[2] if row else ""
        self.livepath.open_form(
            "Start an A/B",
            [
                Field(name="patch", label="Patch", value=name, required=True),
                Field(name="probe", label="Probe (empty: every probe that concerns it)", placeholder="needle"),
            ],
            lambda words: gateway.start_ab(words["patch"], words["probe"]),
            explain="With the patch against without it, in a process of its own: closing the screen stops nothing.",
        )


def _plain(spans: Spans, note: str) -> str:
    from tui.widgets.spans import title

    return title(f"{''.join(text for text, _ in spans)}  {note}").plain


def suspect_rows(view: CaseView) -> list[Row]:
    """The stack by tier, the most likely first, then the candidates."""

    def order(suspect: SuspectView) -> tuple[bool, int, int]:
        return (suspect.patch.role != "stack", suspect.patch.tier or 99, suspect.patch.position)

    rows = []
    for suspect in sorted(view.suspects, key=order):
        patch = suspect.patch
        tier: Span = (
            ("fix", "cool") if patch.role == "candidate" else (f"T{patch.tier}" if patch.tier else "-", "plain")
        )
        rows.append(
            Row(
                f"patch:{patch.name}",
                (
                    tier,
                    (patch.name, "plain"),
                    verdict_sign(suspect.verdict.verdict if suspect.verdict else None).span,
                    liveness_span(suspect.liveness),
                    (evidence_words(suspect, view, short=True), "dim"),
                    (evidence_words(suspect, view), "dim"),
                ),
            )
        )
    return rows


def thought_rows(view: CaseView) -> list[Row]:
    """Questions first (cheap, before any run), then hypotheses, then assumptions."""
    rows: list[Row] = []
    for question in view.questions:
        sign = state_sign(question.state).span
        cells: tuple[Span, ...] = (f"Q{question.id}", "dim"), sign, (question.text, "plain"), (question.answer, "dim")
        rows.append(Row(f"question:{question.id}", cells))
    for hypothesis in view.hypotheses:
        sign = state_sign(hypothesis.state).span
        said: Span = (hypothesis.reason or prediction_words(hypothesis), "dim")
        rows.append(
            Row(f"hypothesis:{hypothesis.id}", ((f"H{hypothesis.id}", "dim"), sign, (hypothesis.text, "plain"), said))
        )
    for assumption in view.assumptions:
        sign = state_sign(assumption.state).span
        cells = (f"A{assumption.id}", "dim"), sign, (assumption.text, "plain"), (assumption.reason, "dim")
        rows.append(Row(f"assumption:{assumption.id}", cells))
    return rows


def _ruled_row(rule: RuleOut) -> Row:
    verdict = rule.verdict
    evidence = comparison_words(rule.comparison) if rule.comparison else verdict_words(verdict) or verdict.reason
    return Row(
        f"verdict:{verdict.id}",
        (
            (verdict.patch, "plain"),
            verdict_sign(verdict.verdict).span,
            (verdict.probe or "-", "plain"),
            (verdict.background or "-", "dim"),
            (evidence, "dim"),
        ),
    )


def _event_row(number: int, event: Event) -> Row:
    sign = state_sign(event.sign) if event.sign else None
    text: Span = (f"{sign.glyph} {event.text}" if sign else event.text, "plain")
    return Row(f"event:{number}", ((event.when_utc[11:19], "dim"), (_TIMES.get(event.kind, event.kind), "cool"), text))
