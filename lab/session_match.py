"""What a session printed, found again in the repository by its content.

Contract: a piece of output is matched to a version of a file when the text is the same: at the lines that were asked
for, in the nearest version that has it there; else, where the text is distinctive, at the one place of a version that
has it. Lines cut short by the log (`...` at their end) and output that ends early match as far as they go. A text
that fits several files of a name equally well is matched to none: it would be a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lab.session_library import Library, Version
from lab.session_looks import Look, Shown
from lab.session_text import plain

MAX_OUTPUT = 20_000  # lines of one command
MAX_KEPT = 400  # lines of an unmatched text
_CUT = re.compile(r"(?:\.\.\.|…|\[\.\.\.\]|<truncated>|\[truncated\])$")
_ELIDED = re.compile(
    r"\W*(?:\.\.\.|…)?\W*(?:\d+ (?:more )?lines? )?(?:omitted|truncated|skipped|\.\.\.|…)\W*", re.IGNORECASE
)
_NUMBERED = re.compile(r"\s*\d+(?:(?:\t|  ?)(.*))?")
_REFUSED = re.compile(
    r"(?:\w+: )*.{0,300}: (?:No such file or directory|Permission denied|Is a directory|Not a directory)|fatal: .*"
)
_HIT = re.compile(r"(\d{1,7})([:-])(.*)")
_NAMED_HIT = re.compile(r"([^\s:][^:]{0,300}):(\d{1,7})(:)(.*)")
_NAMED_CONTEXT = re.compile(r"(\S.{0,300}?)-(\d{1,7})(-)(.*)")
_COMMIT = re.compile(r"commit ([0-9a-f]{7,64})\b")
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Lines of a file that were printed, and where they are in the repository."""

    look: Look
    path: str
    start: int
    end: int
    text: str = ""  # as printed
    version: Version | None = None  # None: unmatched
    asked_there: bool = True  # these are the lines that were asked for
    remark: str = ""


def match_output(library: Library, shown: Sequence[Shown], output: Sequence[str]) -> list[Piece]:
    """The pieces of files in the output of one command."""
    lines = [plain(line) for line in output[:MAX_OUTPUT]]
    found: list[Piece] = []
    for looks, begin, end in _groups(shown, lines):
        found += _match_group(library, looks, lines[begin:end])
    return found


def _groups(shown: Sequence[Shown], lines: Sequence[str]) -> list[tuple[list[Look], int, int]]:
    """Looks with the stretch of output they share: the texts of `echo` are the borders."""
    groups: list[tuple[list[Look], int, int]] = []
    looks: list[Look] = []
    begin = 0
    for one in shown:
        if isinstance(one, Look):
            looks.append(one)
            continue
        border = next((at for at in range(begin, len(lines)) if lines[at].strip() == one.text), None)
        if border is not None:
            groups.append((looks, begin, border))
            looks, begin = [], border + 1
    groups.append((looks, begin, len(lines)))
    return [group for group in groups if group[0]]


def _match_group(library: Library, looks: list[Look], lines: Sequence[str]) -> list[Piece]:
    """Each look takes the next text that is its own; what lies between goes to those that found none."""
    found: list[tuple[Look, list[Piece] | None]] = []
    borders: list[tuple[int, int]] = []
    cursor = 0
    for look in looks:
        pieces, begin, end = _match(library, look, lines, cursor)
        found.append((look, pieces))
        borders.append((begin, end))
        cursor = max(cursor, end)
    result: list[Piece] = []
    done = 0
    for number, (look, pieces) in enumerate(found):
        if pieces is not None:
            result += pieces
            done = max(done, borders[number][1])
            continue
        stop = next((borders[n][0] for n in range(number + 1, len(found)) if found[n][1] is not None), len(lines))
        kept = list(lines[done:stop])
        if look.end is not None and number + 1 < len(found):
            kept = kept[: look.end - look.start + 1]
        done += len(kept)
        result += _unmatched(library, look, kept)
    return result


def _match(library: Library, look: Look, lines: Sequence[str], cursor: int) -> tuple[list[Piece] | None, int, int]:
    """The pieces of one look and the stretch they take; None where it has to make do with what is left."""
    if look.kind == "grep":
        return _grep(library, look, lines, cursor)
    if look.kind == "diff":
        return _diff(library, look, lines, cursor)
    rest = [_unnumbered(line) for line in lines[cursor:]] if look.numbered else lines[cursor:]
    piece, begin, count = _lines(library, look, rest)
    return ([piece] if piece else None), cursor + begin, cursor + begin + count


def _lines(library: Library, look: Look, lines: Sequence[str]) -> tuple[Piece | None, int, int]:
    """(piece, where it begins in the output, how many lines)"""
    fits: list[_Fit] = []
    partly: _Fit | None = None
    for version in library.versions(look.where, look.rev):
        if fits and (version.shared < fits[0].version.shared or any(fit.sure and not fit.begin for fit in fits)):
            break
        wanted, start = _asked(look, library.lines(version.blob))
        begin, count = _longest(wanted, lines) if wanted else (0, 0)
        fit = _Fit(version, start, begin, count, sure=version.whole or bool(look.rev))
        if count and count == len(wanted):
            fits.append(fit)
        elif count > (partly.count if partly else 0) and _distinctive(wanted[:count]):
            partly = fit
    if fits:
        first = min(fits, key=lambda fit: fit.begin)  # of two versions, the one that begins where the output does
        # Versions of one file are no rivals; other files that have as much in common with the name are.
        paths = {fit.version.path for fit in fits if fit.version.in_head} or {fit.version.path for fit in fits}
        if len(paths) > 1 and not first.sure:
            text = lines[first.begin : first.begin + first.count]
            return _kept(look, text, f"it fits several files: {', '.join(sorted(paths)[:4])}"), first.begin, first.count
        return _found(look, first, ""), first.begin, first.count
    if partly is not None:
        return _found(look, partly, f"the output ends after {partly.count} lines"), partly.begin, partly.count
    return _elsewhere(library, look, lines)


@dataclass(frozen=True, slots=True)
class _Fit:
    """A version that says what was printed."""

    version: Version
    start: int  # its first line
    begin: int  # in the output
    count: int
    sure: bool = True  # the name means this file and no other
    asked_there: bool = True


def _asked(look: Look, lines: Sequence[str]) -> tuple[Sequence[str], int]:
    """The lines of a version that the look asks for, and the number of the first."""
    end = len(lines) if look.end is None else min(look.end, len(lines))
    start = look.start if look.last is None else max(look.start, end - look.last + 1)
    return lines[start - 1 : end], start


def _longest(wanted: Sequence[str], lines: Sequence[str]) -> tuple[int, int]:
    """Where in the output a text stands, and how much of it: all, or up to where the output breaks off."""
    best = (0, 0)
    for begin in range(len(lines)):
        if not _same(wanted[0], lines[begin]):
            continue
        count = 1
        while count < len(wanted) and begin + count < len(lines) and _same(wanted[count], lines[begin + count]):
            count += 1
        if count == len(wanted):
            return begin, count
        ends = begin + count == len(lines) or _ELIDED.fullmatch(lines[begin + count])
        if ends and count > best[1]:
            best = (begin, count)
    return best


def _elsewhere(library: Library, look: Look, lines: Sequence[str]) -> tuple[Piece | None, int, int]:
    """The same text at other lines: an older or newer state of the file was printed."""
    wanted = list(lines) if look.end is None else list(lines[: look.end - look.start + 1])
    while wanted and not wanted[-1]:
        wanted.pop()
    if not _distinctive(wanted):
        return None, 0, 0
    for version in library.versions(look.where, look.rev):
        if place := _only_place(library.lines(version.blob), wanted):
            remark = f"printed as lines {look.start}-{look.start + len(wanted) - 1}"
            return _found(look, _Fit(version, place, 0, len(wanted), asked_there=False), remark), 0, len(wanted)
    return None, 0, 0


def _only_place(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """The line at which a text begins, where it is there exactly once."""
    places = [
        at + 1
        for at in range(len(lines) - len(wanted) + 1)
        if _same(lines[at], wanted[0]) and all(map(_same, lines[at : at + len(wanted)], wanted))
    ]
    return places[0] if len(places) == 1 else None


def _grep(library: Library, look: Look, lines: Sequence[str], cursor: int) -> tuple[list[Piece] | None, int, int]:
    hits: list[_Hit] = []
    begin = next((at for at in range(cursor, len(lines)) if _hit(lines[at], look)), len(lines))
    at = begin
    while at < len(lines):
        hit = _hit(lines[at], look)
        if hit is None and lines[at] != "--":
            break
        hits += [hit] if hit else []
        at += 1
    pieces = []
    for path, start, texts in _runs(hits):
        named = replace(look, path=path or look.path, start=start, end=start + len(texts) - 1)
        pieces.append(_lines(library, named, texts)[0] or _unknown(library, named, texts))
    return pieces, begin, at


_Hit = tuple[str, int, str, bool]  # path, line, text, whether it is a hit or its context


def _hit(line: str, look: Look) -> _Hit | None:
    if look.path and (match := _HIT.fullmatch(line)):
        return "", int(match[1]), match[3], match[2] == ":"
    if match := _NAMED_HIT.fullmatch(line) or _NAMED_CONTEXT.fullmatch(line):
        return match[1], int(match[2]), match[4], match[3] == ":"
    return None


def _runs(hits: list[_Hit]) -> list[tuple[str, int, list[str]]]:
    """Hits as readings: each line by itself, but lines with their context together."""
    runs: list[list[_Hit]] = []
    for hit in hits:
        if runs and runs[-1][-1][0] == hit[0] and runs[-1][-1][1] + 1 == hit[1]:
            runs[-1].append(hit)
        else:
            runs.append([hit])
    found: list[tuple[str, int, list[str]]] = []
    for run in runs:
        if all(is_hit for *_, is_hit in run):
            found += [(path, line, [text]) for path, line, text, _ in run]
        else:
            found.append((run[0][0], run[0][1], [text for _, _, text, _ in run]))
    return [one for one in found if any(one[2])]


def _diff(library: Library, look: Look, lines: Sequence[str], cursor: int) -> tuple[list[Piece] | None, int, int]:
    """The new side of every hunk."""
    pieces = []
    path, rev, at, begin = "", look.rev, cursor, None
    while at < len(lines):
        line = lines[at]
        at += 1
        if commit := _COMMIT.match(line):
            rev = commit[1]
        elif line.startswith("+++ "):
            path = line[4:].removeprefix("b/") if line != "+++ /dev/null" else ""
            begin = at - 1 if begin is None else begin
        elif (hunk := _HUNK.fullmatch(line)) and path:
            texts, at = _new_side(lines, at, int(hunk[2] or 1))
            start = int(hunk[1])
            named = replace(look, path=path, rev=rev, start=start, end=start + len(texts) - 1)
            if any(texts):
                pieces.append(_lines(library, named, texts)[0] or _unknown(library, named, texts))
    return pieces, cursor if begin is None else begin, at


def _new_side(lines: Sequence[str], at: int, count: int) -> tuple[list[str], int]:
    """The lines of a hunk as they are afterwards, and where the hunk ends."""
    texts: list[str] = []
    while at < len(lines) and len(texts) < count and lines[at][:1] in ("", " ", "+", "-", "\\"):
        if lines[at][:1] in ("", " ", "+"):
            texts.append(lines[at][1:])
        at += 1
    return texts, at


def _unmatched(library: Library, look: Look, lines: list[str]) -> list[Piece]:
    """What was printed without being found; nothing where the command itself says that it read nothing."""
    while lines and not lines[0]:
        lines.pop(0)
    while lines and not lines[-1]:
        lines.pop()
    if not lines or all(_REFUSED.fullmatch(line) for line in lines):
        return []
    return [_unknown(library, look, lines)]


def _unknown(library: Library, look: Look, lines: Sequence[str]) -> Piece:
    known = library.versions(look.where)
    remark = "no version of this file says it" if known else "the repository has no file of this name"
    return _kept(look, lines, remark)


def _kept(look: Look, lines: Sequence[str], remark: str) -> Piece:
    texts = list(lines[:MAX_KEPT])
    return Piece(
        look=look,
        path=look.where or "?",
        start=look.start,
        end=look.start + max(1, len(texts)) - 1,
        text="\n".join(texts),
        remark=remark,
    )


def _found(look: Look, fit: _Fit, remark: str) -> Piece:
    return Piece(
        look=look,
        path=fit.version.path,
        start=fit.start,
        end=fit.start + fit.count - 1,
        version=fit.version,
        asked_there=fit.asked_there,
        remark=remark,
    )


def _same(line: str, printed: str) -> bool:
    """Whether a printed line is that line of the file, perhaps cut short by what recorded it."""
    if line == printed:
        return True
    if "\t" in line and line.split() == printed.split():  # a terminal shows a tab as blanks
        return True
    cut = _CUT.search(printed) if printed.endswith(("...", "…", "]", ">")) else None
    kept = printed[: cut.start()].rstrip() if cut else ""
    return len(kept) >= 8 and line.startswith(kept)


def _distinctive(lines: Sequence[str]) -> bool:
    """Whether a text is more than brackets and blanks."""
    return any(len(re.sub(r"\W", "", line)) >= 8 for line in lines)


def _unnumbered(line: str) -> str:
    match = _NUMBERED.fullmatch(line)
    return match[1] or "" if match else line
