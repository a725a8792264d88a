"""Every error Livepath raises on purpose.

    LivepathError            exit code 1
    ├── StoreError           the case file cannot be read or written
    ├── RepoError            git, or the repository, says no
    ├── TargetError          livepath.toml is wrong
    ├── PatchError           a patch is unknown, twice there, or does not apply
    ├── RunError             a probe could not be run
    │   ├── TargetCrashed    it died
    │   └── TargetTimeout    it did not end in time
    ├── JobError             a job is unknown, taken, or failed
    ├── UsageError           exit code 2: the words of a command make no sense
    └── Cancelled            exit code 130: a person stopped it

Contract: the message names the thing, the value and what was expected, in one line; the hint is the next step. The
command line prints both and never a traceback. Lives in `store` because every room of the workbench may import it.
"""

from __future__ import annotations


class LivepathError(Exception):
    """The root: `message` is one line, `hint` the next step, `exit_code` what the process ends with."""

    default_exit_code = 1

    def __init__(self, message: str, *, hint: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = self.default_exit_code if exit_code is None else exit_code


class StoreError(LivepathError):
    """The case file cannot be read or written, or a row that was asked for is not in it."""


class RepoError(LivepathError):
    """Git is missing or too old, this is no repository, or a revision is unknown."""


class TargetError(LivepathError):
    """livepath.toml is missing, malformed or names something that does not exist."""


class PatchError(LivepathError):
    """A patch is unknown, named twice, or does not apply."""


class RunError(LivepathError):
    """A probe could not be run."""


class TargetCrashed(RunError):
    """The target died; the hint carries the end of its stderr."""


class TargetTimeout(RunError):
    """The target did not end within its time."""


class JobError(LivepathError):
    """A job is unknown, is held by another worker, or failed."""


class UsageError(LivepathError):
    """The words of a command make no sense together."""

    default_exit_code = 2


class Cancelled(LivepathError):
    """A person asked to stop."""

    default_exit_code = 130
