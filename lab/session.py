"""`livepath session import`: a recorded terminal session becomes readings.

Contract: every look at lines of a file (sed, cat, head, tail, grep -n, git show, git diff, also behind ssh) becomes a
reading, matched by what was printed to a commit and blob of the repository. What matches nothing is kept with the
printed text: its blob and rev are empty. Each gets its liveness from the runs on record. The log is hostile text: it
is never run, and it is bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from lab.bench import USABLE
from lab.case import Case
from lab.live import reading_liveness
from lab.readings import Spec, read_spec
from lab.session_library import Library
from lab.session_looks import Look, Place, looks_of
from lab.session_match import Piece, match_output
from lab.session_steps import Step, steps
from lab.session_text import read_log
from lab.words import DEAD
from store.models import Attempt, Reading, ReadingLiveness, Run

MAX_READINGS = 500
_MAX_NOTE = 160

State = Literal["matched", "elsewhere", "unmatched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """One reading that came of a session."""

    reading: Reading
    state: State  # at the lines that were asked for, at others, or nowhere
    remark: str
    new: bool  # it was not in the case before
    liveness: ReadingLiveness | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionImport:
    """What came of a session."""

    source: str
    form: str
    commands: int
    looks: int  # files and ranges that the commands asked for
    readings: tuple[Imported, ...]
    notes: tuple[str, ...]

    def count(self, state: State) -> int:
        return sum(one.state == state for one in self.readings)

    @property
    def text(self) -> str:
        """The counts in words."""
        new = sum(one.new for one in self.readings)
        dead = sum(one.liveness is not None and one.liveness.word in DEAD for one in self.readings)
        found = f"{self.count('matched')} matched, {self.count('elsewhere')} at other lines"
        text = (
            f"{self.commands} commands, {self.looks} looks at files: {len(self.readings)} readings "
            f"({found}, {self.count('unmatched')} unmatched), {new} new, {dead} dead"
        )
        return "; ".join([text, *self.notes])

    def as_data(self) -> dict[str, Any]:
        """The import as the command line prints it."""
        return asdict(self) | {state: self.count(state) for state in get_args(State)}


def import_session(case: Case, path: Path, host: str = "") -> SessionImport:
    """Read a session and take its readings into the case.

    Args:
        host: where the session was recorded; left out, the prompts say it. What `ssh` names goes before both.

    Raises:
        UsageError: the file cannot be read, or nothing in it is a prompt.
    """
    log = read_log(path)
    taken = steps(log.lines)
    notes = list(log.notes)
    if not taken:
        notes.append("no prompt was found: a command is a line like `$ sed -n 1,20p FILE` or `user@host:dir$ ...`")
    library = Library(case.git, case.store.case().head)
    pieces, looks = _pieces(library, taken, host)
    pieces = list({_identity(piece): piece for piece in pieces}.values())
    if len(pieces) > MAX_READINGS:
        notes.append(f"only the first {MAX_READINGS} of {len(pieces)} readings were taken")
    made = [(piece, _reading(case, piece, path.name)) for piece in pieces[:MAX_READINGS]]
    known = {reading.id for reading in case.store.readings()}
    with case.store.transaction():
        stored = [(piece, _add(case, reading)) for piece, reading in made]
    run = run_of(case)
    found = [
        Imported(
            reading=reading,
            state=_state(piece),
            remark=piece.remark,
            new=reading.id not in known,
            liveness=_live(case, reading, run) if run else None,
        )
        for piece, reading in stored
    ]
    return SessionImport(
        source=str(path), form=log.form, commands=len(taken), looks=looks, readings=tuple(found), notes=tuple(notes)
    )


def _pieces(library: Library, taken: Sequence[Step], host: str) -> tuple[list[Piece], int]:
    place = Place()
    remote = ""  # the host that an `ssh` without a command went to
    pieces: list[Piece] = []
    looks = 0
    for step in taken:
        here = place.host = remote or host or step.host
        if step.folder:
            place.folder = step.folder
        shown = looks_of(step.command, place)
        remote = place.host if place.host != here else remote
        looks += sum(isinstance(one, Look) for one in shown)
        if shown and len(pieces) <= MAX_READINGS:
            pieces += match_output(library, shown, step.output)
    return pieces, looks


def _identity(piece: Piece) -> tuple[str, str, int, int, str]:
    said = piece.version.blob if piece.version else piece.text
    return piece.look.host, piece.path, piece.start, piece.end, said


def _state(piece: Piece) -> State:
    if piece.version is None:
        return "unmatched"
    return "matched" if piece.asked_there else "elsewhere"


def _reading(case: Case, piece: Piece, source: str) -> Reading:
    note = f"{source}: `{piece.look.command[:_MAX_NOTE]}`" + (f"; {piece.remark}" if piece.remark else "")
    if piece.version is not None:
        spec = Spec(path=piece.path, host=piece.look.host, start=piece.start, end=piece.end, rev=piece.version.commit)
        return read_spec(case.git, spec, note)
    return Reading(
        path=piece.path,
        start=piece.start,
        end=piece.end,
        rev="",
        blob="",
        text_sha256=hashlib.sha256(piece.text.encode()).hexdigest(),
        text=piece.text,
        host=piece.look.host,
        note=note,
    )


def _add(case: Case, reading: Reading) -> Reading:
    """Add a reading; of unmatched lines that said two things at two times, both are kept."""
    stored = case.store.add_reading(reading)
    if not reading.blob and stored.text_sha256 != reading.text_sha256:
        stored = case.store.add_reading(replace(reading, rev=f"text {reading.text_sha256[:12]}"))
    return stored


def run_of(case: Case) -> tuple[Run, Attempt] | None:
    """The run that speaks for the case: the symptom's probe on the full stack, else the newest that counts."""
    primary = next(iter(case.target.probes), "")
    runs = case.store.runs()
    chosen = [run for run in runs if (run.probe, run.arm) == (primary, "full")] or runs
    for run in reversed(chosen):
        attempt = case.store.last_good_attempt(run.id)
        if attempt is not None and attempt.status in USABLE:
            return run, attempt
    return None


def _live(case: Case, reading: Reading, run: tuple[Run, Attempt]) -> ReadingLiveness | None:
    if not reading.blob:
        return None  # lines that are in no tree run in none
    return case.store.put_reading_liveness(reading_liveness(case, reading, *run))
