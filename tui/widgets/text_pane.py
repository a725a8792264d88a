"""A pane of wrapped text with tones: details, help, output."""

from __future__ import annotations

from collections.abc import Sequence

from tui.widgets.line_view import LineView
from tui.widgets.spans import Spans, wrap


class TextPane(LineView):
    """Paragraphs, wrapped to the width of the pane."""

    pointer = False

    def __init__(self, *, id: str | None = None, indent: int = 0, follow: bool = False) -> None:
        """Makes an empty pane.

        Args:
            id: the widget's id.
            indent: cells that wrapped continuation lines start with.
            follow: keep the last line in sight, as for output that grows.
        """
        super().__init__(id=id)
        self.indent = indent
        self.follow = follow
        self._paragraphs: tuple[Spans, ...] = ()
        self._lines: list[Spans] = []
        self._wrapped_at = -1

    def show(self, paragraphs: Sequence[Spans]) -> None:
        if tuple(paragraphs) == self._paragraphs:
            return
        self._paragraphs = tuple(paragraphs)
        self._wrapped_at = -1
        self.lines_changed()

    @property
    def words(self) -> str:
        """All the text of the pane, for tests and for copying."""
        return "\n".join("".join(text for text, _ in spans) for spans in self._paragraphs)

    def lines_changed(self) -> None:
        self._wrap()
        at_end = self.follow and self.scroll_y >= self.max_scroll_y
        super().lines_changed()
        if at_end:
            self.call_after_refresh(self.scroll_end, animate=False)

    def _wrap(self) -> None:
        width = self.text_width
        if width > 0 and width != self._wrapped_at:
            self._lines = [line for spans in self._paragraphs for line in wrap(spans, width, indent=self.indent)]
            self._wrapped_at = width

    def line_count(self) -> int:
        self._wrap()
        return len(self._lines)

    def selectable(self, index: int) -> bool:
        return False

    def line_at(self, index: int, width: int) -> Spans:
        return self._lines[index]
