"""The only door from the faces to the lab and the store.

Contract: a `Gateway` stands for one target and one case of it; the case is opened when it is first asked for. Lab
modules are imported where they are used, so that help, errors and the first paint do not wait for them. Failures are
`LivepathError`s.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store.models import CaseInfo, Job, PatchVerdict, Predicate, Reading

if TYPE_CHECKING:
    from lab.case import Case
    from lab.judge_command import Sentence
    from lab.listing import Listing
    from lab.session import SessionImport
    from store.store import Store

DEMO = ".demo"
SECOND_DEMO = ".demo-2"
_OUTPUT_BYTES = 16_000


class Gateway:
    """What the command line asks for, in the words of its verbs."""

    def __init__(self, start: Path, slug: str | None = None) -> None:
        self.start = start
        self.slug = slug
        self._case: Case | None = None

    @classmethod
    def worked(cls, directory: Path) -> Gateway:
        """The worked case of the demo in `directory`, made where it is missing."""
        from lab.worked import open_worked_case

        gateway = cls(directory)
        gateway._opened(open_worked_case(directory))
        return gateway

    @classmethod
    def second(cls, directory: Path) -> Gateway:
        """The case of the demo's second chapter in `directory`, made where it is missing."""
        from lab.second import open_second_case

        gateway = cls(directory)
        gateway._opened(open_second_case(directory))
        return gateway

    @property
    def case(self) -> Case:
        """The case, opened now if it was not yet."""
        if self._case is None:
            from lab.case import open_case

            return self._opened(open_case(self._target_folder(), self.slug))
        return self._case

    def _opened(self, case: Case) -> Case:
        case.store.actor = person()
        self._case = case
        return case

    def _target_folder(self) -> Path:
        """Where livepath.toml is looked for: here and above, or in the demo that lies here."""
        from lab.case import find_toml

        demo = self.start / DEMO
        if (demo / "livepath.toml").is_file() and not (self.start / "livepath.toml").is_file():
            return demo
        return find_toml(self.start).parent

    @property
    def store(self) -> Store:
        return self.case.store

    def close(self) -> None:
        """Let go of the case file; jobs go on."""
        if self._case is not None:
            self._case.close()
            self._case = None

    def cases(self) -> list[CaseInfo]:
        """All cases of the target."""
        from lab.case import home_of, slugs
        from lab.git import Git
        from lab.target import Target
        from store.store import Store

        home = home_of(Git(Target.load(self._target_folder() / "livepath.toml").repo).root)
        found = []
        for slug in slugs(home):
            with Store.open(home / f"{slug}.db") as store:
                found.append(store.case())
        return found

    def new_case(self, slug: str, symptom: str) -> CaseInfo:
        """Make a case of the target."""
        from lab.case import create_case

        return self._opened(create_case(self._target_folder(), slug, symptom)).store.case()

    def report(self) -> dict[str, Any]:
        """The whole case as the report's JSON object."""
        from lab.readings import freshness
        from lab.report import build_report
        from lab.version import livepath_version

        git, head = self.case.git, self.store.case().head
        fresh = {one.id: freshness(git, one, head).state for one in self.store.readings() if one.id is not None}
        return build_report(self.store, version=livepath_version(), freshness=fresh)

    def markdown(self, report: dict[str, Any]) -> str:
        """A report for a pull request."""
        from lab.report import to_markdown

        return to_markdown(report)

    def prediction(self, text: str) -> Predicate:
        """A prediction as a person writes it."""
        from lab.prediction import parse_prediction

        return parse_prediction(text)

    def add_reading(self, spec: str, note: str) -> Reading:
        """Take the lines that `[HOST:]PATH:A-B[@REV]` names into the case."""
        from lab.readings import make_reading

        return self.store.add_reading(make_reading(self.case.git, spec, note))

    def import_session(self, path: Path, host: str) -> SessionImport:
        """Take what a recorded terminal session looked at into the case, as readings."""
        from lab.session import import_session

        return import_session(self.case, path, host)

    def bisects(self) -> list[dict[str, Any]]:
        """Every search of the stack, as the report has it."""
        from lab.report_bisects import bisect_rows

        return bisect_rows(self.store)

    def verdict(self, patch: str) -> PatchVerdict | None:
        """The verdict a patch is summarised by."""
        from lab.findings import summary_of

        verdicts = self.store.verdicts(patch)
        return summary_of(verdicts) if verdicts else None

    def liveness(self, path: str, start: int | None, end: int | None) -> list[Any]:
        """What every run proved about lines of a file, or about all of it."""
        from lab.live import liveness_of

        return liveness_of(self.case, path, start, end)

    def listing(self, path: str, rev: str | None, run_id: int | None = None) -> Listing:
        """A file at a commit, with what the newest run that had this version proved of every line."""
        from lab.listing import listing

        return listing(self.case, path, rev, run_id=run_id)

    def traced_files(self) -> tuple[str, ...]:
        """The files of the folders that are traced."""
        from lab.listing import traced_files

        return traced_files(self.case)

    def output(self, run_id: int) -> str:
        """The end of what the newest attempt of a run printed, stdout before stderr."""
        attempts = self.store.attempts(run_id)
        if not attempts:
            return ""
        folder = self.case.folder / attempts[-1].folder
        return "".join(_end_of(folder / name) for name in ("stdout.txt", "stderr.txt"))

    def data_version(self) -> tuple[int, int]:
        """A value that changes whenever anybody wrote to the case: another process, or this one."""
        (row,) = self.store.query("PRAGMA data_version")
        return row["data_version"], self.store.connection.total_changes

    def check_probe(self, name: str) -> None:
        """Refuse a probe that the target does not have, naming those it has."""
        self.case.target.probe(name)

    def submit(self, kind: str, argument: dict[str, Any] | None = None) -> Job:
        """Ask for work; it is done by a process of its own."""
        from lab.jobs import submit

        return submit(self.case, kind, argument)

    def watch(self, job_id: int) -> Iterator[Job]:
        """The job's row whenever it changes, until it has ended."""
        from lab.jobs import watch

        return watch(self.case, job_id)

    def cancel(self, job_id: int) -> None:
        """Ask a job to stop."""
        from lab.jobs import cancel

        cancel(self.case, job_id)


def _end_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _OUTPUT_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return text if not text or text.endswith("\n") else text + "\n"


def judge_checkout(start: Path, probe: str, live: str, say: Callable[[str], None]) -> Sentence:
    """What a probe says of the checked-out commit; needs no case."""
    from lab.judge_command import judge_checkout

    return judge_checkout(start, probe, live, say)


def has_target(folder: Path) -> bool:
    """Whether livepath.toml is in `folder` or above it."""
    return any((place / "livepath.toml").is_file() for place in (folder, *folder.parents))


def person() -> str:
    """Who sits at this terminal, for the journal and for what a person decides."""
    try:
        return os.environ.get("LIVEPATH_ACTOR") or getpass.getuser()
    except (KeyError, OSError):
        return "person"
