"""What people ask and suppose: questions, hypotheses, assumptions.

Contract: adding one whose text is there already returns the stored row, so a script may be run twice. A hypothesis
keeps the predicate it was first stored with: it has to be older than the runs that decide it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from store.db import Database
from store.models import Assumption, AssumptionState, Hypothesis, HypothesisState, Question, QuestionState
from store.table import RowId, add, change, get, select

Evidence = Iterable[dict[str, Any]]


def add_question(db: Database, question: Question) -> Question:
    """Add a question to be answered before any run."""
    return add(db, question, keys=["text"])


def questions(db: Database) -> list[Question]:
    """All questions, oldest first."""
    return select(db, Question)


def question(db: Database, id: RowId) -> Question:
    """One question."""
    return get(db, Question, id)


def set_question(
    db: Database, id: RowId, *, state: QuestionState = "answered", answer: str = "", evidence: Evidence = ()
) -> Question:
    """Answer a question, or open it again."""
    return change(db, Question, id, state=state, answer=answer, evidence=tuple(evidence))


def add_hypothesis(db: Database, hypothesis: Hypothesis) -> Hypothesis:
    """Add a hypothesis."""
    return add(db, hypothesis, keys=["text"])


def hypotheses(db: Database) -> list[Hypothesis]:
    """All hypotheses, oldest first."""
    return select(db, Hypothesis)


def hypothesis(db: Database, id: RowId) -> Hypothesis:
    """One hypothesis."""
    return get(db, Hypothesis, id)


def set_hypothesis(
    db: Database, id: RowId, *, state: HypothesisState, by: str, reason: str = "", evidence: Evidence = ()
) -> Hypothesis:
    """Decide a hypothesis: the lab where it has a predicate, a person otherwise."""
    return change(db, Hypothesis, id, state=state, by=by, reason=reason, evidence=tuple(evidence))


def add_assumption(db: Database, assumption: Assumption) -> Assumption:
    """Add something taken for granted."""
    return add(db, assumption, keys=["text", "about"])


def assumptions(db: Database) -> list[Assumption]:
    """All assumptions, oldest first."""
    return select(db, Assumption)


def assumption(db: Database, id: RowId) -> Assumption:
    """One assumption."""
    return get(db, Assumption, id)


def set_assumption(db: Database, id: RowId, *, state: AssumptionState, reason: str = "") -> Assumption:
    """Say whether an assumption held."""
    return change(db, Assumption, id, state=state, reason=reason)
