"""What the screen asks of the gateway, the only door to lab and store.

Contract: every method may block and is called in a worker thread, never in the thread that draws. Failures are
`LivepathError`s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tui.view import CaseView, Source


Version = tuple[int, int]


class ScreenGateway(Protocol):
    def open(self) -> None:
        """Opens the case this screen shows, and goes on with its investigation."""

    def poll(self, known: Version | None) -> tuple[Version, CaseView] | None:
        """The case and its version, or None while nothing changed since the version `known`."""

    def close(self) -> None:
        """Lets go of the case file; work that was started goes on."""

    def investigate(self) -> str:
        """Starts or continues the worked investigation; says what was done."""

    def cancel(self, job_id: int) -> str:
        """Asks a job to stop."""

    def source(self, path: str, rev: str | None, run_id: int | None = None) -> Source:
        """A file at a commit (None: the full stack's), with what that run, else the newest, proved of its lines."""

    def tail(self, run_id: int) -> str:
        """The end of a run's output."""

    def add_hypothesis(self, text: str, prediction: str, refuted_if: str) -> str:
        """Writes a hypothesis; the prediction is a predicate, or empty."""

    def add_reading(self, spec: str, note: str) -> str:
        """Marks `PATH:A-B[@REV]` as a reading."""

    def start_ab(self, patch: str, probe: str) -> str:
        """Asks for an A/B of a patch, on one probe or (empty) all that concern it."""

    def start_bisect(self, probe: str) -> str:
        """Asks for a search of the stack with one probe, or (empty) the target's first."""

    def withdraw_finding(self, finding_id: int, reason: str) -> str:
        """Withdraws a finding."""
