"""A case written by hand into a real case file: a stack of three, a candidate, a planted fault, runs, verdicts."""

from __future__ import annotations

from pathlib import Path

from store.models import (
    Assumption,
    Attempt,
    CaseInfo,
    ChangedLine,
    Claim,
    Comparison,
    Finding,
    Hypothesis,
    Item,
    Job,
    LivenessWord,
    Metric,
    Patch,
    PatchVerdict,
    Predicate,
    Question,
    Reading,
    ReadingLiveness,
    Role,
    Run,
)
from store.store import Store

TOML = """\
schema = 1
[probe.needle]
command = "needle"
controls = { indexer = "zoo/zero.patch" }
[probe.kl]
command = "kl"
"""
DIFF = "--- a/e.py\n+++ b/e.py\n@@ -1 +1 @@\n-a\n+b\n"


def patch(name: str, role: Role, position: int, *, tier: int | None = None, suspected: tuple[str, ...] = ()) -> Patch:
    return Patch(
        name=name,
        role=role,
        kind="commit",
        position=position,
        commit="c" * 40,
        patch_id=f"id-{name}",
        subject=name,
        diff=DIFF,
        tier=tier,
        reason="it touches every token",
        suspected=suspected,
    )


def write_case(path: Path) -> Store:
    """The file, open."""
    info = CaseInfo(
        slug="recall",
        symptom="It forgets <b>facts</b>.",
        repo=str(path.parent),
        target_toml=TOML,
        base="a" * 40,
        head="b" * 40,
        machine={"cpus": 2, "python": "3.11.7", "given": ["no GPU"]},
        livepath_version="0.1.0",
    )
    store = Store.create(path, info)
    store.put_patch(patch("fast", "stack", 0, tier=1, suspected=("indexer", "mixing")))
    store.put_patch(patch("guard", "stack", 1, tier=2, suspected=("indexer",)))
    store.put_patch(patch("unjudged", "stack", 2, tier=3))
    store.put_patch(patch("layout", "candidate", 0))
    store.put_patch(patch("zero", "control", 0))
    base = _run(store, "base", right=0.5)
    full = _run(store, "full+layout", right=1.0, patches=("fast", "guard", "layout"), blind=("a native kernel ran",))
    _run(store, "base+zero", right=0.0, patches=("zero",))
    store.set_meta(
        "endpoints", {"base": "bad", "full": "bad", "story": "older than the stack", "text": "base bad; full bad"}
    )
    store.set_meta(
        "sight",
        [
            {
                "probe": "needle",
                "kind": "indexer",
                "control": "zero",
                "background": "full",
                "seen": True,
                "text": "recall -1",
            },
            {"probe": "kl", "kind": "experts", "control": "swap", "background": "full", "seen": False, "text": "kl +0"},
        ],
    )
    comparison = store.add_comparison(
        Comparison(
            probe="needle",
            metric="recall",
            background="full+layout",
            without_arm="full+layout-fast",
            with_arm="full+layout",
            without_run=base,
            with_run=full,
            outcome="equivalent",
            n=60,
            items=240,
            difference=0.0,
            low=-0.049,
            high=0.049,
            p_value=1.0,
            discordant=0,
            margin=0.05,
            alpha=0.05,
        )
    )
    common = {"background": "full+layout", "probe": "needle"}
    store.put_verdict(
        PatchVerdict(
            patch="fast",
            verdict="exonerated",
            reason="recall +0 (n 60); sight by zero",
            control="zero",
            verdict_with=("other",),
            comparison_id=comparison.id,
            runs=(base, full),
            **common,
        )
    )
    store.put_verdict(
        PatchVerdict(
            patch="guard", verdict="dead", reason="no acting line ran", given=("fast",), runs=(full,), **common
        )
    )
    store.put_verdict(
        PatchVerdict(
            patch="layout",
            verdict="fix",
            reason="recall +0.5 (n 60)",
            probe="needle",
            background="base",
            runs=(base, full),
        )
    )
    _lines(store, "fast", full, ("executed", "executed", "not_seen"))
    _lines(store, "guard", full, ("not_seen",))
    _lines(store, "guard", base, ("executed",))
    _thoughts(store, full)
    store.put_finding(
        Finding(
            key="patch:layout",
            claim="`layout` is a fix: recall +0.5",
            verdict="fix",
            patch="layout",
            patch_id="id-layout",
            diff=DIFF,
            evidence=({"kind": "run", "id": full}, {"kind": "comparison", "id": 1}),
        )
    )
    store.add_job(Job(kind="investigate", argument={}))
    return store


def _run(store: Store, arm: str, *, right: float, patches: tuple[str, ...] = (), blind: tuple[str, ...] = ()) -> int:
    run = store.put_run(
        Run(
            key=arm,
            probe="needle",
            arm=arm,
            patches=patches,
            tree=f"tree-{arm}",
            seed=0,
            command=f"run needle on {arm}",
            instrumentation="traced",
        )
    )
    assert run.id is not None
    attempt = Attempt(run_id=run.id, number=0, status="ok", folder="f", wall_s=2.5, fully_traced=not blind, blind=blind)
    items = [
        Item(
            attempt_id=0,
            item=f"L{length}/c{context}/d{depth}",
            cluster=f"L{length}/c{context}",
            score=float(length == 256 or context < right * 10),
            tags={"length": length, "depth": depth},
        )
        for length in (256, 2048)
        for context in range(10)
        for depth in (0, 0.5)
    ]
    rows = [
        Metric(attempt_id=0, name="exponent", value=2.0, tags={"layer": 0, "phase": "decode", "branch": "routed"}),
        Metric(
            attempt_id=0, name="exponent", value=float("nan"), tags={"layer": 1, "phase": "decode", "branch": "routed"}
        ),
    ]
    body = {"event": "constant", "value": 2.5, "site": "topk", "layer": 0, "phase": "decode", "branch": "routed"}
    claims = [Claim(attempt_id=0, event="constant", body=body)]
    store.record_attempt(attempt, items=items, metrics=rows, claims=claims)
    return run.id


def _lines(store: Store, name: str, run: int, words: tuple[LivenessWord, ...]) -> None:
    store.put_changed_lines(
        ChangedLine(patch=name, run_id=run, path="e.py", line=number, text="x", acting=True, word=word)
        for number, word in enumerate(words, start=1)
    )


def _thoughts(store: Store, run: int) -> None:
    store.add_question(Question(text="Who multiplies?", how="multiplies f"))
    asked = store.add_question(Question(text="Which file is loaded?"))
    store.set_question(asked.id, answer="the worktree's", evidence=({"kind": "process"},))
    predicate = Predicate(probe="needle", metric="recall", arm="base", operator=">=", number=0.95)
    store.add_hypothesis(Hypothesis(text="the stack broke it", predicate=predicate, refuted_if="bad on base"))
    store.add_assumption(Assumption(text="the checkpoint is whole"))
    reading = store.add_reading(
        Reading(path="e.py", start=1, end=3, rev="b" * 40, blob="1", text_sha256="2", text="x", qualname="Fp8.apply")
    )
    assert reading.id is not None
    store.put_reading_liveness(
        ReadingLiveness(
            reading_id=reading.id,
            run_id=run,
            word="not_seen",
            reason="control never came here",
            siblings=({"path": "n.py", "start": 4, "end": 9, "qualname": "NvFp4.apply"},),
        )
    )
