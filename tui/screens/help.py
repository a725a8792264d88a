"""The help: the keys of a screen in words, and what the signs mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.binding import Binding

from tui.widgets.line_view import LineView
from tui.widgets.signs import LIVENESS, VERDICTS
from tui.widgets.spans import Spans

if TYPE_CHECKING:
    from textual.app import App

    from tui.screens.base import CaseScreen

_NAMES = {
    "question_mark": "?",
    "exclamation_mark": "!",
    "slash": "/",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "ctrl+d": "ctrl+d",
}


def _key(keys: str) -> str:
    return " ".join(_NAMES.get(key, key) for key in keys.split(","))


def help_page(screen: CaseScreen, app: App[None]) -> list[Spans]:
    """Keys of the screen, keys of every screen, keys in a list; then the signs."""
    page: list[Spans] = []
    groups = (
        (screen.HELP_TITLE, type(screen).BINDINGS),
        ("Everywhere", app.BINDINGS),
        ("In a pane", LineView.BINDINGS),
    )
    for title, bindings in groups:
        page.append(((title, "head"),))
        page += [
            ((f"  {_key(binding.key):<16} ", "strong"), (binding.description, "plain"))
            for binding in bindings
            if isinstance(binding, Binding) and binding.description
        ]
        page.append(())
    page.append((("  ctrl+p           ", "strong"), ("Palette: every action by its name", "plain")))
    page.append((("  /                ", "strong"), ("Filter the list in focus; in a source, find", "plain")))
    page += [(), (("Liveness: what a run proved about a line", "head"),)]
    for word, sign in LIVENESS.items():
        page.append(((f"  {sign.glyph}{sign.letter} ", sign.tone), (f"{sign.word}", "plain"), (f"  ({word})", "dim")))
    page.append((("  Only a fully traced run may call a line dead.", "dim"),))
    page += [(), (("Verdicts: what the evidence says of a patch", "head"),)]
    for verdict, sign in VERDICTS.items():
        page.append(((f"  {sign.glyph}  ", sign.tone), (f"{sign.word:<18}", "plain"), (_MEANING[verdict], "dim")))
    return page


_MEANING = {
    "culprit": "worse with it, decided by a paired test",
    "does_not_apply": "the tree cannot be assembled with it",
    "needs": "cannot run without another patch, which is named",
    "cannot_be_tested": "its arm crashed or was killed",
    "inconclusive": "the budget is spent; what would decide it is stated",
    "dead": "none of its acting lines can run here; no A/B is made",
    "exonerated": "equivalent inside the margin, by a probe that sees such faults",
    "fix": "better with it, decided by a paired test",
}
