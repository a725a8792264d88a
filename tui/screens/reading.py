"""Reading: source with what a run proved of every line, and the way from dead lines to those that ran."""

from __future__ import annotations

from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from store.errors import LivepathError
from store.models import ReadingLiveness
from tui.messages import ActionFailed, SourceRead
from tui.screens.base import CaseScreen, Field, Keys
from tui.view import DEAD, CaseView, ReadingView
from tui.widgets.line_view import LineView
from tui.widgets.row_list import Column, Row, RowList
from tui.widgets.source_view import SourceView
from tui.widgets.spans import Spans, title, wrap
from tui.widgets.text_pane import TextPane
from tui.words import liveness_words, run_name


class ReadingScreen(CaseScreen):
    """The code that was looked at, and whether it ran."""

    NAME = "reading"
    CSS_PATH = "reading.tcss"
    HELP_TITLE = "Reading"
    KEYS: ClassVar[Keys] = (
        ("enter", "Open"),
        ("tab", "Next pane"),
        ("s", "Live sibling"),
        ("m", "Mark lines"),
        ("o", "Open file"),
        ("/", "Find"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sibling", "Go from a dead reading to the code that ran, and back"),
        Binding("m", "mark", "Mark lines: once to start, move, once more to keep them as a reading"),
        Binding("o", "open_file", "Open a file of the traced folders"),
        Binding("n", "again(1)", "Next match", show=False),
        Binding("N", "again(-1)", "Match before", show=False),
    ]

    def compose_body(self) -> ComposeResult:
        readings = RowList(
            [
                Column("", 3),
                Column("where", middle=True, weight=5),
                Column("liveness", 9, roomy=18),
                Column("name", weight=4, middle=True),
                Column("note", weight=4, hide_below=100),
            ],
            empty="no reading yet: press o to open a file, m to mark lines",
            id="readings",
        )
        readings.border_title = "Readings"
        about = TextPane(id="about", indent=2)
        about.border_title = "This reading"
        source = SourceView(id="source")
        source.border_title = "Source"
        with Horizontal(id="reading"):
            with Vertical(id="reading-side"):
                yield readings
                yield about
            with Vertical(id="reading-main"):
                yield TextPane(id="banner")
                yield source

    def on_mount(self) -> None:
        self._opened: int | None = None
        self._at_sibling = False
        self.query_one("#banner").display = False
        self.query_one("#banner", TextPane).can_focus = False
        self.query_one("#about", TextPane).can_focus = False
        super().on_mount()
        self.query_one("#readings").focus()

    # Showing.

    def show_view(self, view: CaseView) -> None:
        self.query_one("#readings", RowList).show([reading_row(reading) for reading in view.readings])
        self._show_marks()
        if self._opened is None and view.readings:
            self._open(view.readings[0])
        else:
            self._show_about()

    def _current(self) -> ReadingView | None:
        """The reading that the source view shows."""
        return self.case_view.reading(self._opened) if self.case_view and self._opened is not None else None

    def _show_about(self) -> None:
        view, current = self.case_view, self._current()
        if view is None or current is None:
            return
        self.query_one("#about", TextPane).show(about_page(current, view))
        banner = self.query_one("#banner", TextPane)
        words = dead_banner(current.last, view, at_sibling=self._at_sibling)
        banner.display = bool(words)
        # The height is said, not found: a pane that was hidden has no width to wrap its text to yet.
        width = max(20, (self.size.width - 76 if self.size.width >= 160 else self.size.width) - 4)
        banner.styles.height = min(4 if self.size.height > 20 else 2, sum(len(wrap(spans, width)) for spans in words))
        banner.show(words)

    def _show_marks(self) -> None:
        source = self.query_one(SourceView)
        if self.case_view is None or source.source is None:
            return
        path = source.source.path
        ranges = [(r.reading.start, r.reading.end) for r in self.case_view.readings if r.reading.path == path]
        source.show_readings(tuple(ranges))

    def _open(self, reading: ReadingView) -> None:
        self._opened = reading.reading.id
        self._at_sibling = False
        self._show_about()
        run_id = reading.last.run_id if reading.last else None
        self._read(reading.reading.path, reading.reading.rev or None, reading.reading.start, run_id)

    @work(thread=True, exclusive=True, group="source", exit_on_error=False)
    def _read(self, path: str, rev: str | None, line: int | None, run_id: int | None = None) -> None:
        try:
            source = self.livepath.gateway.source(path, rev, run_id)
        except LivepathError as error:
            self.post_message(ActionFailed(error.message, error.hint))
        except Exception as error:
            self.post_message(ActionFailed(f"{path}: {type(error).__name__}: {error}", ""))
        else:
            self.post_message(SourceRead(source, line))

    @on(SourceRead)
    def _source_read(self, message: SourceRead) -> None:
        source = message.source
        pane = self.query_one(SourceView)
        pane.border_title = title(f"{source.path} @ {source.rev[:10]}")
        pane.border_subtitle = title(source.run or source.note or "no run yet")
        pane.show(source, line=message.line)
        self._show_marks()

    @on(LineView.Chosen)
    def _chosen(self, message: LineView.Chosen) -> None:
        message.stop()
        if self.case_view is None or not isinstance(message.view, RowList) or message.view.row is None:
            return
        reading = self.case_view.reading(int(message.view.row.key))
        if reading is not None:
            self._open(reading)
            self.query_one(SourceView).focus()

    @on(LineView.Highlighted, "#readings")
    def _highlighted(self, message: LineView.Highlighted) -> None:
        row = self.query_one("#readings", RowList).row
        if row is not None and self.case_view is not None and (reading := self.case_view.reading(int(row.key))):
            self._open(reading)

    # Doing.

    def action_sibling(self) -> None:
        """Opens the code that ran where a dead reading did not; once more, and it goes back."""
        current = self._current()
        siblings = current.last.siblings if current and current.last else ()
        if current is None or current.last is None or not siblings:
            self.livepath.tell("this reading names no live sibling")
            return
        at_sibling = not self._at_sibling
        if at_sibling:
            place = siblings[0]
            self._read(str(place["path"]), current.reading.rev or None, int(place["start"]), current.last.run_id)
        else:
            self._open(current)
        self._at_sibling = at_sibling
        self._show_about()
        self.query_one(SourceView).focus()

    def action_mark(self) -> None:
        """First press starts choosing lines, the second keeps them."""
        pane = self.query_one(SourceView)
        if pane.source is None:
            self.livepath.tell("open a file first: press o")
            return
        if pane.marked_from is None:
            pane.focus()
            pane.toggle_mark()
            self.livepath.tell("move to the last line, then press m again; esc stops")
            return
        start, end = pane.marking
        spec = f"{pane.source.path}:{start}-{end}@{pane.source.rev}"
        pane.toggle_mark()
        gateway = self.livepath.gateway
        self.livepath.open_form(
            f"Keep {pane.source.path}:{start}-{end} as a reading",
            [Field(name="note", label="What it does, or what you suspect")],
            lambda words: gateway.add_reading(spec, words["note"]),
        )

    def action_open_file(self) -> None:
        gateway = self.livepath.gateway

        def read(words: dict[str, str]) -> str:
            path, colon, line = words["path"].rpartition(":")
            if not (colon and line.isdigit()):
                path, line = words["path"], "1"
            source = gateway.source(path, None)
            self._opened = None
            self.post_message(SourceRead(source, int(line)))
            return ""

        self.livepath.open_form(
            "Open a file",
            [Field(name="path", label="PATH or PATH:LINE, as in the full stack", required=True)],
            read,
            explain="The signs beside the lines are those of the newest traced run of the full stack.",
        )

    def action_clear_filter(self) -> None:
        pane = self.query_one(SourceView)
        if pane.marked_from is not None:
            pane.toggle_mark()
        super().action_clear_filter()

    def action_filter(self) -> None:
        """In the source, find; in the list, filter."""
        pane = self.query_one(SourceView)
        if self.focused is not pane:
            super().action_filter()
        else:
            self.prompt("find in this file; n and N go on", "", lambda words: pane.find(words, here=True), pane)

    def action_again(self, step: int) -> None:
        if not self.query_one(SourceView).find_again(step):
            self.livepath.tell("no match: press / in the source to search")


def reading_row(view: ReadingView) -> Row:
    reading = view.reading
    host = f"{reading.host}:" if reading.host else ""
    where = f"{host}{reading.path}:{reading.start}-{reading.end}"
    return Row(
        str(reading.id),
        (
            (f"R{reading.id}", "dim"),
            (where, "plain"),
            liveness_words(view.last),
            (reading.qualname, "plain"),
            (reading.note, "dim"),
        ),
    )


def dead_banner(last: ReadingLiveness | None, view: CaseView, *, at_sibling: bool) -> list[Spans]:
    """What to say above code that did not run: so, and where to look instead."""
    if last is None or last.word not in DEAD:
        return []
    sibling = last.siblings[0] if last.siblings else {}
    name = f"{sibling.get('qualname') or 'its sibling'} at {sibling.get('path', '')}:{sibling.get('start', '')}"
    if at_sibling:
        return [
            (("LIVE: ", "good"), (f"{name} ran in {run_name(view, last.run_id)}", "plain"), ("   s: back", "strong"))
        ]
    banner: list[Spans] = [((f"DEAD in {run_name(view, last.run_id)}: ", "bad"), (last.reason, "plain"))]
    if sibling:
        banner.append((("Live: ", "good"), (name, "plain"), ("   s goes there", "strong")))
    return banner


def about_page(view: ReadingView, case: CaseView) -> list[Spans]:
    """All that is known of a reading."""
    reading = view.reading
    page: list[Spans] = [
        ((reading.qualname or reading.path, "strong"),),
        ((f"{reading.path}:{reading.start}-{reading.end} @ {reading.rev[:10]}", "dim"),),
    ]
    if reading.note:
        page.append(((reading.note, "plain"),))
    for liveness in reversed(view.liveness):
        page += [(), (liveness_words(liveness), (f"  in {run_name(case, liveness.run_id)}", "dim"))]
        if liveness.reason:
            page.append(((f"  {liveness.reason}", "plain"),))
        if liveness.given:
            page.append(((f"  given {', '.join(liveness.given)}", "plain"),))
        for sibling in liveness.siblings:
            page.append((("  live: ", "good"), (f"{sibling.get('qualname', '')} {sibling.get('path', '')}", "plain")))
    if not view.liveness:
        page += [(), (("no run has said yet whether these lines live", "dim"),)]
    return page
