"""A gateway for the tests of the screen: a real store, no lab."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from store.errors import UsageError
from store.models import Hypothesis, Job, LivenessWord, Reading
from store.store import Store
from tests.tui.example_text import SOURCE
from tui.screen_gateway import Version
from tui.view import CaseView, Source, SourceLine, ViewBuilder

_RAN = {9, 22, 25, 26}
_DEAD = {12, 13, 14, 15, 16}


class FakeGateway:
    """Answers from a store that the test made; remembers what it was asked to do."""

    def __init__(self, make: Callable[[Path], Store], path: Path) -> None:
        self.make = make
        self.path = path
        self.asked: list[tuple[str, ...]] = []
        self.error: Exception | None = None
        self._store: Store | None = None
        self._builder: ViewBuilder | None = None

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    def open(self) -> None:
        if self.error:
            raise self.error
        self._store = self.make(self.path)
        self._builder = ViewBuilder(self._store)

    def poll(self, known: Version | None) -> tuple[Version, CaseView] | None:
        assert self._builder is not None
        version = (0, self.store.connection.total_changes)
        return None if version == known else (version, self._builder.build())

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def investigate(self) -> str:
        self.store.add_job(Job(kind="investigate", argument={}))
        self.asked.append(("investigate",))
        return "the investigation goes on"

    def cancel(self, job_id: int) -> str:
        self.asked.append(("cancel", str(job_id)))
        self.store.request_cancel(job_id)
        return f"job {job_id} was asked to stop"

    def source(self, path: str, rev: str | None, run_id: int | None = None) -> Source:
        if path != "engine/methods.py":
            raise UsageError(f"no file `{path}` in the traced folders", hint="nearest: engine/methods.py")
        words: dict[int, LivenessWord] = dict.fromkeys(_RAN, "executed") | dict.fromkeys(_DEAD, "not_seen")
        words |= {3: "bound", 6: "bound", 11: "bound", 19: "bound", 24: "bound"}
        lines = tuple(SourceLine(text, words.get(n)) for n, text in enumerate(SOURCE.splitlines(), start=1))
        return Source(path=path, rev=rev or "4f1c2abe" * 5, lines=lines, run="run 5 (needle on full+fix), fully traced")

    def tail(self, run_id: int) -> str:
        return f"needle: context 12 of 60\nneedle: context 13 of 60 \x1b[31mrun {run_id}\x1b[0m\n"

    def add_hypothesis(self, text: str, prediction: str, refuted_if: str) -> str:
        if prediction and " on " not in prediction:
            raise UsageError(f"`{prediction}` is no prediction", hint="write probe.metric on arm OP number")
        self.asked.append(("add_hypothesis", text, prediction, refuted_if))
        self.store.add_hypothesis(Hypothesis(text=text, refuted_if=refuted_if))
        return "hypothesis added"

    def add_reading(self, spec: str, note: str) -> str:
        self.asked.append(("add_reading", spec, note))
        path, _, lines = spec.partition("@")[0].rpartition(":")
        start, _, end = lines.partition("-")
        self.store.add_reading(
            Reading(path=path, start=int(start), end=int(end or start), rev="4f1c2abe" * 5, blob="b" * 40,
                    text_sha256=spec, text="", note=note)
        )  # fmt: skip
        return f"reading {spec} added"

    def start_ab(self, patch: str, probe: str) -> str:
        self.store.patch(patch)
        self.asked.append(("start_ab", patch, probe))
        self.store.add_job(Job(kind="ab", argument={"patch": patch, "probe": probe}))
        return f"A/B of {patch} asked for"

    def start_bisect(self, probe: str) -> str:
        self.asked.append(("start_bisect", probe))
        self.store.add_job(Job(kind="bisect", argument={"probe": probe}))
        return "a bisect was asked for"

    def withdraw_finding(self, finding_id: int, reason: str) -> str:
        self.asked.append(("withdraw", str(finding_id), reason))
        self.store.withdraw_finding(finding_id, reason)
        return f"finding {finding_id} withdrawn"
