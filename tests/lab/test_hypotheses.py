"""Hypotheses that decide themselves, on a real case file."""

from pathlib import Path

import pytest

from lab.hypotheses import decide_hypotheses, predicate_text
from lab.metric import Measurement
from lab.target import Target
from store.models import CaseInfo, Hypothesis, Predicate
from store.store import Store
from tests.lab.measurements import STARTED, contexts, measurement

BEFORE, AFTER = "2026-01-01T00:00:00.000000Z", "2026-01-03T00:00:00.000000Z"
FIX = Predicate(probe="needle", metric="recall[length>=1024]", arm="base+fix", operator=">=", number=0.9)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    (tmp_path / "livepath.toml").write_text(
        'schema = 1\n[target]\nbase = "v1"\nhead = "main"\n[probe.needle]\ncommand = "true"\nmetric = "recall"\n'
    )
    return Target.load(tmp_path)


@pytest.fixture
def store(tmp_path: Path):
    info = CaseInfo(slug="s", symptom="it forgets", repo=str(tmp_path), target_toml="", base="a", head="b")
    with Store.create(tmp_path / "case.db", info) as opened:
        yield opened


def needle(right: float) -> list[Measurement]:
    scores, tags = contexts(80, right=right)
    return [measurement("base+fix", scores=scores, tags=tags, run_id=7)]


def put(store: Store, predicate: Predicate | None = FIX, created_utc: str = BEFORE) -> Hypothesis:
    return store.add_hypothesis(Hypothesis(text="the layout is misread", predicate=predicate, created_utc=created_utc))


@pytest.mark.parametrize(("right", "state"), [(1.0, "supported"), (0.5, "refuted"), (0.9, "open")])
def test_predicate_decides_when_the_whole_interval_does(store: Store, target: Target, right: float, state: str) -> None:
    put(store)

    decide_hypotheses(store, target, lambda probe, arm: needle(right))

    decided = store.hypotheses()[0]
    assert (decided.state, decided.by) == (state, "lab")
    assert decided.evidence == ({"kind": "run", "id": 7},)
    assert "over 80 clusters" in decided.reason


def test_opposite_predicate_on_the_same_runs_is_refuted(store: Store, target: Target) -> None:
    put(store, Predicate(probe="needle", metric="recall", arm="base+fix", operator="<", number=0.9))

    decide_hypotheses(store, target, lambda probe, arm: needle(1.0))

    assert store.hypotheses()[0].state == "refuted"


def test_hypothesis_written_after_its_run_stays_open_and_says_exploratory(store: Store, target: Target) -> None:
    put(store, created_utc=AFTER)

    decide_hypotheses(store, target, lambda probe, arm: needle(1.0))

    assert store.hypotheses()[0].state == "open"
    assert store.hypotheses()[0].reason.startswith("exploratory")
    assert BEFORE < STARTED < AFTER


def test_arm_that_has_not_run_leaves_it_open_with_the_reason(store: Store, target: Target) -> None:
    put(store)

    decide_hypotheses(store, target, lambda probe, arm: [])

    assert store.hypotheses()[0].state == "open"
    assert "no run that counts on `base+fix`" in store.hypotheses()[0].reason


def test_unknown_probe_leaves_it_open_and_names_the_probe(store: Store, target: Target) -> None:
    put(store, Predicate(probe="unheard", metric="recall", arm="base", operator=">=", number=0.9))

    decide_hypotheses(store, target, lambda probe, arm: needle(1.0))

    assert "unheard" in store.hypotheses()[0].reason


def test_free_text_and_what_a_person_decided_are_left_alone(store: Store, target: Target) -> None:
    put(store, None)
    person = store.add_hypothesis(Hypothesis(text="parked by a person", predicate=FIX, created_utc=BEFORE))
    assert person.id is not None
    store.set_hypothesis(person.id, state="parked", by="ada", reason="later")

    changed = decide_hypotheses(store, target, lambda probe, arm: needle(1.0))

    assert changed == []
    assert [h.state for h in store.hypotheses()] == ["open", "parked"]


def test_second_decision_on_the_same_runs_changes_nothing(store: Store, target: Target) -> None:
    put(store)

    first = decide_hypotheses(store, target, lambda probe, arm: needle(1.0))
    second = decide_hypotheses(store, target, lambda probe, arm: needle(1.0))

    assert len(first) == 1
    assert second == []


def test_predicate_is_written_as_a_person_writes_it() -> None:
    assert predicate_text(FIX) == "needle.recall[length>=1024] on base+fix >= 0.9"
