"""One line at the bottom for the words to filter by or to find.

Contract: it calls back at every change; enter keeps what was typed, escape takes it back; either way it goes, and the
pane that asked has the focus again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input


class Prompt(Input):
    """A line that stays only while somebody types in it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "drop", "Take it back")]

    def __init__(self, placeholder: str, value: str, changed: Callable[[str], object], back: Widget) -> None:
        """Makes the line.

        Args:
            placeholder: what to type here.
            value: what stands there at first.
            changed: told the words whenever they change; "" when they are taken back.
            back: who gets the focus in the end.
        """
        super().__init__(value, placeholder=placeholder, id="prompt", compact=True)
        self._changed = changed
        self._back = back

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._changed(event.value)

    @on(Input.Submitted)
    def _kept(self, event: Input.Submitted) -> None:
        event.stop()
        self._leave()

    def action_drop(self) -> None:
        self._changed("")
        self._leave()

    def _leave(self) -> None:
        self._back.focus()
        self.remove()
