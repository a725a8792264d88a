"""Text from a repository, a probe or a person, made harmless for a terminal.

Contract: `clean` keeps every printable character and turns each one that could move the cursor, start an escape
sequence, hide itself or reverse the reading order into a visible mark, so that nothing is silently dropped. Tabs
become spaces.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_TAB = "    "
# Fast way out: most lines are printable ASCII.
_HARMLESS = re.compile(r"[\x20-\x7e]*")


@lru_cache(maxsize=1024)
def _mark(character: str) -> str:
    code = ord(character)
    if character == "\t":
        return _TAB
    if code < 0x20:
        return chr(0x2400 + code)  # the picture of the control character
    if code == 0x7F:
        return "\u2421"
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return f"<{code:04X}>"
    return character


def clean(text: str) -> str:
    """The text as one line that a terminal can only print."""
    if _HARMLESS.fullmatch(text):
        return text
    return "".join(_mark(character) for character in text)
