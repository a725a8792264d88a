"""The command line on a case that was written by hand, with the lab left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from store.models import CaseInfo, Job, Reading
from store.store import Store
from tests.tui.example_case import finished_case
from tui.__main__ import main
from tui.cli.session import Session
from tui.gateway import Gateway


class NoLab(Gateway):
    """A gateway to one store; work that is asked for is written down, not done."""

    def __init__(self, store: Store) -> None:
        super().__init__(Path("."))
        self._store = store
        self.asked: list[tuple[Any, ...]] = []
        self.course: list[Job | BaseException] = []  # what watching a job gives: rows, or what is raised instead

    @property
    def store(self) -> Store:
        return self._store

    def close(self) -> None:
        self.asked.append(("close",))

    def cases(self) -> list[CaseInfo]:
        return [self.store.case()]

    def new_case(self, slug: str, symptom: str) -> CaseInfo:
        self.asked.append(("new", slug, symptom))
        return replace(self.store.case(), slug=slug, symptom=symptom)

    def report(self) -> dict[str, Any]:
        from lab.report import build_report

        return build_report(self.store)

    def add_reading(self, spec: str, note: str) -> Reading:
        return self.store.add_reading(replace(self.store.readings()[0], path=spec, note=note, id=None, created_utc=""))

    def liveness(self, path: str, start: int | None, end: int | None) -> list[Any]:
        self.asked.append(("live", path, start, end))
        return []

    def submit(self, kind: str, argument: dict[str, Any] | None = None) -> Job:
        self.asked.append((kind, argument))
        return self.store.add_job(Job(kind=kind, argument=argument or {}))

    def watch(self, job_id: int) -> Iterator[Job]:
        while self.course:
            step = self.course.pop(0)
            if isinstance(step, BaseException):
                raise step
            yield replace(step, id=job_id)

    def cancel(self, job_id: int) -> None:
        self.asked.append(("cancel", job_id))


@dataclass
class Answer:
    code: int
    out: str
    err: str


@dataclass
class Livepath:
    """`livepath WORDS` in this process."""

    gateway: NoLab
    capture: pytest.CaptureFixture[str]
    folders: list[Path] = field(default_factory=list)

    def __call__(self, *words: str) -> Answer:
        def worked(folder: Path) -> Gateway:
            self.folders.append(folder)
            return self.gateway

        self.capture.readouterr()
        code = main(words, Session(gateway=lambda folder, slug: self.gateway, worked=worked))
        out, err = self.capture.readouterr()
        return Answer(code, out, err)


@pytest.fixture
def make_livepath(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[Path], Store]], Livepath]]:
    """The command line on a case that the test makes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LIVEPATH_ACTOR", "ada")
    monkeypatch.delenv("LIVEPATH_DEBUG", raising=False)
    stores: list[Store] = []

    def make(case: Callable[[Path], Store]) -> Livepath:
        stores.append(case(tmp_path / "case.db"))
        stores[-1].actor = "ada"
        return Livepath(NoLab(stores[-1]), capsys)

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def livepath(make_livepath: Callable[[Callable[[Path], Store]], Livepath]) -> Livepath:
    """The command line on a finished case."""
    return make_livepath(finished_case)
