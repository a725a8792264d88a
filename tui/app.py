"""The app: the screens of one case, the thread that watches its rows, what the palette offers.

Contract: no rule of the case lives here. Nothing that may wait runs in the thread that draws. One daemon thread opens
the case and polls it; what a person asks for runs in worker threads. Closing the app ends neither jobs nor runs: they
are processes of their own, and this app only reads rows. Torch, git and the lab are never imported here; the gateway
reaches for them in its own threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.theme import Theme

from store.errors import LivepathError
from tui.messages import ActionDone, ActionFailed, CaseChanged, CaseFailed, CaseOpened
from tui.screen_gateway import ScreenGateway, Version
from tui.screens.base import CaseScreen, Field
from tui.screens.overview import OverviewScreen
from tui.widgets.spans import Spans, one_line
from tui.words import case_page

if TYPE_CHECKING:
    from tui.view import CaseView

_POLL_S = 0.3
# After an error the file may be in the middle of a move, or on a disk that comes back.
_AFTER_ERROR_S = 2.0

# Okabe and Ito's hues: told apart with any colour vision; signs and words say the same without them.
THEME = Theme(
    name="livepath",
    primary="#56B4E9",
    secondary="#7A8794",
    success="#35B597",
    warning="#E69F00",
    error="#E8743B",
    accent="#56B4E9",
    foreground="#D8DEE6",
    background="#10151B",
    surface="#151B23",
    panel="#1C2430",
    dark=True,
)


class CaseWatcher(threading.Thread):
    """Opens the case and posts it again whenever its rows changed."""

    def __init__(self, app: LivepathApp) -> None:
        super().__init__(name="case-watcher", daemon=True)
        self._app = app
        self._ended = threading.Event()

    def run(self) -> None:
        gateway = self._app.gateway
        try:
            gateway.open()
        except LivepathError as error:
            self._app.post_message(CaseFailed(error.message, error.hint))
            return
        except Exception as error:
            self._app.post_message(CaseFailed(f"a fault in Livepath itself: {type(error).__name__}: {error}", ""))
            return
        self._app.post_message(CaseOpened())
        known: Version | None = None
        failed = ""
        while not self._ended.is_set():
            wait = _POLL_S
            try:
                found = gateway.poll(known)
            except LivepathError as error:
                wait = _AFTER_ERROR_S
                if error.message != failed:
                    failed = error.message
                    self._app.post_message(CaseFailed(error.message, error.hint))
            else:
                failed = ""
                if found is not None:
                    known, view = found
                    self._app.post_message(CaseChanged(view))
            self._ended.wait(wait)
        gateway.close()

    def stop(self) -> None:
        self._ended.set()
        self.join(timeout=1.0)


def _reading() -> CaseScreen:
    from tui.screens.reading import ReadingScreen

    return ReadingScreen()


def _runs() -> CaseScreen:
    from tui.screens.runs import RunsScreen

    return RunsScreen()


def _findings() -> CaseScreen:
    from tui.screens.findings import FindingsScreen

    return FindingsScreen()


def _bisect() -> CaseScreen:
    from tui.screens.bisect import BisectScreen

    return BisectScreen()


class LivepathApp(App[None]):
    """The screen of one case."""

    TITLE = "Livepath"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "go('overview')", "Overview"),
        Binding("2", "go('reading')", "Reading"),
        Binding("3", "go('runs')", "Runs"),
        Binding("4", "go('findings')", "Findings"),
        Binding("5", "go('bisect')", "Bisect"),
        Binding("question_mark", "help", "Help: all keys and signs"),
        Binding("exclamation_mark", "investigate", "Start, or go on with, the investigation"),
        Binding("x", "stop_job", "Stop the running job (what is finished stays)"),
        Binding("i", "about_case", "This case: symptom, target, machine"),
        Binding("q", "quit", "Quit (work goes on)"),
    ]

    # The other screens are imported when they are first gone to: the first paint does not wait for them.
    MODES = {"overview": OverviewScreen, "reading": _reading, "runs": _runs, "findings": _findings, "bisect": _bisect}  # noqa: RUF012
    DEFAULT_MODE = "overview"

    def __init__(self, gateway: ScreenGateway) -> None:
        super().__init__()
        # Before the style sheets are read: a theme that changes later has them all read once more.
        self.register_theme(THEME)
        self.theme = "livepath"
        self.gateway = gateway
        self.case_view: CaseView | None = None
        self.waiting = "opening the case"
        self._watcher = CaseWatcher(self)

    def on_mount(self) -> None:
        # The watcher starts after the first paint: its imports would make it wait.
        self.call_after_refresh(self._watcher.start)
        self.set_interval(1.0, self._tick)

    def on_unmount(self) -> None:
        if self._watcher.is_alive():
            self._watcher.stop()

    def _tick(self) -> None:
        if self.case_view is not None and self.case_view.job is not None and self.case_view.job.state == "running":
            self._show()

    def _show(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, CaseScreen):
                screen.receive(self.case_view)

    # What the watcher says.

    @on(CaseChanged)
    def _case_changed(self, message: CaseChanged) -> None:
        self.case_view = message.view
        self._show()

    @on(CaseOpened)
    def _case_opened(self) -> None:
        self.waiting = "reading the case"
        self._show()

    @on(CaseFailed)
    def _case_failed(self, message: CaseFailed) -> None:
        words = message.error + (f"\n{message.hint}" if message.hint else "")
        if self.case_view is None:
            self.waiting = f"error: {message.error}"
            self._show()
            self.open_page("This case cannot be shown", [((line, "plain"),) for line in words.split("\n")])
        else:
            self.tell(words, failed=True)

    def tell(self, words: str, *, failed: bool = False) -> None:
        """A note in the corner; a refusal stays longer."""
        self.notify(
            one_line(words), severity="error" if failed else "information", timeout=10 if failed else 4, markup=False
        )

    # What a person asks for.

    def ask(self, action: Callable[[], str]) -> None:
        self._ask(action)

    @work(thread=True, exit_on_error=False)
    def _ask(self, action: Callable[[], str]) -> None:
        try:
            said = action()
        except LivepathError as error:
            self.post_message(ActionFailed(error.message, error.hint))
        except Exception as error:
            self.post_message(ActionFailed(f"a fault in Livepath itself: {type(error).__name__}: {error}", ""))
        else:
            self.post_message(ActionDone(said))

    @on(ActionDone)
    def _action_done(self, message: ActionDone) -> None:
        if message.text:
            self.tell(message.text)

    @on(ActionFailed)
    def _action_failed(self, message: ActionFailed) -> None:
        self.tell(message.error + (f" ({message.hint})" if message.hint else ""), failed=True)

    # Dialogs are imported when the first one opens: the first paint does not wait for them.

    def open_form(
        self, title: str, fields: Sequence[Field], do: Callable[[dict[str, str]], str], *, explain: str = ""
    ) -> None:
        """Opens a form; what came of it is notified."""
        from tui.screens.dialogs import Form

        def done(said: str | None) -> None:
            if said:
                self.post_message(ActionDone(said))

        self.push_screen(Form(title, fields, do, explain=explain), done)

    def open_page(self, title: str, page: Sequence[Spans]) -> None:
        """Opens a page of text over the screen."""
        from tui.screens.dialogs import Page

        self.push_screen(Page(title, page, indent=2))

    def action_go(self, name: str) -> None:
        if self.current_mode != name and not self.screen.is_modal:
            self.switch_mode(name)

    def action_help(self) -> None:
        screen = self.screen
        if isinstance(screen, CaseScreen):
            from tui.screens.help import help_page

            self.open_page(f"Help: {screen.HELP_TITLE}", help_page(screen, self))

    def action_about_case(self) -> None:
        if self.case_view is not None and not self.screen.is_modal:
            self.open_page(f"Case {self.case_view.info.slug}", case_page(self.case_view))

    def action_investigate(self) -> None:
        self.ask(self.gateway.investigate)

    def action_stop_job(self) -> None:
        job = self.case_view.job if self.case_view else None
        if job is None or job.id is None or job.state not in ("queued", "running"):
            self.tell("no job is running")
            return
        id = job.id
        self.ask(lambda: self.gateway.cancel(id))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Every key of the screen and the app that has a description, by its words."""
        yield from super().get_system_commands(screen)
        for owner in (screen, self):
            for binding in owner.BINDINGS:
                if isinstance(binding, Binding) and binding.show:
                    yield SystemCommand(
                        binding.description,
                        f"key {binding.key_display or binding.key}",
                        _runner(self, owner, binding.action),
                    )


def _runner(app: App[None], owner: object, action: str) -> Callable[[], None]:
    async def run() -> None:
        await app.run_action(action, owner)  # type: ignore[arg-type]

    def soon() -> None:
        app.call_later(run)

    return soon


def run_app(gateway: ScreenGateway) -> None:
    """Shows the screen until a person leaves it."""
    LivepathApp(gateway).run()
