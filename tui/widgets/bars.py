"""The two bars of every screen: where I am and what runs (top), which keys there are (bottom)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tui.progress import meter
from tui.widgets.spans import Span, Spans, fit, strip_of, width_of
from tui.widgets.tones import Tones

if TYPE_CHECKING:
    from tui.view import CaseView

TABS = (
    ("overview", "Overview"),
    ("reading", "Reading"),
    ("runs", "Runs"),
    ("findings", "Findings"),
    ("bisect", "Bisect"),
)


class _Bar(Widget):
    ALLOW_SELECT = False

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.tones = Tones(self)

    def spans(self, y: int) -> Spans:
        raise NotImplementedError

    def render_line(self, y: int) -> Strip:
        strip = strip_of(self.spans(y), self.tones.__getitem__)
        return strip.adjust_cell_length(self.size.width, self.tones["plain"])


class TopBar(_Bar):
    """Case, symptom and progress on the first line; the tabs on the second."""

    @dataclass
    class TabChosen(Message):
        name: str

    def __init__(self, current: str) -> None:
        super().__init__(id="top-bar")
        self.current = current
        self.view: CaseView | None = None
        self.waiting = "opening the case"

    def show(self, view: CaseView | None, waiting: str = "") -> None:
        self.view = view
        self.waiting = waiting or self.waiting
        self.refresh()

    def spans(self, y: int) -> Spans:
        return self._first() if y == 0 else self._tabs()

    def _first(self) -> Spans:
        width = self.size.width
        if self.view is None:
            return ((" Livepath  ", "head"), (fit(self.waiting, width - 12), "dim"))
        right: Spans = (*meter(self.view.job, 10 if width >= 100 else 0), (" ", "plain"))
        used = width_of(right)
        slug = f"{self.view.info.slug}  "
        left = max(0, width - used - len(slug) - 13)
        return (
            (" Livepath  ", "head"),
            (slug, "strong"),
            (fit(self.view.info.symptom, left), "plain"),
            ("  ", "plain"),
            *right,
        )

    def _tabs(self) -> Spans:
        spans: list[Span] = [(" ", "plain")]
        for number, (name, title) in enumerate(TABS, start=1):
            # Brackets say which tab is open where there is no colour.
            spans.append((f"[{number} {title}]", "mark") if name == self.current else (f" {number} {title} ", "dim"))
            spans.append((" ", "plain"))
        return tuple(spans)

    def on_click(self, event: events.Click) -> None:
        if event.y != 1:
            return
        at = 1
        for number, (name, title) in enumerate(TABS, start=1):
            size = len(f" {number} {title} ")
            if at <= event.x < at + size:
                self.post_message(self.TabChosen(name))
            at += size + 1


class KeyBar(_Bar):
    """The keys of the screen, most useful first; what does not fit is in the help."""

    def __init__(self, keys: tuple[tuple[str, str], ...]) -> None:
        super().__init__(id="key-bar")
        self.keys = keys

    def spans(self, y: int) -> Spans:
        last: Spans = (("?", "strong"), (" Help  ", "dim"), ("q", "strong"), (" Quit", "dim"))
        left = self.size.width - width_of(last) - 1
        spans: list[Span] = [(" ", "plain")]
        for key, label in self.keys:
            size = len(key) + len(label) + 3
            if size > left:
                break
            left -= size
            spans += [(key, "strong"), (f" {label}  ", "dim")]
        return (*spans, *last)
