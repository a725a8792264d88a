"""The dialogs on top of a screen: forms, a page of detail, the help.

Contract: a form hands its words to the gateway as they are; what is wrong with them comes back as one line under the
fields, and the form stays open with what was typed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from store.errors import LivepathError
from tui.screens.base import Field
from tui.widgets.spans import Spans, one_line, title
from tui.widgets.text_pane import TextPane


class Form(ModalScreen[str | None]):
    """A few lines of text and what to do with them; the result is what the gateway said, None when nothing was done."""

    CSS_PATH = "dialogs.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Close without doing anything"),
        Binding("down", "app.focus_next", "Next field", show=False),
        Binding("up", "app.focus_previous", "Field before", show=False),
    ]

    def __init__(
        self, title: str, fields: Sequence[Field], do: Callable[[dict[str, str]], str], *, explain: str = ""
    ) -> None:
        """Makes a form.

        Args:
            title: what enter does, in words.
            fields: its lines, first to last.
            do: called in a worker thread with the typed words by field name; returns what was done.
            explain: a sentence under the title.
        """
        super().__init__()
        self.title_text = title
        self.fields = tuple(fields)
        self.do = do
        self.explain = explain

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = title(self.title_text)
            if self.explain:
                yield Static(one_line(self.explain), markup=False, classes="explain")
            for field in self.fields:
                yield Static(field.label, markup=False, classes="label")
                yield Input(
                    one_line(field.value), placeholder=field.placeholder, id=f"field-{field.name}", compact=True
                )
            yield Static("", markup=False, id="form-error")
            yield Static("enter: do it   tab: next field   esc: close", markup=False, classes="keys")

    def on_mount(self) -> None:
        inputs = self.query(Input)
        empty = [line for line in inputs if not line.value]
        (empty[0] if empty else inputs.last()).focus()

    @on(Input.Submitted)
    def _submit(self, event: Input.Submitted) -> None:
        event.stop()
        words = {field.name: self.query_one(f"#field-{field.name}", Input).value.strip() for field in self.fields}
        for field in self.fields:
            if field.required and not words[field.name]:
                self.say(f"{field.label.lower()}: expected some text")
                self.query_one(f"#field-{field.name}", Input).focus()
                return
        self.say("working")
        self._do(words)

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _do(self, words: dict[str, str]) -> None:
        try:
            said = self.do(words)
        except LivepathError as error:
            self.app.call_from_thread(self.say, f"{error.message}" + (f"; {error.hint}" if error.hint else ""))
        except Exception as error:
            self.app.call_from_thread(self.say, f"a fault in Livepath itself: {type(error).__name__}: {error}")
        else:
            self.app.call_from_thread(self._done, said)

    def _done(self, said: str) -> None:
        # Somebody may have closed the form meanwhile: what was done stays done, and is told either way.
        if self.is_current:
            self.dismiss(said)
        else:
            self.app.notify(one_line(said), markup=False)

    def say(self, words: str) -> None:
        if self.is_mounted:
            self.query_one("#form-error", Static).update(one_line(words))

    def action_leave(self) -> None:
        self.dismiss(None)


class Page(ModalScreen[None]):
    """A page of text over the screen: the detail of one row, or the help."""

    CSS_PATH = "dialogs.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "leave", "Close this page"),
    ]

    def __init__(self, title: str, paragraphs: Sequence[Spans], *, indent: int = 0) -> None:
        super().__init__()
        self.title_text = title
        self.paragraphs = tuple(paragraphs)
        self.indent = indent

    def compose(self) -> ComposeResult:
        with Vertical(classes="page") as box:
            box.border_title = title(self.title_text)
            box.border_subtitle = "esc closes, j and k scroll"
            yield TextPane(id="page-text", indent=self.indent)

    def on_mount(self) -> None:
        pane = self.query_one(TextPane)
        pane.show(self.paragraphs)
        pane.focus()

    def action_leave(self) -> None:
        self.dismiss(None)
