"""Findings: each claim beside its diff, with the liveness of the changed lines and the evidence it rests on."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from tui.screens.base import CaseScreen, Field, Keys
from tui.view import CaseView, FindingView
from tui.widgets.diff_view import DiffView
from tui.widgets.line_view import LineView
from tui.widgets.row_list import Column, Row, RowList
from tui.widgets.signs import verdict_sign
from tui.widgets.spans import Span, Spans, title
from tui.widgets.text_pane import TextPane
from tui.words import comparison_words, run_name


class FindingsScreen(CaseScreen):
    """What the case claims, and what each claim rests on."""

    NAME = "findings"
    CSS_PATH = "findings.tcss"
    HELP_TITLE = "Findings"
    KEYS: ClassVar[Keys] = (
        ("enter", "Evidence"),
        ("tab", "Next pane"),
        ("[ ]", "Hunk"),
        ("w", "Withdraw"),
        ("/", "Filter"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "withdraw", "Withdraw the finding under the cursor, with a reason"),
        Binding("right_square_bracket", "hunk(1)", "Next hunk of the diff", key_display="]"),
        Binding("left_square_bracket", "hunk(-1)", "Hunk before", key_display="["),
    ]

    def compose_body(self) -> ComposeResult:
        findings = RowList(
            [Column("", 3), Column("verdict", 18), Column("claim")],
            empty="no finding yet: they appear when the evidence is in",
            id="findings-list",
        )
        findings.border_title = "Findings"
        claim = TextPane(id="claim", indent=2)
        claim.border_title = "Claim and evidence"
        diff = DiffView(id="diff", empty="the diff of the finding under the cursor")
        diff.border_title = "Diff"
        with Horizontal(id="findings"):
            with Vertical(id="findings-side"):
                yield findings
                yield claim
            yield diff

    def on_mount(self) -> None:
        self.query_one("#claim", TextPane).can_focus = False
        super().on_mount()
        self.query_one("#findings-list").focus()

    def show_view(self, view: CaseView) -> None:
        self.query_one("#findings-list", RowList).show([finding_row(finding) for finding in view.findings])
        self._show_current()

    def _current(self) -> FindingView | None:
        row = self.query_one("#findings-list", RowList).row
        if row is None or self.case_view is None:
            return None
        return next((view for view in self.case_view.findings if str(view.finding.id) == row.key), None)

    def _show_current(self) -> None:
        current, view = self._current(), self.case_view
        if current is None or view is None:
            return
        self.query_one("#claim", TextPane).show(claim_page(current, view))
        self.set_class(not current.finding.diff, "-no-diff")
        diff = self.query_one(DiffView)
        diff.border_title = title(f"Diff of {current.finding.patch}" if current.finding.patch else "No diff")
        diff.border_subtitle = title(
            f"signs: {run_name(view, current.run_id)}" if current.run_id is not None else "no run has traced this patch"
        )
        diff.show(current.finding.diff, current.lines)

    @on(LineView.Highlighted, "#findings-list")
    def _highlighted(self) -> None:
        self._show_current()

    @on(LineView.Chosen, "#findings-list")
    def _chosen(self) -> None:
        current = self._current()
        if current is not None and self.case_view is not None:
            self.livepath.open_page(f"Finding {current.finding.id}", claim_page(current, self.case_view))

    def action_hunk(self, step: int) -> None:
        self.query_one(DiffView).next_hunk(step)

    def action_withdraw(self) -> None:
        current = self._current()
        if current is None or current.finding.id is None:
            self.livepath.tell("no finding under the cursor")
            return
        if current.finding.withdrawn_utc:
            self.livepath.tell("this finding is withdrawn already")
            return
        id = current.finding.id
        gateway = self.livepath.gateway
        self.livepath.open_form(
            f"Withdraw finding {id}",
            [Field(name="reason", label="Reason", required=True, placeholder="why it no longer holds")],
            lambda words: gateway.withdraw_finding(id, words["reason"]),
            explain=current.finding.claim,
        )


def finding_row(view: FindingView) -> Row:
    finding = view.finding
    sign = verdict_sign(finding.verdict)
    state: Span = sign.span if finding.verdict else ("· claim", "dim")
    if finding.withdrawn_utc:
        state = ("- withdrawn", "dim")
    elif finding.flagged:
        state = ("! flagged", "warn")
    tone: Span = (finding.claim, "dim" if finding.withdrawn_utc else "plain")
    return Row(str(finding.id), ((f"F{finding.id}", "dim"), state, tone))


def claim_page(view: FindingView, case: CaseView) -> list[Spans]:
    """The claim and all it rests on."""
    finding = view.finding
    page: list[Spans] = [((finding.claim, "strong"),)]
    state = verdict_sign(finding.verdict).span if finding.verdict else ("no verdict", "dim")
    patch: Span = (f"   patch {finding.patch}  {finding.patch_id[:12]}" if finding.patch else "", "dim")
    page.append((state, patch))
    if finding.withdrawn_utc:
        page.append(((f"withdrawn {finding.withdrawn_utc}: ", "warn"), (finding.withdrawn_reason, "plain")))
    if finding.flagged:
        page.append((("flagged: ", "warn"), (finding.flagged, "plain")))
    page += [_evidence(row, case) for row in finding.evidence]
    if not finding.evidence:
        page.append((("rests on no run and no reading", "warn"),))
    return page


def _evidence(row: dict[str, object], case: CaseView) -> Spans:
    kind, id = str(row.get("kind", "")), row.get("id")
    if kind == "run" and isinstance(id, int):
        return (("evidence  ", "dim"), (run_name(case, id), "plain"))
    if kind == "comparison":
        found = next((rule.comparison for rule in case.ruled if rule.comparison and rule.comparison.id == id), None)
        if found is not None:
            arms = f"{found.with_arm} against {found.without_arm}: "
            return (("compared  ", "dim"), (arms + comparison_words(found), "plain"))
    if kind == "reading" and isinstance(id, int) and (reading := case.reading(id)):
        where = f"{reading.reading.path}:{reading.reading.start}-{reading.reading.end}"
        return (("reading   ", "dim"), (f"{where} {reading.reading.qualname}", "plain"))
    return ((f"{kind:<10}", "dim"), (str(id), "plain"))
