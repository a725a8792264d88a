"""The worked case: what an engineer wrote down when the deployed engine began to lose facts in long contexts.

Contract: everything here is what a person would type (symptom, suspicions with tier and reason, questions, hypotheses
with predictions, one reading, a recorded terminal session); no result is. All results come from runs on this machine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lab.case import Case, create_case, home_of, open_case, slugs
from lab.demo import make_demo
from lab.git import Git
from lab.readings import make_reading
from lab.series import PATCHES
from lab.session import import_session
from lab.source import parse
from store.models import Assumption, Hypothesis, Predicate, Question

SYMPTOM = (
    "On long multi-turn prompts the model stops recalling facts that were planted in earlier turns. Nothing crashes, "
    "short prompts are fine, and every answer is fluent. A stack of speed patches went in before."
)

# name: (tier, why it is suspected, kinds of fault it could be)
SUSPECTS = {
    "hash-topk-routed-scaling": (
        1,
        "multiplies the top-k weights by the routed scaling factor; applied twice, every token would be off",
        ("scaling",),
    ),
    "nvfp4-experts": (1, "every routed expert is read from 4-bit weights on another code path", ("scaling", "experts")),
    "mhc-bf16-gemm": (1, "the hyper-connection mix touches every token in every layer, now in bf16", ("mixing",)),
    "fp8-scaling-guard": (2, "rewrites a multiplication by the routed scaling factor", ("scaling",)),
    "splitk-decode": (2, "merges partial softmaxes by log-sum-exp; only decode takes this path", ("attention",)),
    "triton-indexer": (3, "another kernel selects what decode attends to", ("indexer",)),
    "indexer-bf16-keys": (None, "keeps the index keys in bf16 instead of fp8", ("indexer",)),
    "indexer-fp8-layout": (None, "reads the fp8 index page in the layout it is written in", ("indexer",)),
}

QUESTIONS = (
    ("Who multiplies by the routed scaling factor?", "multiplies routed_scaling_factor"),
    (
        "What does each expert method declare about fusing the factor into top-k?",
        "declares should_fuse_routed_scaling_factor_in_topk",
    ),
    ("Is the code that is loaded the code of the worktree?", "loaded engine"),
)

# text, prediction, what would refute it
HYPOTHESES = (
    (
        "The stack broke recall: the engine as deployed before it recalls long contexts",
        Predicate(probe="needle", metric="recall", arm="base", operator=">=", number=0.95),
        "recall below 0.95 on base",
    ),
    (
        "The fault lies beyond the indexer's reach of 512 tokens: shorter contexts are whole",
        Predicate(probe="needle", metric="recall[length<=512]", arm="full", operator=">=", number=0.95),
        "a loss at 256 or 512 tokens, which would acquit the indexer",
    ),
    (
        "The routed scaling factor is applied twice with the full stack",
        Predicate(probe="scaling", metric="exponent_error", arm="full", operator=">=", number=0.5),
        "an exponent of 1 in every layer and phase",
    ),
    (
        "fp8 precision of the index keys loses the needle",
        Predicate(
            probe="needle", metric="recall[length>=1024]", arm="base+indexer-fp8-layout", operator="<", number=0.95
        ),
        "recall returning while the keys stay fp8",
    ),
    (
        "The fp8 index page is written in one layout and read in another",
        Predicate(
            probe="needle", metric="recall[length>=1024]", arm="base+indexer-fp8-layout", operator=">=", number=0.95
        ),
        "no recovery when only the reader's layout is mended",
    ),
)

ASSUMPTIONS = (
    ("The checkpoint itself recalls these facts when the engine is right", "hypothesis:1"),
    ("The experts run from NVFP4 weights once the stack is in", ""),
)

READING = ("engine/methods/fp8.py", "Fp8MoEMethod.apply", "read while looking for who multiplies by the factor")


def open_worked_case(directory: Path) -> Case:
    """The worked case of the demo in `directory`, made when it is not there yet."""
    make_demo(directory)
    git = Git(directory)
    slug = f"recall-{git.commit('main')[:8]}"
    if slug in slugs(home_of(git.root)):
        return open_case(directory, slug)
    case = create_case(directory, slug, SYMPTOM)
    _write_down(case)
    return case


def _write_down(case: Case) -> None:
    store = case.store
    for name, (tier, reason, suspected) in SUSPECTS.items():
        store.put_patch(replace(store.patch(name), tier=tier, reason=reason, suspected=suspected))
    for text, how in QUESTIONS:
        store.add_question(Question(text=text, how=how))
    for text, predicate, refuted_if in HYPOTHESES:
        store.add_hypothesis(Hypothesis(text=text, predicate=predicate, refuted_if=refuted_if))
    for text, about in ASSUMPTIONS:
        store.add_assumption(Assumption(text=text, about=about))
    path, qualname, note = READING
    source = parse((case.git.read("main", path) or b"").decode())
    method = source.named(qualname) if source else None
    if method is not None:
        store.add_reading(make_reading(case.git, f"{path}:{method.start}-{method.end}@main", note))
    import_session(case, PATCHES / "session.log")
