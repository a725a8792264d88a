"""What the screens of a case share: bars, filter line, how a view reaches them, which keys they list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget

from tui.widgets.bars import KeyBar, TopBar
from tui.widgets.row_list import RowList

if TYPE_CHECKING:
    from tui.app import LivepathApp
    from tui.view import CaseView

Keys = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One line of a form."""

    name: str
    label: str
    value: str = ""
    placeholder: str = ""
    required: bool = False


class CaseScreen(Screen[None]):
    """One of the places of a case. A subclass gives `compose_body` and `show_view`."""

    NAME = ""
    # The bottom bar, most useful first; every one of them is also in the help.
    KEYS: ClassVar[Keys] = ()
    HELP_TITLE = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter this list", key_display="/", show=False),
        Binding("escape", "clear_filter", "Clear the filters, close a dialog", show=False),
    ]
    # Screen declares these two as instance variables, which ClassVar would contradict.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-medium"), (160, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (20, "-short"), (35, "-tall")]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self._shown: CaseView | None = None
        self._composed = False

    @property
    def livepath(self) -> LivepathApp:
        from tui.app import LivepathApp

        assert isinstance(self.app, LivepathApp)
        return self.app

    def compose(self) -> ComposeResult:
        yield TopBar(self.NAME)
        yield from self.compose_body()
        yield KeyBar(self.KEYS)

    def compose_body(self) -> ComposeResult:
        raise NotImplementedError

    def show_view(self, view: CaseView) -> None:
        raise NotImplementedError

    def on_mount(self) -> None:
        self._composed = True
        self.receive(self.livepath.case_view)

    def on_screen_resume(self) -> None:
        self.receive(self.livepath.case_view)

    def receive(self, view: CaseView | None) -> None:
        """Shows the newest view; the bar first, as it also counts seconds."""
        if not self.ready:
            return
        self.query_one(TopBar).show(view, self.livepath.waiting)
        if view is not None and view is not self._shown:
            self._shown = view
            self.show_view(view)

    @property
    def ready(self) -> bool:
        """Whether the panes are there: they come after the screen, and go before it when the app closes."""
        return self._composed and bool(self.query(TopBar))

    @property
    def case_view(self) -> CaseView | None:
        return self._shown

    # Filtering.

    def action_filter(self) -> None:
        """Filters the list in focus, else the first one."""
        focused = self.focused
        target = focused if isinstance(focused, RowList) else next(iter(self.query(RowList)), None)
        if target is not None:
            self.prompt("filter: words that a row must contain", target.filter, target.set_filter, target)

    def action_clear_filter(self) -> None:
        for pane in self.query(RowList):
            pane.set_filter("")

    def prompt(self, placeholder: str, value: str, changed: Callable[[str], object], back: Widget) -> None:
        """Has a person type a line at the bottom of the screen."""
        from tui.widgets.prompt import Prompt  # not needed for the first paint

        if not self.query("#prompt"):
            line = Prompt(placeholder, value, changed, back)
            self.mount(line)
            line.focus()

    @on(TopBar.TabChosen)
    def _tab_chosen(self, message: TopBar.TabChosen) -> None:
        self.livepath.action_go(message.name)
