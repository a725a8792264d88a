"""The one visual sign for each liveness word, verdict and state: a glyph, a word and a tone.

Contract: the word alone is enough (no colour, no glyph); only `not_seen` in a fully traced run and `absent` are called
dead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tui.widgets.spans import Span, Tone

if TYPE_CHECKING:
    from store.models import LivenessWord, Verdict


@dataclass(frozen=True, slots=True)
class Sign:
    glyph: str
    word: str
    tone: Tone
    letter: str = ""

    @property
    def span(self) -> Span:
        return (f"{self.glyph} {self.word}", self.tone)


LIVENESS: dict[LivenessWord, Sign] = {
    "executed": Sign("●", "live", "good", "L"),
    "entered_compiled": Sign("●", "live, compiled body", "good", "L"),
    "at_capture": Sign("●", "live at capture", "good", "L"),
    "launched": Sign("●", "live, kernel launched", "good", "L"),
    "present": Sign("●", "present in the kernel", "good", "L"),
    "bound": Sign("◐", "only bound", "cool", "B"),
    "absent": Sign("○", "dead, not in the kernel", "bad", "D"),
    "not_seen": Sign("○", "dead", "bad", "D"),
    "not_seen_blind": Sign("?", "not seen, blind", "warn", "U"),
    "unknown": Sign("?", "unknown", "warn", "U"),
}

VERDICTS: dict[Verdict, Sign] = {
    "culprit": Sign("✗", "culprit", "bad"),
    "does_not_apply": Sign("!", "does not apply", "warn"),
    "needs": Sign("!", "needs", "warn"),
    "cannot_be_tested": Sign("!", "cannot be tested", "warn"),
    "inconclusive": Sign("~", "inconclusive", "warn"),
    "dead": Sign("○", "dead", "cool"),
    "exonerated": Sign("✓", "exonerated", "good"),
    "fix": Sign("+", "fix", "good"),
}
NO_VERDICT = Sign("·", "not judged", "dim")

STATES: dict[str, Sign] = {
    # Hypotheses, questions and assumptions.
    "open": Sign("·", "open", "dim"),
    "answered": Sign("✓", "answered", "good"),
    "supported": Sign("✓", "supported", "good"),
    "refuted": Sign("✗", "refuted", "bad"),
    "dead_end": Sign("○", "dead end", "cool"),
    "parked": Sign("-", "parked", "dim"),
    "unverified": Sign("?", "unverified", "warn"),
    "verified": Sign("✓", "verified", "good"),
    "broken": Sign("✗", "broken", "bad"),
    # Attempts and jobs.
    "queued": Sign("·", "queued", "dim"),
    "running": Sign("►", "running", "cool"),
    "ok": Sign("✓", "done", "good"),
    "good": Sign("✓", "good", "good"),
    "bad": Sign("✗", "bad", "bad"),
    "done": Sign("✓", "done", "good"),
    "failed": Sign("✗", "failed", "bad"),
    "cancelled": Sign("-", "cancelled", "warn"),
    "infrastructure": Sign("!", "machine trouble", "warn"),
    "cannot_be_tested": Sign("!", "cannot be tested", "warn"),
}


def verdict_sign(verdict: Verdict | None) -> Sign:
    return NO_VERDICT if verdict is None else VERDICTS[verdict]


def state_sign(state: str) -> Sign:
    return STATES.get(state, Sign("?", state, "warn"))


def gutter_span(word: LivenessWord | None) -> Span:
    """Two cells for a gutter: the glyph and its letter."""
    if word is None:
        return ("  ", "dim")
    sign = LIVENESS[word]
    return (f"{sign.glyph}{sign.letter}", sign.tone)
