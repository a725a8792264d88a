"""The screen's gateway on a real case: what the screen asks, said in the words of `Gateway`.

Contract: `open` may take seconds and makes the worked case where it is missing; every method is called in a worker
thread. The store is safe to share between threads, and the lab's git is a process per question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from store.errors import RepoError, UsageError
from tui.screen_gateway import Version

if TYPE_CHECKING:
    from tui.gateway import Gateway
    from tui.view import CaseView, Source, ViewBuilder


class Door:
    """A `ScreenGateway` over a `Gateway`."""

    def __init__(self, open_gateway: Callable[[], Gateway], *, investigate: bool = True) -> None:
        """Makes a door that opens nothing yet.

        Args:
            open_gateway: gives the gateway of the case; called once, in the thread that watches.
            investigate: start, or go on with, the investigation at once.
        """
        self._open_gateway = open_gateway
        self._investigate = investigate
        self._gateway: Gateway | None = None
        self._builder: ViewBuilder | None = None

    @property
    def gateway(self) -> Gateway:
        if self._gateway is None:
            raise UsageError("the case is being opened", hint="try again in a moment")
        return self._gateway

    def open(self) -> None:
        from tui.view import ViewBuilder  # here and below: what the first paint need not wait for

        gateway = self._open_gateway()
        self._builder = ViewBuilder(gateway.store)
        self._gateway = gateway
        if self._investigate:
            try:
                gateway.submit("investigate")
            except RepoError:
                return  # the case is shown all the same; the key that starts it says why it does not

    def poll(self, known: Version | None) -> tuple[Version, CaseView] | None:
        # The version is read first: a change that falls into the build is then seen by the next poll.
        version = self.gateway.data_version()
        if version == known or self._builder is None:
            return None
        return version, self._builder.build()

    def close(self) -> None:
        if self._gateway is not None:
            self._gateway.close()

    def investigate(self) -> str:
        job = self.gateway.submit("investigate")
        return f"job {job.id} goes on" if job.state == "running" else f"job {job.id} was started"

    def cancel(self, job_id: int) -> str:
        self.gateway.cancel(job_id)
        return f"job {job_id} was asked to stop; it ends its probes and cleans up"

    def source(self, path: str, rev: str | None, run_id: int | None = None) -> Source:
        from tui.view import Source, SourceLine

        found = self.gateway.listing(path, rev, run_id)
        run = ""
        if found.run is not None:
            traced = "fully traced" if found.fully_traced else "not fully traced"
            run = f"run {found.run.id}: {found.run.probe} on {found.run.arm}, {traced}"
        lines = tuple(SourceLine(text, word) for text, word in zip(found.lines, found.words, strict=True))
        return Source(path=found.path, rev=found.rev, lines=lines, run=run, note=found.note)

    def tail(self, run_id: int) -> str:
        return self.gateway.output(run_id)

    def add_hypothesis(self, text: str, prediction: str, refuted_if: str) -> str:
        from store.models import Hypothesis

        predicate = self.gateway.prediction(prediction) if prediction else None
        if predicate is not None:
            self.gateway.check_probe(predicate.probe)
        added = self.gateway.store.add_hypothesis(Hypothesis(text=text, predicate=predicate, refuted_if=refuted_if))
        decided = "the lab decides it" if predicate else "a person decides it"
        return f"hypothesis {added.id} added; {decided}"

    def add_reading(self, spec: str, note: str) -> str:
        added = self.gateway.add_reading(spec, note)
        return f"reading {added.id} added: {added.path}:{added.start}-{added.end}"

    def start_ab(self, patch: str, probe: str) -> str:
        found = self.gateway.store.patch(patch)
        if probe:
            self.gateway.check_probe(probe)
        # Where a fix is known, a patch of the stack is judged with it: without it the symptom has eaten the measure.
        fixed = found.role == "stack" and bool(self.gateway.store.meta("fix"))
        job = self.gateway.submit("ab", {"patch": patch, "probe": probe, "background": "full+fix" if fixed else "full"})
        return f"job {job.id}: A/B of {patch}"

    def start_bisect(self, probe: str) -> str:
        if probe:
            self.gateway.check_probe(probe)
        job = self.gateway.submit("bisect", {"probe": probe})
        return f"job {job.id}: bisect of the stack"

    def withdraw_finding(self, finding_id: int, reason: str) -> str:
        self.gateway.store.withdraw_finding(finding_id, reason)
        return f"finding {finding_id} is withdrawn"
