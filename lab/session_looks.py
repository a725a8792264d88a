"""What the commands of a session look at: lines of files, hits of a grep, hunks of a diff.

Contract: `looks_of` follows `cd`, `ssh HOST '...'`, `bash -c '...'`, `docker exec` and pipes, and returns the looks in
the order in which they print, with the texts that `echo` prints between them. What only counts, sorts or rewrites
text is no look. Where the command leaves the shell (another folder, another host) is kept in the `Place`.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass, replace
from typing import Literal

from lab.session_shell import Command, Pipeline, pipelines

MAX_DEPTH = 4  # a shell in a shell
MAX_LOOKS = 100  # of one command
_SED = re.compile(r"\s*(\d+)(?:\s*,\s*(\+?\d+|\$))?\s*p\s*")
_SSH_WITH_VALUE = tuple(f"-{letter}" for letter in "BbcDEeFIiJLlmOopQRSWw")
_GREPS = ("grep", "egrep", "fgrep", "rg", "zgrep")
_GREP_WITH_VALUE = (
    *(f"-{letter}" for letter in "efABCmdDgtT"),
    *("--include", "--exclude", "--exclude-dir", "--color"),
)
_PASSES = ("less", "more", "cat", "tee", "bat", "column")  # what comes in goes out
_WRAPPERS = frozenset(["sudo", "command", "nice", "nohup", "env", "stdbuf"])


@dataclass(slots=True)
class Place:
    """Where the shell stands."""

    host: str = ""
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Something whose text is printed."""

    kind: Literal["lines", "grep", "diff"]
    host: str
    folder: str
    path: str = ""  # as written; "" where the output names the files
    rev: str = ""
    start: int = 1
    end: int | None = None  # None: to the end of the file
    last: int | None = None  # only the last so many lines
    numbered: bool = False  # the output carries line numbers
    command: str = ""  # the simple command that printed it

    @property
    def where(self) -> str:
        """The path from the folder the shell stood in."""
        return posixpath.normpath(posixpath.join(self.folder, self.path)) if self.path else self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A text that `echo` prints between two looks."""

    text: str


Shown = Look | Mark


def looks_of(command: str, place: Place, depth: int = 0) -> list[Shown]:
    """What a command line prints of files; `place` is brought up to date."""
    found: list[Shown] = []
    for pipeline in pipelines(command):
        if len(found) < MAX_LOOKS:
            found += _piped(pipeline, place, depth)
    return found[:MAX_LOOKS]


def _piped(pipeline: Pipeline, place: Place, depth: int) -> list[Shown]:
    found = _simple(pipeline[0], place, depth)
    for words in pipeline[1:]:
        name, *arguments = _unwrapped(words) or [""]
        looks = [one for one in found if isinstance(one, Look)]
        if name in _PASSES:
            continue
        if name in _GREPS:
            # A filter: of a grep's hits some are left, of whole files only hits with numbers can be placed.
            if len(looks) == 1 and looks[0].kind == "lines":
                found = [replace(looks[0], kind="grep")] if _numbers(arguments) else []
        elif name in ("head", "tail", "sed"):
            windows = _windows(name, arguments)
            if windows is None:
                return []
            if len(looks) == 1 and looks[0].kind == "lines":
                found = [_narrowed(looks[0], *window) for window in windows[0]]
        elif name == "nl" and len(looks) == 1:
            found = [replace(looks[0], numbered=True)]
        else:
            return []
    said = " | ".join(map(shlex.join, pipeline))
    return [replace(one, command=one.command or said) if isinstance(one, Look) else one for one in found]


def _simple(words: Command, place: Place, depth: int) -> list[Shown]:
    name, *arguments = _unwrapped(words) or [""]
    match posixpath.basename(name):
        case "cd" | "pushd":
            target = next((word for word in arguments if not word.startswith("-")), "")
            place.folder = posixpath.normpath(posixpath.join(place.folder, target)) if target else ""
        case "exit" | "logout":
            place.host = place.folder = ""
        case "echo" | "printf":
            return _marks(arguments)
        case "ssh":
            return _ssh(arguments, place, depth)
        case "bash" | "sh" | "zsh" if depth < MAX_DEPTH:
            flag = next((at for at, word in enumerate(arguments) if re.fullmatch(r"-\w*c", word)), None)
            if flag is not None and flag + 1 < len(arguments):
                return looks_of(arguments[flag + 1], replace(place), depth + 1)
        case "docker" | "podman" | "kubectl" if arguments[:1] == ["exec"] and depth < MAX_DEPTH:
            return _inside(arguments[1:], place, depth)
        case "git":
            return _git(arguments, place)
        case "grep" | "egrep" | "fgrep" | "rg" | "zgrep":
            return _grep(arguments, place)
        case "cat" | "bat" | "less" | "more" | "nl":
            numbered = name == "nl" or any(re.fullmatch(r"-\w*[nb]\w*", word) for word in arguments)
            files = [word for word in arguments if not word.startswith("-")]
            if name == "nl":
                files = [word for word in files if word != "a"]  # `nl -b a FILE`
            return [_look(place, path, numbered=numbered) for path in files]
        case "head" | "tail" | "sed" as tool:
            windows = _windows(tool, arguments)
            if windows is not None:
                return [_narrowed(_look(place, path), *window) for path in windows[1] for window in windows[0]]
    return []


def _unwrapped(words: Command) -> Command:
    """The command without assignments and the likes of `sudo` before it."""
    at = 0
    while at < len(words):
        if re.fullmatch(r"\w+=.*", words[at], re.DOTALL) or words[at] in _WRAPPERS:
            at += 1
        elif words[at] == "timeout" and at + 1 < len(words):
            at += 2
        else:
            break
    return words[at:]


def _look(place: Place, path: str, *, numbered: bool = False) -> Look:
    return Look(kind="lines", host=place.host, folder=place.folder, path=path, numbered=numbered)


def _marks(arguments: Command) -> list[Shown]:
    text = " ".join(word for word in arguments if word not in ("-e", "-n", "-E"))
    lines = re.split(r"\\n|\n", text)
    return [Mark(text=line.strip()) for line in lines if line.strip()]


def _ssh(arguments: Command, place: Place, depth: int) -> list[Shown]:
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        rest = rest[2 if rest[0] in _SSH_WITH_VALUE else 1 :]
    if not rest:
        return []
    host, script = rest[0], " ".join(rest[1:])
    if not script:  # what follows is typed over there
        place.host, place.folder = host, ""
        return []
    return looks_of(script, Place(host=host), depth + 1) if depth < MAX_DEPTH else []


def _inside(arguments: Command, place: Place, depth: int) -> list[Shown]:
    """`docker exec [options] NAME command`: the paths are those of the container."""
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        rest = rest[2 if rest[0] in ("-e", "-u", "-w", "-n", "-c", "--user", "--workdir", "--env") else 1 :]
    rest = rest[1:]
    rest = rest[1:] if rest[:1] == ["--"] else rest
    return _simple(rest, Place(host=place.host), depth + 1) if rest else []


def _git(arguments: Command, place: Place) -> list[Shown]:
    here = replace(place)
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        if rest[0] == "-C" and len(rest) > 1:
            here.folder = posixpath.join(here.folder, rest[1])
        rest = rest[2 if rest[0] in ("-C", "-c") else 1 :]
    verb, words = (rest[0], rest[1:]) if rest else ("", [])
    names = [word for word in (words[: words.index("--")] if "--" in words else words) if not word.startswith("-")]
    if verb == "grep":
        return _grep(words, here)
    if verb == "show" and names and ":" in names[0]:
        # In REV:PATH the path is from the root, wherever the shell stands.
        shown = [name.partition(":") for name in names if ":" in name]
        return [replace(_look(here, path), rev=rev, folder="") for rev, _, path in shown]
    if verb in ("show", "diff") or (verb == "log" and {"-p", "--patch", "-u"} & set(words)):
        rev = names[-1].rpartition("..")[2].lstrip(".") if names and verb != "log" else ""
        return [Look(kind="diff", host=here.host, folder="", rev=rev)]
    return []


def _grep(arguments: Command, place: Place) -> list[Shown]:
    """A grep whose hits carry line numbers; without them a hit cannot be placed."""
    if not _numbers(arguments):
        return []
    names, pattern_given, at = [], False, 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            names += arguments[at + 1 :]
            break
        if word.startswith("-") and word != "-":
            pattern_given = pattern_given or word in ("-e", "-f")
            at += word in _GREP_WITH_VALUE
        else:
            names.append(word)
        at += 1
    files = names if pattern_given else names[1:]
    return [Look(kind="grep", host=place.host, folder=place.folder, path=files[0] if len(files) == 1 else "")]


def _numbers(arguments: Command) -> bool:
    flags = "".join(word[1:] for word in arguments if re.fullmatch(r"-[A-Za-z]+", word))
    return ("n" in flags or "--line-number" in arguments) and not set("clLqo") & set(flags)


Window = tuple[int, int | None, int | None]  # first line, last line, only the last so many


def _windows(tool: str, arguments: Command) -> tuple[list[Window], list[str]] | None:
    """What `head`, `tail` or `sed` lets through, and its files; None where it is not a matter of line numbers."""
    return _sed(arguments) if tool == "sed" else _end(tool, arguments)


def _sed(arguments: Command) -> tuple[list[Window], list[str]] | None:
    quiet = any(re.fullmatch(r"-[nErsu]*n[nErsu]*", word) or word in ("--quiet", "--silent") for word in arguments)
    scripts, rest, at = [], [], 0
    while at < len(arguments):
        word = arguments[at]
        if word in ("-e", "--expression") and at + 1 < len(arguments):
            at += 1
            scripts.append(arguments[at])
        elif not word.startswith("-"):
            rest.append(word)
        at += 1
    if not scripts:
        scripts, rest = rest[:1], rest[1:]
    windows: list[Window] = []
    for part in ";".join(scripts).split(";"):
        lines = _SED.fullmatch(part.partition("#")[0])
        if lines is None:
            if part.strip() and not re.fullmatch(r"\s*\d*\s*q\s*", part):
                return None
            continue
        first = _number(lines[1])
        last = lines[2] or lines[1]
        end = None if last == "$" else first + _number(last[1:]) if last.startswith("+") else _number(last)
        windows.append((first, end if end is None else max(first, end), None))
    return (windows, rest) if quiet and windows else None


def _end(tool: str, arguments: Command) -> tuple[list[Window], list[str]] | None:
    count, files, at = "10", [], 0
    while at < len(arguments):
        word = arguments[at]
        if word in ("-n", "--lines") and at + 1 < len(arguments):
            at += 1
            count = arguments[at]
        elif number := re.fullmatch(r"(?:-n|--lines=|-)([+-]?\d+)", word):
            count = number[1]
        elif word.startswith("-c"):
            return None  # bytes are no lines
        elif not word.startswith("-"):
            files.append(word)
        at += 1
    if not re.fullmatch(r"\+?\d+", count):
        return None
    if tool == "head":
        return [(1, max(1, _number(count)), None)], files
    if count.startswith("+"):
        return [(max(1, _number(count)), None, None)], files
    return [(1, None, max(1, _number(count)))], files


def _narrowed(look: Look, first: int, end: int | None, last: int | None) -> Look:
    """A look through one more window."""
    start = look.start + first - 1
    ends = [value for value in (look.end, None if end is None else look.start + end - 1) if value is not None]
    return replace(look, start=start, end=min(ends, default=None), last=last if last is not None else look.last)


def _number(text: str) -> int:
    """A line number; one that no file has is as good as any other."""
    return int(text.lstrip("+")[:9] or "1") or 1
