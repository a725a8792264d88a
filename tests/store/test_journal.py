"""The journal keeps every change, and undo adds to it."""

import pytest

from store.errors import StoreError
from store.models import Finding, Question
from store.store import Store
from tests.store.conftest import make_attempt, make_patch, make_run


def test_every_change_is_kept_with_before_after_and_actor(store: Store) -> None:
    question = store.add_question(Question(text="who multiplies?"))
    store.actor = "ada"
    store.set_question(question.id, answer="the kernel")

    inserted, updated = store.journal()[-2:]
    assert (inserted.action, inserted.noun, inserted.before, inserted.actor) == ("insert", "question", None, "lab")
    assert (updated.action, updated.row_id, updated.actor) == ("update", question.id, "ada")
    assert updated.before is not None
    assert updated.after is not None
    assert (updated.before["answer"], updated.after["answer"]) == ("", "the kernel")


def test_a_change_that_changes_nothing_leaves_no_entry(store: Store) -> None:
    store.put_patch(make_patch())
    entries = store.journal()

    store.put_patch(make_patch())

    assert store.journal() == entries


def test_a_record_is_one_entry_with_its_counts(store: Store) -> None:
    run = store.put_run(make_run())
    store.record_attempt(make_attempt(run.id))

    assert store.journal(newest=1)[0].after == {"items": 0, "metrics": 0, "claims": 0, "executed": 0}


@pytest.mark.parametrize("statement", ["DELETE FROM journal", "UPDATE journal SET actor = 'nobody'"])
def test_the_file_itself_refuses_to_change_the_journal(store: Store, statement: str) -> None:
    with pytest.raises(StoreError, match="append-only"), store.transaction() as connection:
        connection.execute(statement)

    assert store.journal()[0].actor == "lab"


def test_undo_reverses_changes_newest_first_and_says_so(store: Store) -> None:
    question = store.add_question(Question(text="who multiplies?"))
    store.set_question(question.id, answer="the kernel")

    undone = store.undo()
    assert store.question(question.id).answer == ""
    assert store.journal(newest=1) == [undone]
    store.undo()

    assert store.questions() == []
    assert store.search("multiplies") == []
    with pytest.raises(StoreError, match="stays"):
        store.undo()


def test_undo_leaves_other_people_s_changes_alone(store: Store) -> None:
    store.actor = "ada"
    store.add_question(Question(text="mine"))
    store.actor = "lab"
    store.add_question(Question(text="the lab's"))

    store.actor = "ada"
    store.undo()

    assert [question.text for question in store.questions()] == ["the lab's"]
    with pytest.raises(StoreError, match="ada has made no change"):
        store.undo()


def test_undo_refuses_when_the_row_changed_since(store: Store) -> None:
    store.actor = "ada"
    question = store.add_question(Question(text="q"))
    store.actor = "lab"
    store.set_question(question.id, answer="a")

    store.actor = "ada"
    with pytest.raises(StoreError, match="changed again"):
        store.undo()


def test_what_was_measured_is_not_undone(store: Store) -> None:
    store.put_run(make_run())

    with pytest.raises(StoreError, match=r"insert of run 1: that stays"):
        store.undo()

    assert len(store.runs()) == 1


def test_search_finds_parts_of_identifiers_and_paths(store: Store) -> None:
    store.put_patch(make_patch("fp8-scaling-guard", diff="+ routed_scaling_factor in hash_topk.py:12"))
    store.put_finding(Finding(claim='100% of it_is "quoted"', verdict=None, patch_id="", patch="", diff=""))

    assert [hit.noun for hit in store.search("routed_scal")] == ["patch"]
    assert [hit.noun for hit in store.search("hash_topk.py:12 p8")] == ["patch"]
    assert [hit.noun for hit in store.search('"quoted" 0%')] == ["finding"]
    assert "scaling_factor" in store.search("SCALING")[0].excerpt
    assert store.search("routed nowhere") == store.search("  ") == store.search("_%") == []


def test_search_follows_changes(store: Store) -> None:
    question = store.add_question(Question(text="who multiplies?"))
    store.set_question(question.id, answer="the epilogue")

    assert [hit.id for hit in store.search("epilogue")] == [question.id]
