"""What each noun of a case promises beyond being stored."""

import threading
from pathlib import Path

import pytest

from store.errors import StoreError
from store.models import (
    Assumption,
    ChangedLine,
    Claim,
    Comparison,
    ExecutedFile,
    Finding,
    Hypothesis,
    Item,
    Job,
    Metric,
    PatchVerdict,
    Predicate,
    Question,
    Reading,
    ReadingLiveness,
)
from store.store import Store
from tests.store.conftest import INFO, make_attempt, make_patch, make_run

READING = Reading(
    path="moe.py", start=10, end=20, rev="c", blob="b", text_sha256="s", text="def apply(self):\n    pass\n"
)


def make_comparison(store: Store, **fields: object) -> Comparison:
    without, with_ = store.put_run(make_run("without")), store.put_run(make_run("with", arm="full"))
    values = {
        "probe": "needle", "metric": "recall", "background": "full", "without_arm": "full-P", "with_arm": "full",
        "without_run": without.id, "with_run": with_.id, "outcome": "equivalent", "n": 60, "items": 240,
        "difference": 0.0,
        "low": -0.01, "high": 0.01, "p_value": 1.0, "discordant": 0, "margin": 0.05, "alpha": 0.05,
    }  # fmt: skip
    return Comparison(**(values | fields))  # type: ignore[arg-type]


def test_a_patch_put_again_keeps_its_id_and_takes_the_new_words(store: Store) -> None:
    first = store.put_patch(make_patch(subject="old"))

    again = store.put_patch(make_patch(subject="new", tier=2))

    assert (again.id, again.subject, again.tier) == (first.id, "new", 2)
    assert store.patches() == [again]


def test_patches_come_as_stack_then_candidates_then_controls_in_position_order(store: Store) -> None:
    for name, role, position in [("x", "control", 0), ("b", "stack", 1), ("f", "candidate", 0), ("a", "stack", 0)]:
        store.put_patch(make_patch(name, role=role, position=position))

    assert [patch.name for patch in store.patches()] == ["a", "b", "f", "x"]
    assert [patch.name for patch in store.patches("stack")] == ["a", "b"]


def test_an_unknown_patch_names_those_there_are(store: Store) -> None:
    store.put_patch(make_patch("triton-indexer"))

    with pytest.raises(StoreError, match="no patch 'triton'") as caught:
        store.patch("triton")

    assert "triton-indexer" in caught.value.hint


def test_the_same_thought_added_twice_is_one_row(store: Store) -> None:
    predicate = Predicate(probe="needle", metric="recall", arm="base+C", operator=">=", number=0.95)
    for _ in range(2):
        store.add_question(Question(text="who multiplies?", how="multiplies routed_scaling_factor"))
        store.add_hypothesis(Hypothesis(text="fp8 loses it", predicate=predicate))
        store.add_assumption(Assumption(text="one GPU", about="run:1"))
        store.add_reading(READING)

    assert len(store.questions()) == len(store.hypotheses()) == len(store.assumptions()) == len(store.readings()) == 1
    assert store.hypotheses()[0].predicate == predicate


def test_a_hypothesis_keeps_the_prediction_it_was_made_with(store: Store) -> None:
    first = Predicate(probe="needle", metric="recall", arm="base", operator="<", number=0.9)
    later = Predicate(probe="needle", metric="recall", arm="base", operator="<", number=0.99)
    store.add_hypothesis(Hypothesis(text="it falls", predicate=first))

    assert store.add_hypothesis(Hypothesis(text="it falls", predicate=later)).predicate == first


def test_thoughts_are_decided_by_id(store: Store) -> None:
    question = store.add_question(Question(text="q"))
    hypothesis = store.add_hypothesis(Hypothesis(text="h"))
    assumption = store.add_assumption(Assumption(text="a"))

    store.set_question(question.id, answer="two places", evidence=[{"kind": "reading", "id": 1}])
    store.set_hypothesis(
        hypothesis.id, state="refuted", by="lab", reason="recall is 1.0", evidence=[{"kind": "run", "id": 3}]
    )
    store.set_assumption(assumption.id, state="broken", reason="two GPUs")

    assert store.question(question.id).state == "answered"
    assert store.question(question.id).evidence == ({"kind": "reading", "id": 1},)
    assert (store.hypothesis(hypothesis.id).state, store.hypothesis(hypothesis.id).by) == ("refuted", "lab")
    assert store.assumption(assumption.id).state == "broken"


@pytest.mark.parametrize(
    "noun", ["question", "hypothesis", "assumption", "reading", "run", "comparison", "finding", "job"]
)
def test_a_row_that_is_not_there_is_named(store: Store, noun: str) -> None:
    with pytest.raises(StoreError, match=f"no {noun} 7 in this case"):
        getattr(store, noun)(7)


def test_a_run_is_found_by_its_key_and_takes_a_new_arm_name(store: Store) -> None:
    first = store.put_run(make_run(arm="full", seed=1))

    again = store.put_run(make_run(arm="full+fix", seed=2))

    assert (again.id, again.arm, again.seed) == (first.id, "full+fix", 1)
    assert store.run_by_key("key") == again
    assert store.run_by_key("other") is None
    assert store.runs(probe="needle", arm="full+fix") == [again]
    assert store.runs(arm="full") == []


def test_attempts_are_numbered_and_the_last_that_measured_counts(store: Store) -> None:
    run = store.put_run(make_run())
    for status in ("ok", "bad", "cannot_be_tested", "running"):
        store.add_attempt(make_attempt(run.id, status=status))

    assert [attempt.number for attempt in store.attempts(run.id)] == [1, 2, 3, 4]
    last = store.last_good_attempt(run.id)
    assert last is not None
    assert (last.number, last.status) == (2, "bad")
    assert last.started_utc.endswith("Z")


def test_an_attempt_is_recorded_with_all_it_left_behind(store: Store) -> None:
    run = store.put_run(make_run())
    started = store.add_attempt(make_attempt(run.id, status="running"))

    recorded = store.record_attempt(
        make_attempt(run.id, id=started.id, number=1, wall_s=2.5, blind=("torch.compile",)),
        items=[Item(attempt_id=0, item="L256/c0/q0", cluster="L256/c0", score=1.0, tags={"length": 256})],
        metrics=[Metric(attempt_id=0, name="recall", value=0.5, n=1)],
        claims=[
            Claim(attempt_id=0, event="route", body={"op": "topk"}),
            Claim(attempt_id=0, event="constant", body={"value": 2.5}),
        ],
        executed=[ExecutedFile(attempt_id=0, path="engine/moe.py", sha256="s", lines=(1, 2), arcs=((-1, 1), (1, 2)))],
    )

    assert recorded.id == started.id
    assert store.attempts(run.id) == [recorded]
    assert [item.tags for item in store.items(recorded.id)] == [{"length": 256}]
    assert [metric.value for metric in store.metrics(recorded.id)] == [0.5]
    assert [claim.body for claim in store.claims(recorded.id, event="constant")] == [{"value": 2.5}]
    assert len(store.claims(recorded.id)) == 2
    assert store.executed(recorded.id)["engine/moe.py"].arcs == ((-1, 1), (1, 2))


def test_recording_an_attempt_again_replaces_its_rows(store: Store) -> None:
    run = store.put_run(make_run())
    items = [Item(attempt_id=0, item=str(number), cluster="c", score=0.0) for number in range(3)]
    first = store.record_attempt(make_attempt(run.id), items=items)

    store.record_attempt(first, items=items[:1])

    assert len(store.items(first.id)) == 1


def test_a_record_that_fails_leaves_no_part_of_it(store: Store) -> None:
    run = store.put_run(make_run())
    file = ExecutedFile(attempt_id=0, path="a.py", sha256="s", lines=())

    with pytest.raises(StoreError, match="UNIQUE"):
        store.record_attempt(
            make_attempt(run.id), metrics=[Metric(attempt_id=0, name="m", value=1.0)], executed=[file, file]
        )

    assert store.attempts(run.id) == []
    assert store.query("SELECT * FROM metric") == []


def test_an_attempt_of_no_run_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        store.add_attempt(make_attempt(99))


def test_a_verdict_replaces_the_earlier_one_of_the_same_patch_probe_and_background(store: Store) -> None:
    store.put_patch(make_patch())
    comparison = store.add_comparison(make_comparison(store))
    for background, word in [("full", "inconclusive"), ("full", "exonerated"), ("full+fix", "dead")]:
        store.put_verdict(
            PatchVerdict(
                patch="splitk-decode", probe="needle", background=background, verdict=word, reason="r",  # type: ignore[arg-type]
                comparison_id=comparison.id, runs=(1, 2),
            )
        )  # fmt: skip

    assert [(verdict.background, verdict.verdict) for verdict in store.verdicts("splitk-decode")] == [
        ("full", "exonerated"),
        ("full+fix", "dead"),
    ]
    assert store.verdicts("splitk-decode")[0].runs == (1, 2)
    assert store.comparisons(patch="splitk-decode") == [comparison]
    assert store.comparisons(patch="other") == []


def test_a_comparison_made_again_from_the_same_runs_is_the_same_row(store: Store) -> None:
    first = store.add_comparison(make_comparison(store))

    assert store.add_comparison(make_comparison(store)) == first
    assert store.add_comparison(make_comparison(store, outcome="undecided")).id != first.id
    assert len(store.comparisons(probe="needle", background="full")) == 2


def test_changed_lines_of_a_patch_in_a_run_are_replaced_together(store: Store) -> None:
    store.put_patch(make_patch())
    runs = [store.put_run(make_run(key)) for key in ("one", "two")]
    lines = [
        ChangedLine(patch="splitk-decode", run_id=run.id, path="a.py", line=n, text="x", acting=True, word="executed")  # type: ignore[arg-type]
        for run in runs
        for n in (3, 1)
    ]
    store.put_changed_lines(lines)

    store.put_changed_lines(lines[:1])

    assert [line.line for line in store.changed_lines("splitk-decode", run_id=runs[0].id)] == [3]
    assert [line.line for line in store.changed_lines("splitk-decode")] == [3, 1, 3]


def test_liveness_of_a_reading_is_kept_per_run(store: Store) -> None:
    reading, run = store.add_reading(READING), store.put_run(make_run())
    for word in ("unknown", "not_seen"):
        sibling = {"path": "moe.py", "start": 30, "end": 40, "qualname": "NvFp4MoEMethod.apply"}
        store.put_reading_liveness(
            ReadingLiveness(reading_id=reading.id, run_id=run.id, word=word, siblings=(sibling,))  # type: ignore[arg-type]
        )

    (liveness,) = store.reading_liveness(reading.id)
    assert (liveness.word, liveness.siblings[0]["qualname"]) == ("not_seen", "NvFp4MoEMethod.apply")


def test_a_finding_with_a_key_is_added_once_and_stays_withdrawn(store: Store) -> None:
    finding = Finding(claim="it is older", verdict="fix", patch_id="p", patch="f", diff="+x", key="fix:f")
    stored = store.put_finding(finding)
    store.withdraw_finding(stored.id, "the probe was wrong")

    again = store.put_finding(
        Finding(claim="it is older still", verdict="fix", patch_id="p", patch="f", diff="+x", key="fix:f")
    )

    assert (again.id, again.claim, again.withdrawn_reason) == (stored.id, "it is older still", "the probe was wrong")
    assert store.findings(include_withdrawn=False) == []


def test_findings_without_a_key_are_all_kept(store: Store) -> None:
    for _ in range(2):
        store.put_finding(Finding(claim="seen by eye", verdict=None, patch_id="", patch="", diff=""))

    assert len(store.findings()) == 2


def test_a_finding_is_withdrawn_once_and_with_a_reason(store: Store) -> None:
    stored = store.put_finding(Finding(claim="c", verdict=None, patch_id="", patch="", diff=""))

    with pytest.raises(StoreError, match="without a reason"):
        store.withdraw_finding(stored.id, " ")
    store.withdraw_finding(stored.id, "stale")
    with pytest.raises(StoreError, match="withdrawn already: stale"):
        store.withdraw_finding(stored.id, "again")


def test_a_finding_is_flagged_and_the_flag_taken_off(store: Store) -> None:
    stored = store.put_finding(Finding(claim="c", verdict=None, patch_id="", patch="", diff=""))

    assert store.flag_finding(stored.id, "run 3 was withdrawn").flagged == "run 3 was withdrawn"
    assert store.flag_finding(stored.id, "").flagged == ""


def test_of_many_workers_that_claim_a_job_one_wins(store: Store, path: Path) -> None:
    job = store.add_job(Job(kind="investigate", argument={"demo": True}))
    won: list[int] = []

    def claim(pid: int) -> None:
        with Store.open(path) as own:
            if own.claim_job(job.id, pid):
                won.append(pid)

    workers = [threading.Thread(target=claim, args=[pid]) for pid in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert won == [store.job(job.id).pid]
    assert store.job(job.id).state == "running"


def test_a_job_whose_worker_is_silent_is_taken_over_and_the_old_worker_told(store: Store) -> None:
    job = store.add_job(Job(kind="run", argument={}))
    assert store.claim_job(job.id, 100)
    assert store.stale_jobs(60) == []
    assert not store.claim_job(job.id, 200, stale_s=60)

    with store.transaction() as connection:
        connection.execute("UPDATE job SET heartbeat_utc = '2026-01-01T00:00:00.000000Z'")
    assert [stale.id for stale in store.stale_jobs(60)] == [job.id]
    assert store.claim_job(job.id, 200, stale_s=60)

    assert not store.beat(job.id, 100)
    assert store.beat(job.id, 200)


def test_a_job_of_a_dead_worker_is_taken_over_by_one_of_those_that_found_it_dead(store: Store) -> None:
    job = store.add_job(Job(kind="run", argument={}))
    store.claim_job(job.id, 100)

    assert not store.claim_job(job.id, 200, from_pid=99)
    assert store.claim_job(job.id, 200, from_pid=100)
    assert not store.claim_job(job.id, 300, from_pid=100)
    assert store.beat(job.id)
    assert not store.beat(job.id, 100)


def test_progress_and_heartbeats_are_seen_but_not_journalled(store: Store) -> None:
    job = store.add_job(Job(kind="run", argument={}))
    entries = len(store.journal())
    store.claim_job(job.id, 1)
    store.beat(job.id, 1)
    store.progress(job.id, 3, 10, "needle on base")

    seen = store.job(job.id)
    assert (seen.done, seen.total, seen.note) == (3, 10, "needle on base")
    assert len(store.journal()) == entries


def test_a_queued_job_is_cancelled_at_once_and_a_running_one_is_asked(store: Store) -> None:
    queued, running = (store.add_job(Job(kind="run", argument={})) for _ in range(2))
    store.claim_job(running.id, 1)

    assert store.request_cancel(queued.id).state == "cancelled"
    assert not store.claim_job(queued.id, 2)
    store.request_cancel(running.id)
    assert store.cancel_requested(running.id)
    store.finish_job(running.id, "cancelled", "stopped after 3 runs")
    with pytest.raises(StoreError, match="cancelled already"):
        store.request_cancel(running.id)


def test_a_case_is_closed_once(store: Store) -> None:
    closed = store.close_case()

    assert closed.closed_utc is not None
    assert store.close_case() == closed
    assert store.put_case(INFO).created_utc == closed.created_utc


def test_settings_are_any_json(store: Store) -> None:
    store.set_meta("sight", {"needle": ["indexer"]})
    store.set_meta("sight", {"needle": ["indexer", "attention"]})

    assert store.meta("sight") == {"needle": ["indexer", "attention"]}
    assert store.meta("absent", 5) == 5
