"""What a tone looks like in the theme of the app.

Contract: colours come from the theme's variables, shades of the heat map excepted; styles are made once per theme.
They are not component classes of the style sheet on purpose: sixteen of those on every pane were most of the cost of
the first paint.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style
from textual.color import Color
from textual.widget import Widget

from tui.widgets.spans import Tone

# tone: (variable of the theme, bold)
_THEMED: dict[Tone, tuple[str, bool]] = {
    "plain": ("foreground", False),
    "strong": ("foreground", True),
    "good": ("success", False),
    "bad": ("error", True),
    "warn": ("warning", False),
    "cool": ("primary", False),
    "head": ("primary", True),
    "added": ("success", False),
    "removed": ("error", False),
    "mark": ("primary", True),
}
# Dark orange to dark blue, the lightest in the middle: told apart by lightness and by hue in any colour vision.
_HEAT: dict[Tone, str] = {
    "heat0": "#7A2E12",
    "heat1": "#9C5A14",
    "heat2": "#4F6272",
    "heat3": "#2F6E93",
    "heat4": "#1F4E79",
}
_DIM = 0.4  # how far dim text fades into the background
_CURSOR = 0.22  # how much of the primary colour lies under the cursor


def tone_styles(variables: Mapping[str, str]) -> dict[Tone, Style]:
    """One style per tone, without a background but for the heat map's."""
    styles = {
        tone: Style(color=Color.parse(variables[name]).rich_color, bold=bold or None)
        for tone, (name, bold) in _THEMED.items()
    }
    foreground, background = Color.parse(variables["foreground"]), Color.parse(variables["background"])
    dim = foreground if foreground.ansi is not None else foreground.blend(background, _DIM)
    styles["dim"] = Style(color=dim.rich_color)
    for tone, shade in _HEAT.items():
        styles[tone] = Style(color="#FFFFFF", bgcolor=shade)
    return styles


class Tones:
    """The styles of one widget's tones, on its own background."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._made_for: tuple[str, Color] | None = None
        self._styles: dict[Tone, Style] = {}
        self.cursor = Style()

    def __getitem__(self, tone: Tone) -> Style:
        self._refresh()
        return self._styles[tone]

    def _refresh(self) -> None:
        background = self._widget.background_colors[1]
        key = (self._widget.app.theme, background)
        if key == self._made_for:
            return
        variables = self._widget.app.theme_variables
        base = Style(bgcolor=background.rich_color)
        self._styles = {tone: base + style for tone, style in tone_styles(variables).items()}
        primary = Color.parse(variables["primary"])
        under = primary if background.ansi is not None else background.blend(primary, _CURSOR)
        self.cursor = Style(bgcolor=under.rich_color)
        self._made_for = key
