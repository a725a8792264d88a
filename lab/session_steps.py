"""A session's lines as steps: at which prompt which command was typed, and what was printed until the next prompt.

Contract: a prompt is `user@host:dir$ `, `[user@host dir]$ `, or bare `$ ` or `# `. A bare `#` also begins a comment in
any file that was printed, so it counts only before a command that is known and where the session began with a bare
prompt. A command goes on over the next lines while a quote is open or a line ends in a backslash.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_CONTINUED = 200  # lines of one command

_VENV = r"(?:\([\w.@/-]{1,60}\) )?"
_NAMED = re.compile(
    _VENV
    + r"\[?(?P<host>[\w.-]{1,64}@[\w.-]{1,64})(?::| )(?P<folder>[^\s$#%\]]{0,300})\]?\s?[$#%](?: (?P<command>.*))?"
)
_BARE = re.compile(_VENV + r"(?P<mark>[$#]) (?P<command>\S.*)")
_KNOWN = re.compile(
    r"(?:awk|bash|cat|cd|docker|echo|egrep|exit|export|fgrep|find|git|grep|head|kubectl|less|ls|make|nl|pip|printf|ps"
    r"|pwd|python3?|rg|sed|sh|ssh|sudo|tail|vim|wc)\b.*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    command: str
    output: tuple[str, ...]
    host: str = ""  # as the prompt says
    folder: str = ""


@dataclass(frozen=True, slots=True)
class _Prompt:
    host: str
    folder: str
    command: str


def steps(lines: tuple[str, ...]) -> list[Step]:
    """Cut a session into its steps; what stands before the first prompt belongs to none."""
    bare = _begins_bare(lines)
    found: list[Step] = []
    prompt: _Prompt | None = None
    output: list[str] = []
    at = 0
    while at < len(lines):
        new = _prompt(lines[at], bare)
        if new is None:
            output.append(lines[at])
            at += 1
            continue
        if prompt is not None:
            found.append(_step(prompt, output))
        command, at = _whole_command(new.command, lines, at + 1, bare)
        prompt, output = _Prompt(new.host, new.folder, command), []
    if prompt is not None:
        found.append(_step(prompt, output))
    return found


def _step(prompt: _Prompt, output: list[str]) -> Step:
    return Step(command=prompt.command, output=tuple(output), host=prompt.host, folder=prompt.folder)


def _begins_bare(lines: tuple[str, ...]) -> bool:
    """Whether the first prompt of all is a bare one."""
    for line in lines:
        if _NAMED.fullmatch(line):
            return False
        if _prompt(line, bare=True):
            return True
    return False


def _prompt(line: str, bare: bool) -> _Prompt | None:
    if named := _NAMED.fullmatch(line):
        return _Prompt(named["host"], named["folder"], named["command"] or "")
    match = _BARE.fullmatch(line) if bare else None
    if match is None or (match["mark"] == "#" and not _KNOWN.fullmatch(match["command"])):
        return None
    return _Prompt("", "", match["command"])


def _whole_command(command: str, lines: tuple[str, ...], at: int, bare: bool) -> tuple[str, int]:
    """The command with the lines it goes on over. A quote that is never closed is an apostrophe: one line, then."""
    whole, end = command, at
    while is_open(whole):
        if end >= len(lines) or end - at >= MAX_CONTINUED or _prompt(lines[end], bare):
            return command, at
        whole = f"{whole}\n{lines[end].removeprefix('> ')}"
        end += 1
    return whole, end


def is_open(command: str) -> bool:
    """Whether a shell would wait for another line."""
    quote = ""
    at = 0
    while at < len(command):
        char = command[at]
        if char == "\\" and quote != "'":
            if at + 1 == len(command):
                return True
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (at == 0 or command[at - 1].isspace()):
            end = command.find("\n", at)
            at = len(command) if end < 0 else end
        at += 1
    return bool(quote)
