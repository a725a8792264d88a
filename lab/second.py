"""The second chapter: the fix of the first is merged, and one more patch went in with it.

Contract: as in `lab/worked.py` everything here is what a person would type, no result. The stack is the whole history
since the base, eight patches, so that a bisect has something to search.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lab.case import Case, create_case, home_of, open_case, slugs
from lab.demo import SECOND_BRANCH, make_demo
from lab.git import Git
from lab.worked import SUSPECTS
from store.models import Assumption, Hypothesis, Predicate

SYMPTOM = (
    "Since the last deployment the logits drift from the reference, by more than any change of precision explains. The "
    "recall test that guards the fix of the index keys passes. One more speed patch went in together with that fix."
)

LATER = {
    "indexer-fp8-layout": (3, "only which entries decode attends to depends on it", ("indexer",)),
    "marlin-runner": (1, "another runner, with another contract about who applies the factor", ("scaling", "experts")),
}

# text, prediction, what would refute it
HYPOTHESES = (
    (
        "The routed scaling factor is applied twice with the full stack",
        Predicate(probe="scaling", metric="exponent_error", arm="full", operator=">=", number=0.5),
        "an exponent of 1 in every layer and phase",
    ),
    (
        "The last patch brought it: without it the factor counts once",
        Predicate(probe="scaling", metric="exponent_error", arm="full-marlin-runner", operator="<=", number=0.05),
        "an exponent that is off without it, too",
    ),
    (
        "The test of recall notices it",
        Predicate(probe="needle", metric="recall", arm="full", operator="<", number=0.95),
        "recall that is whole with the full stack",
    ),
    (
        "The logits drift from the reference",
        Predicate(probe="kl", metric="kl", arm="full", operator=">", number=1e-4),
        "a distance within the margin",
    ),
)

ASSUMPTION = "A test of recall that passes says nothing about the size of what the experts add"


def open_second_case(directory: Path) -> Case:
    """The case of the second chapter's demo in `directory`, made when it is not there yet."""
    make_demo(directory, chapter=2)
    git = Git(directory)
    slug = f"scaling-{git.commit(SECOND_BRANCH)[:8]}"
    if slug in slugs(home_of(git.root)):
        return open_case(directory, slug)
    case = create_case(directory, slug, SYMPTOM)
    for patch in case.stack:
        tier, reason, suspected = (SUSPECTS | LATER)[patch.name]
        case.store.put_patch(replace(patch, tier=tier, reason=reason, suspected=suspected))
    for text, predicate, refuted_if in HYPOTHESES:
        case.store.add_hypothesis(Hypothesis(text=text, predicate=predicate, refuted_if=refuted_if))
    case.store.add_assumption(Assumption(text=ASSUMPTION, about="hypothesis:3"))
    return case
