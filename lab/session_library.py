"""Every version of a file that a name from a session could mean, nearest first.

Contract: the name may be a path of another machine; files with the same last part are meant, those that share more of
the path first, and of one file the head before its history, newest first. Read-only, bounded, remembered per name.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from dataclasses import dataclass

from lab.changed import decode
from lab.git import Git
from lab.session_text import plain
from store.errors import RepoError

MAX_VERSIONS = 80  # of one name
MAX_COMMITS = 300  # looked through for one name
MAX_FILE_BYTES = 2 << 20
_RAW = re.compile(r":\d+ \d+ [0-9a-f]+ (?P<blob>[0-9a-f]+) [A-Z]\d*\t(?P<path>.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A file as it was at a commit."""

    path: str
    commit: str
    blob: str
    in_head: bool
    shared: int = 0  # how many parts, from the end, its path has in common with the name
    whole: bool = False  # the name is the whole path, or ends in it


class Library:
    """The files of one repository, looked up by the names a session gives them."""

    def __init__(self, git: Git, head: str) -> None:
        self._git = git
        self.head = git.commit(head)
        self._by_name: dict[str, list[Version]] = {}
        self._lines: dict[str, list[str] | None] = {}
        self._revisions: dict[str, str] = {}
        self._head: defaultdict[str, list[str]] = defaultdict(list)
        for path in git.files(self.head):
            self._head[posixpath.basename(path)].append(path)

    def versions(self, name: str, rev: str = "") -> list[Version]:
        """The versions a name can mean, nearest first; those of a commit that was named before all."""
        parts = parts_of(name)
        if not parts:
            return []
        found = [_ranked(version, parts) for version in self._named(parts[-1])]
        found.sort(key=lambda version: -version.shared)  # stable: head before history, newest first
        commit = self._commit(rev) if rev else ""
        at_rev = {version.path: None for version in found} if commit else {}
        shown = [
            _ranked(Version(path=path, commit=commit, blob=blob, in_head=commit == self.head), parts)
            for path in at_rev
            if (blob := self._git.blob(commit, path))
        ]
        return [*shown, *found]

    def lines(self, blob: str) -> list[str]:
        """The lines of a version as they are compared; none of what is no text."""
        if blob not in self._lines:
            self._lines[blob] = self._read(blob)
        return self._lines[blob] or []

    def _read(self, blob: str) -> list[str] | None:
        size = self._git.call("cat-file", "-s", blob).text.strip()
        if not size.isdigit() or int(size) > MAX_FILE_BYTES:
            return None
        text = decode(self._git.call("cat-file", "blob", blob).out)
        return [plain(line) for line in text.removesuffix("\n").split("\n")] if text else None

    def _commit(self, rev: str) -> str:
        if rev not in self._revisions:
            try:
                self._revisions[rev] = self._git.commit(rev)
            except (RepoError, ValueError):  # a revision of another clone, or nonsense
                self._revisions[rev] = ""
        return self._revisions[rev]

    def _named(self, name: str) -> list[Version]:
        if name not in self._by_name:
            found = {}
            for path in self._head[name]:
                if blob := self._git.blob(self.head, path):
                    found[path, blob] = Version(path=path, commit=self.head, blob=blob, in_head=True)
            for version in self._past(name):
                found.setdefault((version.path, version.blob), version)
            self._by_name[name] = list(found.values())[:MAX_VERSIONS]
        return self._by_name[name]

    def _past(self, name: str) -> list[Version]:
        glob = ":(glob)**/" + re.sub(r"([*?\[\]\\])", r"\\\1", name)
        done = self._git.call(
            *("log", "--branches", "--tags", self.head, f"--max-count={MAX_COMMITS}", "--format=commit %H"),
            *("--raw", "--no-abbrev", "--no-renames", "--diff-filter=AM", "--no-show-signature", "--", glob),
        )
        found, commit = [], ""
        for line in done.text.split("\n"):
            if line.startswith("commit "):
                commit = line.removeprefix("commit ")
            elif match := _RAW.fullmatch(line):
                version = Version(path=match["path"], commit=commit, blob=match["blob"], in_head=False)
                found.append(version)
        return found


def parts_of(name: str) -> list[str]:
    """The parts of a path that can be compared with those of another machine."""
    return [part for part in posixpath.normpath(name).split("/") if part not in ("", ".", "..", "~")]


def _ranked(version: Version, parts: list[str]) -> Version:
    own = version.path.split("/")
    shared = 0
    for mine, theirs in zip(reversed(own), reversed(parts), strict=False):
        if mine != theirs:
            break
        shared += 1
    return Version(
        path=version.path,
        commit=version.commit,
        blob=version.blob,
        in_head=version.in_head,
        shared=shared,
        whole=shared == len(own),
    )
