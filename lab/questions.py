"""Questions answered without any run: by reading the tree, or by asking the interpreter what it would load.

Contract: `answer_question(case, how)` understands

    grep PATTERN      the lines of Python files that match, with the definition they are in
    multiplies NAME   who multiplies by it: products, `*=` and `mul` calls, also by way of a local name
    declares NAME     what each class or module says NAME is: attributes, properties, functions, what they return
    loaded MODULE     whether the module comes from the case's own worktree, asked of a child of the interpreter

The first three read the case's head and its base and name what differs. Nothing of the target is imported but the
parents of MODULE. An answer is text with its evidence, rows {kind: reading | process, path, start, end, text}.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lab.case import Case
from lab.changed import decode
from lab.loaded import where_loaded
from lab.mentions import declarations, products
from lab.source import Source, source_of
from store.errors import UsageError

MAX_ROWS = 40
_KINDS = ("grep", "multiplies", "declares", "loaded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    text: str
    evidence: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A place in a tree that answers a question."""

    path: str
    start: int
    end: int
    qualname: str
    text: str


def answer_question(case: Case, how: str) -> Answer:
    """Answer a question by the way of answering it names.

    Raises:
        UsageError: the way is unknown, or its word is missing or no pattern.
    """
    kind, _, word = how.strip().partition(" ")
    word = word.strip()
    if kind not in _KINDS or not word:
        raise UsageError(
            f"`{how}` is no way to answer a question", hint=f"write one of {', '.join(_KINDS)}, then a word"
        )
    if kind == "loaded":
        text, path = where_loaded(case, word)
        return Answer(text=text, evidence=({"kind": "process", "path": path, "start": 0, "end": 0, "text": text},))
    finder = _finder(kind, word)
    info = case.store.case()
    head, base = (list(_sites(case, commit, word, kind, finder)) for commit in (info.head, info.base))
    return _answer(kind, word, head, base)


def _finder(kind: str, word: str) -> Callable[[Source], Iterator[tuple[int, int]]]:
    if kind == "multiplies":
        return lambda source: products(source, word)
    if kind == "declares":
        return lambda source: declarations(source, word)
    try:
        pattern = re.compile(word)
    except re.error as error:
        raise UsageError(f"`{word}` is no pattern: {error}", hint="escape the characters `.*+?()[]{}|\\^$`") from error
    return lambda source: ((n, n) for n, line in enumerate(source.lines, start=1) if pattern.search(line))


def _sites(
    case: Case, commit: str, word: str, kind: str, finder: Callable[[Source], Iterator[tuple[int, int]]]
) -> Iterator[Site]:
    git = case.git
    folders = [folder for folder in case.target.trace if folder not in ("", ".")]
    narrow = () if kind == "grep" else ("-F", "-l", "-w", "-e", word)
    if narrow:  # let git pick the few files that hold the word before any is parsed
        listed = git.call("grep", "-z", "--no-color", *narrow, commit, "--", *folders).text.split("\0")
        paths = [name.partition(":")[2] for name in listed if name]
    else:
        paths = [path for folder in folders or [""] for path in git.files(commit, folder)]
    for path in sorted(paths):
        raw = git.read(commit, path) if path.endswith(".py") else None
        source = source_of(path, decode(raw)) if raw is not None else None
        for start, end in sorted(set(finder(source))) if source else ():
            text = "\n".join(source.lines[start - 1 : end]).strip() if source else ""
            yield Site(path=path, start=start, end=end, qualname=source.qualname(start) if source else "", text=text)


def _answer(kind: str, word: str, head: list[Site], base: list[Site]) -> Answer:
    def key(site: Site) -> tuple[str, str, str]:
        return site.path, site.qualname, site.text

    at_head, at_base = {key(site) for site in head}, {key(site) for site in base}
    new = sum(key(site) not in at_base for site in head)
    gone = [site for site in base if key(site) not in at_head]
    what = {"grep": "matches", "multiplies": "multiplications", "declares": "declarations"}[kind]
    lines = [f"{len(head)} {what} of `{word}` at head, {new} of them not at base; {len(gone)} only at base"]
    for site in head[:MAX_ROWS]:
        mark = "" if key(site) in at_base else "  (not at base)"
        lines.append(f"{_where(site)}  {_first(site)}{mark}")
    lines += [f"{_where(site)}  {_first(site)}  (only at base)" for site in gone[:MAX_ROWS]]
    if max(len(head), len(gone)) > MAX_ROWS:
        lines.append(f"the first {MAX_ROWS} of each are listed")
    rows = tuple(
        {"kind": "reading", "path": site.path, "start": site.start, "end": site.end, "text": site.text}
        for site in [*head[:MAX_ROWS], *gone[:MAX_ROWS]]
    )
    return Answer(text="\n".join(lines), evidence=rows)


def _where(site: Site) -> str:
    return f"{site.path}:{site.start}" + (f" {site.qualname}" if site.qualname else "")


def _first(site: Site) -> str:
    """A site in one line: of a definition its header and what it returns, of a statement all of it."""
    lines = [line.strip() for line in site.text.split("\n")]
    header = next((line for line in lines if line.startswith(("def ", "async def ", "class "))), "")
    if not header:
        return " ".join(lines)
    return " … ".join([header, *(line for line in lines if line.startswith("return "))])
