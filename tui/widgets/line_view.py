"""A scrolling view that draws itself line by line: the base of every list, source, diff and text pane here.

Contract: a subclass gives `line_count`, `line_at` and, where lines differ, `selectable`; it calls `lines_changed` when
they did. The view owns the cursor, the scrolling, the tones and the pointer in the first column, which says without
colour where the cursor is. One widget per pane, whatever the number of lines: only the visible ones are ever asked
for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tui.widgets.spans import Span, Spans, strip_of
from tui.widgets.tones import Tones


class LineView(ScrollView, can_focus=True):
    """Lines with a cursor."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("ctrl+d,pagedown", "page(1)", "Page down", show=False),
        Binding("ctrl+u,pageup", "page(-1)", "Page up", show=False),
        Binding("g,home", "edge(-1)", "First line", show=False),
        Binding("G,end", "edge(1)", "Last line", show=False),
        Binding("right,l", "sideways(8)", "Scroll right", show=False),
        Binding("left", "sideways(-8)", "Scroll left", show=False),
        Binding("enter", "choose", "Open", show=False),
    ]

    @dataclass
    class Highlighted(Message):
        """The cursor came to rest on another line."""

        view: LineView
        index: int

        @property
        def control(self) -> LineView:
            return self.view

    @dataclass
    class Chosen(Message):
        """Enter, or a click on the line under the cursor."""

        view: LineView
        index: int

        @property
        def control(self) -> LineView:
            return self.view

    header_lines = 0
    pointer = True
    sideways_width = 0

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.cursor = 0
        self.tones = Tones(self)

    # What a subclass gives.

    def line_count(self) -> int:
        raise NotImplementedError

    def line_at(self, index: int, width: int) -> Spans:
        raise NotImplementedError

    def gutter_at(self, index: int) -> Spans:
        """The part of a line that does not scroll sideways."""
        return ()

    def header_at(self, line: int, width: int) -> Spans:
        return ()

    def selectable(self, index: int) -> bool:
        return True

    def lines_changed(self) -> None:
        """Call after the lines changed: the cursor is put back on a line that exists."""
        count = self.line_count()
        width = self.sideways_width if self.sideways_width > self.text_width else 0
        self.virtual_size = Size(width + self.size.width - self.text_width if width else 0, count + self.header_lines)
        self._settle(max(0, min(self.cursor, count - 1)), 1)
        self.refresh()

    # Moving.

    @property
    def text_width(self) -> int:
        """Cells for the text of a line, without the pointer."""
        return max(0, self.scrollable_content_region.width - (2 if self.pointer else 0))

    def move_to(self, index: int, *, center: bool = False) -> None:
        """Puts the cursor on a line, or the nearest one that can hold it, and brings it into sight."""
        index = max(0, min(index, self.line_count() - 1))
        self._settle(index, 1 if index >= self.cursor else -1)
        self._reveal(center=center)
        self.refresh()

    def _settle(self, index: int, direction: int) -> None:
        before = self.cursor
        count = self.line_count()
        for step in (direction, -direction):
            at = index
            while 0 <= at < count and not self.selectable(at):
                at += step
            if 0 <= at < count:
                index = at
                break
        self.cursor = index
        if index != before and count:
            self.post_message(self.Highlighted(self, index))

    def _reveal(self, *, center: bool = False) -> None:
        height = max(1, self.scrollable_content_region.height - self.header_lines)
        top = round(self.scroll_y)
        first = self.cursor
        while first > 0 and not self.selectable(first - 1):  # a heading stays with its first row
            first -= 1
        if center and not top <= self.cursor < top + height:
            top = self.cursor - height // 3
        elif first < top:
            top = first
        elif self.cursor >= top + height:
            top = self.cursor - height + 1
        self.scroll_to(y=max(0, top), animate=False, force=True)

    def action_move(self, step: int) -> None:
        if not any(self.selectable(index) for index in range(self.line_count())):
            self.scroll_relative(y=step, animate=False)
            return
        index = self.cursor + step
        while 0 <= index < self.line_count() and not self.selectable(index):
            index += step
        if 0 <= index < self.line_count():
            self.move_to(index)
        else:
            self.scroll_to(y=0 if step < 0 else self.max_scroll_y, animate=False)

    def action_page(self, direction: int) -> None:
        step = max(1, self.scrollable_content_region.height // 2) * direction
        if self.pointer:
            self.move_to(self.cursor + step)
        else:
            self.scroll_relative(y=step, animate=False)

    def action_edge(self, direction: int) -> None:
        if self.pointer:
            self.move_to(0 if direction < 0 else self.line_count() - 1)
        else:
            self.scroll_to(y=0 if direction < 0 else self.max_scroll_y, animate=False)

    def action_sideways(self, cells: int) -> None:
        self.scroll_relative(x=cells, animate=False)

    def action_choose(self) -> None:
        if self.line_count() and self.selectable(self.cursor):
            self.post_message(self.Chosen(self, self.cursor))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or offset.y < self.header_lines:
            return
        index = offset.y - self.header_lines + round(self.scroll_y)
        if 0 <= index < self.line_count() and self.selectable(index):
            if index == self.cursor:
                self.action_choose()
            self.move_to(index)

    # Drawing.

    def on_resize(self) -> None:
        self.lines_changed()

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y < self.header_lines:
            lead: Spans = (("  ", "plain"),) if self.pointer else ()
            strip = strip_of((*lead, *self.header_at(y, self.text_width)), self.tones.__getitem__)
            return strip.adjust_cell_length(width, self.tones["plain"])
        index = y - self.header_lines + round(self.scroll_y)
        if index >= self.line_count():
            return Strip.blank(width, self.tones["plain"])
        at_cursor = self.pointer and index == self.cursor and self.selectable(index)
        pointer: list[Span] = []
        if self.pointer:
            pointer = [(("> " if self.has_focus else "› ") if at_cursor else "  ", "strong")]
        fixed = strip_of((*pointer, *self.gutter_at(index)), self.tones.__getitem__)
        body = strip_of(self.line_at(index, self.text_width), self.tones.__getitem__)
        if self.scroll_x and self.sideways_width:
            body = body.crop(round(self.scroll_x))
        strip = Strip.join([fixed, body]).adjust_cell_length(width, self.tones["plain"])
        if at_cursor and self.has_focus:
            strip = Strip(Segment.apply_style(strip, post_style=self.tones.cursor), width)
        return strip
