"""Messages between the workers and the screens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from tui.view import CaseView, Source


@dataclass
class CaseChanged(Message):
    """The case was read again because its rows changed."""

    view: CaseView

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, CaseChanged)


@dataclass
class CaseOpened(Message):
    """The gateway holds an open case; polling may begin."""


@dataclass
class CaseFailed(Message):
    """The case cannot be opened or read."""

    error: str
    hint: str


@dataclass
class SourceRead(Message):
    """A file was read, with its liveness."""

    source: Source
    line: int | None


@dataclass
class TailRead(Message):
    """The end of a run's output was read."""

    run_id: int
    text: str

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, TailRead)


@dataclass
class ActionDone(Message):
    """What a person asked for was written, or started."""

    text: str


@dataclass
class ActionFailed(Message):
    """What a person asked for was refused."""

    error: str
    hint: str
