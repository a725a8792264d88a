"""Shell text as simple commands: enough of the grammar to see which files a line of a session looks at.

Contract: quotes, escapes, comments, redirections, `;`, `&&`, `||`, `|`, newlines and brackets are understood; nothing
is expanded and nothing is run. Hostile text gives commands that mean nothing, never an error.
"""

from __future__ import annotations

import re

_REDIRECT = re.compile(r"\d*(?:&>>?|>>|>&|>\||>|<<<|<<-?|<&|<)")
MAX_SCRIPT = 100_000
_KEYWORDS = frozenset(["if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!", "{", "}", "time"])

Command = list[str]
Pipeline = list[Command]


def pipelines(text: str) -> list[Pipeline]:
    """The pipelines of a script, in order; each is its commands' words."""
    found: list[Pipeline] = []
    pipeline: Pipeline = [[]]
    for operator, word in _tokens(text[:MAX_SCRIPT]):
        if not operator:
            if pipeline[-1] or word not in _KEYWORDS:
                pipeline[-1].append(word)
        elif word == "|":
            pipeline.append([])
        else:
            found.append(pipeline)
            pipeline = [[]]
    found.append(pipeline)
    return [pipeline for pipeline in found if pipeline[0]]


def _tokens(text: str) -> list[tuple[bool, str]]:
    """(is an operator, text); redirections and their targets are left out."""
    tokens: list[tuple[bool, str]] = []
    word: list[str] | None = None
    skip = False  # the next word is the target of a redirection
    at = 0

    def add(piece: str) -> None:
        nonlocal word
        word = [] if word is None else word
        word.append(piece)

    def end_word() -> None:
        nonlocal word, skip
        if word is not None and not skip:
            tokens.append((False, "".join(word)))
        skip = skip and word is None
        word = None

    while at < len(text):
        char = text[at]
        if char in " \t\r":
            end_word()
        elif char == "#" and word is None:
            at = _until(text, "\n", at) - 1
        elif char in "'\"":
            inner, at = _quoted(text, at)
            add(inner)
        elif char == "\\":
            at += 1
            add("" if text[at : at + 1] == "\n" else text[at : at + 1])
        elif text.startswith("$(", at):
            end = _until(text, ")", at)
            add(text[at : end + 1])
            at = end
        elif redirect := _REDIRECT.match(text, at) if word is None or char in "<>" else None:
            end_word()
            skip = True
            at = redirect.end() - 1
        elif char in ";&|\n()":
            end_word()
            skip = False
            double = text[at : at + 2] in ("&&", "||", ";;")
            tokens.append((True, text[at : at + 2] if double else char))
            at += double
        else:
            add(char)
        at += 1
    end_word()
    return tokens


def _quoted(text: str, at: int) -> tuple[str, int]:
    """What stands between quotes that open at `at`, and where they close."""
    quote, inner = text[at], []
    at += 1
    while at < len(text) and text[at] != quote:
        if text[at] == "\\" and quote == '"' and text[at + 1 : at + 2] in ("\\", '"', "$", "`", "\n"):
            at += 1
            if text[at] == "\n":
                at += 1
                continue
        inner.append(text[at])
        at += 1
    return "".join(inner), at


def _until(text: str, end: str, at: int) -> int:
    found = text.find(end, at)
    return len(text) if found < 0 else found
