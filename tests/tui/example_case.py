"""A case written by hand into a real store, for the tests and pictures of the screen. Its numbers are made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from store.models import (
    Assumption,
    Attempt,
    Bisect,
    CaseInfo,
    ChangedLine,
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
    Run,
)
from store.store import Store
from tests.tui.example_text import GUARD_DIFF, INDEXER_DIFF, SOURCE

LENGTHS = (256, 512, 1024, 2048, 4096)
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)

_STACK: tuple[tuple[str, int, str, str], ...] = (
    ("hash-topk-routed-scaling", 1, "moe: HashTopK folds the routed scaling factor", "changes who applies the factor"),
    ("nvfp4-experts", 1, "moe: experts in NVFP4", "new weight format on the hot path"),
    ("mhc-bf16-gemm", 1, "hyper: pre-mix GEMM in bf16", "precision of every layer's input"),
    ("fp8-scaling-guard", 2, "fp8: guard the routed scaling factor", "touches the factor"),
    ("splitk-decode", 2, "attention: split-K decode", "merges partial softmax"),
    ("triton-indexer", 3, "indexer: Triton scores", "new kernel"),
)


def empty_case(path: Path) -> Store:
    """A case that has just been made: a symptom and nothing else."""
    return Store.create(
        path,
        CaseInfo(
            slug="long-needle",
            symptom="Long prompts lose the needle since the weekly update",
            repo="/repo",
            target_toml="",
            base="9ab01c2d" * 5,
            head="4f1c2abe" * 5,
            machine={"gpu": "no GPU"},
            created_utc="2026-11-29T22:00:00Z",
        ),
    )


def _patches(store: Store) -> None:
    for position, (name, tier, subject, reason) in enumerate(_STACK):
        diff = GUARD_DIFF if name == "fp8-scaling-guard" else INDEXER_DIFF
        store.put_patch(
            Patch(
                name=name, role="stack", kind="commit", position=position, commit=f"{position + 10:x}c0de" * 8,
                patch_id=f"{position}" * 40, subject=subject, diff=diff, tier=tier, reason=reason,
            )
        )  # fmt: skip
    for position, name in enumerate(("indexer-bf16-keys", "indexer-fp8-layout")):
        store.put_patch(
            Patch(
                name=name, role="candidate", kind="file", position=position, commit=None, patch_id=f"c{position}" * 20,
                subject=name.replace("-", " "), diff=INDEXER_DIFF, source=f"candidates/{name}.patch",
                reason="cures the symptom or the cause",
            )
        )  # fmt: skip


def _recall(arm: str, length: int, depth: float) -> float:
    """Whole inside the indexer's reach; beyond it lost unless the arm carries a fix."""
    if length <= 512 or "+" in arm:
        return 1.0
    return max(0.2, 0.75 - 0.15 * (LENGTHS.index(length) - 2) - 0.1 * (0.9 - depth))


def needle_run(store: Store, arm: str, *, contexts: int = 20, status: str = "ok") -> int:
    """A needle run with its items; returns the run's id."""
    run = store.put_run(
        Run(
            key=f"needle {arm}", probe="needle", arm=arm, patches=(), tree="a" * 40, seed=0, instrumentation="traced",
            command=f"cd .livepath/long-needle/worktrees/{arm} && PYTHONPATH=. python3 -m engine.probes.needle",
            created_utc="2026-11-29T22:01:00Z",
        )
    )  # fmt: skip
    assert run.id is not None
    begun = store.attempts(run.id)
    attempt = Attempt(
        id=begun[0].id if begun else None, run_id=run.id, number=1, status="running", folder=f"runs/{run.id}",
        fully_traced=True, wall_s=12.5,
        started_utc=f"2026-11-29T22:0{run.id % 10}:10Z",
    )  # fmt: skip
    if status == "running":
        store.add_attempt(attempt)
        return run.id
    items = []
    for length in LENGTHS:
        for depth in DEPTHS:
            good = round(_recall(arm, length, depth) * contexts)
            items += [
                Item(
                    attempt_id=0, item=f"{length}/{depth}/{context}", cluster=f"c{context}",
                    score=float(context < good), tags={"length": length, "depth": depth},
                )
                for context in range(contexts)
            ]  # fmt: skip
    store.record_attempt(replace(attempt, status="ok"), items=items)
    return run.id


def scaling_run(store: Store, arm: str, *, factor: float = 1.0) -> int:
    """A scaling run with one exponent per layer, phase and branch; returns the run's id."""
    run = store.put_run(
        Run(
            key=f"scaling {arm}", probe="scaling", arm=arm, patches=(), tree="b" * 40, seed=0, instrumentation="traced",
            command=f"cd .livepath/long-needle/worktrees/{arm} && PYTHONPATH=. python3 -m engine.probes.scaling",
            created_utc="2026-11-29T22:05:00Z",
        )
    )  # fmt: skip
    assert run.id is not None
    metrics = [
        Metric(
            attempt_id=0, name="exponent", value=factor if branch == "routed" else 0.0,
            tags={"layer": layer, "phase": phase, "branch": branch},
        )
        for layer in range(2) for phase in ("prefill", "decode") for branch in ("routed", "shared")
    ]  # fmt: skip
    store.record_attempt(
        Attempt(run_id=run.id, number=1, status="ok", folder=f"runs/{run.id}", fully_traced=True, wall_s=3.2,
                started_utc="2026-11-29T22:05:10Z"),
        metrics=metrics,
    )  # fmt: skip
    return run.id


def _changed(store: Store, patch: str, run_id: int, word: LivenessWord, path: str, lines: dict[int, str]) -> None:
    store.put_changed_lines(
        [
            ChangedLine(
                patch=patch, run_id=run_id, path=path, line=line, text=text, acting=not text.strip().startswith("#"),
                word=word,
            )
            for line, text in lines.items()
        ]
    )  # fmt: skip


def _thoughts(store: Store) -> None:
    store.add_question(
        Question(
            text="Who multiplies by the routed scaling factor?", how="multiplies routed_scaling_factor",
            state="answered",
            answer="HashTopK.forward and Fp8MoEMethod.apply", evidence=({"path": "engine/topk.py", "start": 88},),
            created_utc="2026-11-29T22:00:05Z",
        )
    )  # fmt: skip
    store.add_question(
        Question(text="Is the loaded code the worktree's?", how="loaded engine", created_utc="2026-11-29T22:00:06Z")
    )
    store.add_hypothesis(
        Hypothesis(
            text="fp8 precision of the index keys loses the needle",
            predicate=Predicate(
                probe="needle", metric="recall[length>=1024]", arm="full+indexer-fp8-layout", operator="<", number=0.95
            ),
            refuted_if="recall is whole while the keys stay fp8",
            created_utc="2026-11-29T22:00:10Z",
        )
    )
    store.add_hypothesis(
        Hypothesis(
            text="the index page is written in one layout and read in another", created_utc="2026-11-29T22:00:11Z"
        )
    )
    store.add_assumption(Assumption(text="the deployment runs NVFP4 experts", created_utc="2026-11-29T22:00:12Z"))


def running_case(path: Path) -> Store:
    """A case in the middle of its investigation."""
    return _copy(_running, path)


def finished_case(path: Path) -> Store:
    """A case whose investigation has ended."""
    return _copy(_finished, path)


def bisected_case(path: Path) -> Store:
    """A finished case whose stack was searched with another probe, which found what the first did not see."""
    return _copy(_bisected, path)


@cache
def _file_of(make: Callable[[Path], Store]) -> bytes:
    """The file of a case, written once: a hundred committed changes take a while."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "case.db"
        make(path).close()
        return path.read_bytes()


def _copy(make: Callable[[Path], Store], path: Path) -> Store:
    path.write_bytes(_file_of(make))
    store = Store.open(path)
    for job in store.jobs():
        if job.state == "running" and job.id is not None and job.pid is not None:
            store.beat(job.id, job.pid)
    return store


def _running(path: Path) -> Store:
    store = empty_case(path)
    _patches(store)
    _thoughts(store)
    job = store.add_job(Job(kind="investigate", argument={}, created_utc="2026-11-29T22:00:00Z"))
    assert job.id is not None
    store.claim_job(job.id, 4711)
    store.progress(job.id, 4, 18, "needle on full: 62%, about 1:10 left")
    base = needle_run(store, "base")
    needle_run(store, "full", status="running")
    _changed(store, "fp8-scaling-guard", base, "executed", "engine/methods/fp8.py", {61: "if factor is not None:"})
    return store


def _finished(path: Path) -> Store:
    store = _running(path)
    full = needle_run(store, "full")
    layout = needle_run(store, "full+indexer-fp8-layout")
    keys = needle_run(store, "base+indexer-bf16-keys")
    fixed = needle_run(store, "full+fix")
    scaling = scaling_run(store, "full+fix")
    _changed(
        store, "indexer-fp8-layout", layout, "executed", "engine/index_page.py",
        {42: "# all values of the page first, then all scales", 43: "value = slot * self.dim",
         44: "scale = self.page_size * self.dim + slot * 4", 73: "return page[:, self.page_size * self.dim :]"},
    )  # fmt: skip
    _changed(
        store, "fp8-scaling-guard", fixed, "not_seen", "engine/methods/fp8.py",
        {59: "factor = layer.routed_scaling_factor", 60: "fused = layer.should_fuse_routed_scaling_factor_in_topk",
         61: "if factor is not None and not fused:", 62: "out = out * factor"},
    )  # fmt: skip
    for name in ("hash-topk-routed-scaling", "nvfp4-experts", "mhc-bf16-gemm", "splitk-decode"):
        _changed(store, name, fixed, "executed", "engine/index_page.py", {43: "value = slot * self.dim"})
    _changed(store, "triton-indexer", fixed, "not_seen", "engine/index_page.py", {43: "value = slot * self.dim"})

    better = store.add_comparison(
        Comparison(
            probe="needle", metric="recall", background="full", without_arm="full", with_arm="full+indexer-fp8-layout",
            without_run=full, with_run=layout, outcome="better", n=60, items=1500, difference=0.412, low=0.36,
            high=0.47, p_value=1e-9, discordant=58, margin=0.05, alpha=0.05,
        )
    )  # fmt: skip
    equal = store.add_comparison(
        Comparison(
            probe="needle", metric="recall", background="full+fix", without_arm="full+fix-mhc-bf16-gemm",
            with_arm="full+fix", without_run=layout, with_run=fixed, outcome="equivalent", n=60, items=1500,
            difference=0.001, low=-0.012, high=0.014, p_value=0.8, discordant=3, margin=0.05, alpha=0.05,
        )
    )  # fmt: skip
    for candidate in ("indexer-bf16-keys", "indexer-fp8-layout"):
        store.put_verdict(
            PatchVerdict(
                patch=candidate, probe="needle", background="full", verdict="fix", reason="recall is whole with it",
                comparison_id=better.id, runs=(full, layout),
            )
        )  # fmt: skip
    joint = ("hash-topk-routed-scaling", "nvfp4-experts")
    for name in (*joint, "mhc-bf16-gemm", "splitk-decode"):
        store.put_verdict(
            PatchVerdict(
                patch=name, probe="needle", background="full+fix", verdict="exonerated", comparison_id=equal.id,
                reason="equivalent inside the margin", control="window-halved", runs=(fixed,),
                verdict_with=tuple(other for other in joint if other != name) if name in joint else (),
            )
        )  # fmt: skip
    store.put_verdict(
        PatchVerdict(patch="fp8-scaling-guard", probe="needle", background="full+fix", verdict="dead", runs=(fixed,),
                     reason="no acting line ran in a fully traced run", given=("nvfp4-experts",))
    )  # fmt: skip
    store.put_verdict(
        PatchVerdict(patch="triton-indexer", probe="needle", background="full+fix", verdict="dead", runs=(fixed,),
                     reason="no acting line ran in a fully traced run", given=("no GPU",))
    )  # fmt: skip

    reading = store.add_reading(
        Reading(path="engine/methods.py", start=11, end=16, rev="4f1c2abe" * 5, blob="b" * 40, text_sha256="c" * 64,
                text="\n".join(SOURCE.splitlines()[10:16]), qualname="Fp8MoEMethod.apply", note="skips the factor?",
                created_utc="2026-11-29T22:03:00Z")
    )  # fmt: skip
    assert reading.id is not None
    store.put_reading_liveness(
        ReadingLiveness(
            reading_id=reading.id, run_id=fixed, word="not_seen", given=("nvfp4-experts",),
            reason="0 of 4 acting lines ran in a fully traced run",
            siblings=({"path": "engine/methods.py", "start": 24, "end": 26, "qualname": "NvFp4MoEMethod.apply"},),
        )
    )  # fmt: skip
    store.add_reading(
        Reading(path="engine/methods.py", start=24, end=26, rev="4f1c2abe" * 5, blob="b" * 40, text_sha256="d" * 64,
                text="\n".join(SOURCE.splitlines()[23:26]), qualname="NvFp4MoEMethod.apply", note="the one that runs",
                created_utc="2026-11-29T22:03:30Z")
    )  # fmt: skip
    store.put_reading_liveness(
        ReadingLiveness(reading_id=2, run_id=fixed, word="executed", reason="2 of 2 acting lines ran")
    )

    store.set_question(2, state="answered", answer="yes: 14 of 14 modules", evidence=())
    store.set_hypothesis(
        1, state="refuted", by="lab", reason="recall[length>=1024] = 1.000 on full+indexer-fp8-layout, n=300",
        evidence=({"kind": "run", "id": layout},),
    )  # fmt: skip
    store.set_hypothesis(
        2, state="supported", by="lab", reason="both candidates cure it, one keeps fp8",
        evidence=({"kind": "run", "id": layout}, {"kind": "run", "id": keys}),
    )  # fmt: skip
    store.put_finding(
        Finding(
            claim="Index keys are written values-then-scales and read as records: indexer-fp8-layout mends the reader",
            verdict="fix", patch_id="c1" * 20, patch="indexer-fp8-layout", diff=INDEXER_DIFF,
            evidence=({"kind": "run", "id": full}, {"kind": "run", "id": layout},
                      {"kind": "comparison", "id": better.id}),
            key="fix:indexer-fp8-layout", created_utc="2026-11-29T22:07:00Z",
        )
    )  # fmt: skip
    store.put_finding(
        Finding(
            claim="fp8-scaling-guard is dead in the full stack: its FP8 method does not run with NVFP4 experts",
            verdict="dead", patch_id="3" * 40, patch="fp8-scaling-guard", diff=GUARD_DIFF,
            evidence=({"kind": "run", "id": fixed}, {"kind": "reading", "id": 1}), key="dead:fp8-scaling-guard",
            created_utc="2026-11-29T22:07:30Z",
        )
    )  # fmt: skip
    store.progress(1, 18, 18, "")
    store.finish_job(1, "done", "one cause found, four patches exonerated, two dead")
    assert scaling
    return store


def _bisected(path: Path) -> Store:
    store = _finished(path)
    run = scaling_run(store, "full+fix-triton-indexer", factor=2.0)
    store.put_verdict(
        PatchVerdict(
            patch="splitk-decode", probe="scaling", background="full+fix", verdict="culprit", runs=(run,),
            reason="exponent 2 with it, 1 without it",
        )
    )  # fmt: skip
    store.put_bisect(
        Bisect(
            probe="scaling", background="base+fix", outcome="culprit", culprits=("splitk-decode",), confidence=0.999,
            text="splitk-decode: exponent_error +1 (n 8) against full+fix-splitk-decode,triton-indexer",
            steps=(
                {"arm": "full+fix", "last": "mhc-bf16-gemm", "outcome": "equivalent", "difference": 0.0, "n": 8},
                {"arm": "full+fix", "last": "nvfp4-experts", "outcome": "cannot_be_tested"},
                {"arm": "full+fix", "last": "splitk-decode", "outcome": "worse", "difference": 1.0, "n": 8},
                {"arm": "full+fix", "last": "splitk-decode", "outcome": "bracket worse", "difference": 1.0, "n": 8},
            ),
        )
    )  # fmt: skip
    return store
