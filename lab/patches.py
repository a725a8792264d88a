"""The patches of a target: its stack (commits, .patch files, flags), its candidates and the planted faults its probes
must catch.

Contract: names are unique over all roles and say what a person would type. A commit's name is its `Patch-Name:`
trailer, else the slug of its subject after `area: `; a file's is its stem without a leading number; a flag's is
NAME=VALUE. Identity is `git patch-id --stable`: a commit id is only a hint where it was last seen. Order within the
stack: commits, then files, then flags.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from lab.git import Commit, Git
from lab.target import Target
from store.errors import PatchError, TargetError
from store.models import Patch, Role

RESERVED = ("base", "full", "fix")  # words of the names of arms
_TRAILER = re.compile(r"^Patch-Name:\s*(\S+)\s*$", re.MULTILINE)
_NUMBER = re.compile(r"^\d+[-_.]")
_AREA = re.compile(r"^[\w./-]+:\s+")
_SUBJECT = re.compile(r"^Subject:\s*(?:\[PATCH[^\]]*\]\s*)?(.+(?:\n[ \t].+)*)", re.MULTILINE)


def all_patches(target: Target, git: Git) -> list[Patch]:
    """Every patch of the target: stack, candidates, controls, each in order.

    Raises:
        TargetError: `repo` is not the root of its work tree, so that paths of patches would not be paths of `repo`.
        PatchError: a merge is in the stack, a file is no patch, or two patches have one name.
    """
    if git.root != target.repo:
        raise TargetError(
            f"{target.path}: repo is {target.repo}, expected the root of its git work tree, {git.root}",
            hint="let `repo` lead there, and write `trace` and commands from there",
        )
    patches = [*stack(target, git), *candidates(target, git), *controls(target, git)]
    seen: dict[str, Patch] = {}
    for patch in patches:
        if patch.name in RESERVED:
            raise PatchError(
                f"a patch cannot be named `{patch.name}` ({_origin(patch)}): arms are named so",
                hint="rename the file, or give the commit a trailer `Patch-Name: NAME`",
            )
        if patch.name in seen:
            other = seen[patch.name]
            raise PatchError(
                f"two patches are named `{patch.name}`: {_origin(other)} and {_origin(patch)}",
                hint="rename the file, or give the commit a trailer `Patch-Name: NAME`",
            )
        seen[patch.name] = patch
    return patches


def stack(target: Target, git: Git) -> list[Patch]:
    """The patches under suspicion, in order of application."""
    patches = [_from_commit(git, commit, number) for number, commit in enumerate(git.commits(target.base, target.head))]
    for path in _glob(target, target.patches, "patches"):
        patches.append(_from_file(target, git, path, "stack", len(patches)))
    for name, (off, on) in target.flags.items():
        patches.append(_from_flag(name, off, on, len(patches)))
    return patches


def candidates(target: Target, git: Git) -> list[Patch]:
    """The patches that are tried as fixes."""
    paths = _glob(target, target.candidates, "candidates")
    return [_from_file(target, git, path, "candidate", number) for number, path in enumerate(paths)]


def controls(target: Target, git: Git) -> list[Patch]:
    """The planted faults, each once; `suspected` holds the kinds of fault it stands for."""
    kinds: dict[Path, list[str]] = {}
    for probe in target.probes.values():
        for kind, name in probe.controls.items():
            path = (target.folder / name).resolve()
            if not path.is_file():
                raise PatchError(
                    f"{target.path.name}: control `{kind}` of probe `{probe.name}` is missing: {name}",
                    hint="paths of controls are relative to livepath.toml",
                )
            kinds.setdefault(path, []).append(kind)
    return [
        _from_file(target, git, path, "control", number, suspected=tuple(dict.fromkeys(names)))
        for number, (path, names) in enumerate(kinds.items())
    ]


def find_patch(patches: Iterable[Patch], name: str) -> Patch:
    """The patch of that name.

    Raises:
        PatchError: there is none; the hint lists the nearest names.
    """
    known = {patch.name: patch for patch in patches}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = (
        f"did you mean {' or '.join(f'`{other}`' for other in near)}?" if near else "`livepath patch list` names them"
    )
    raise PatchError(f"no patch `{name}`", hint=hint)


def slug(text: str) -> str:
    """Lower-case words joined by hyphens, cut at a word near 50 characters."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    name = ""
    for word in words:
        longer = f"{name}-{word}" if name else word
        if len(longer) > 50 and name:
            break
        name = longer[:50]
    return name or "patch"


def _plain(name: str) -> str:
    """A name as it was given, without what could not be typed in the name of an arm."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", name).strip("-")[:80] or "patch"


def _from_commit(git: Git, commit: Commit, position: int) -> Patch:
    if len(commit.parents) > 1:
        raise PatchError(
            f"{commit.sha[:12]} `{commit.subject}` is a merge: a stack is a straight line of commits",
            hint="rebase the stack (`git rebase BASE`), or name .patch files instead",
        )
    if not commit.parents:
        raise PatchError(f"{commit.sha[:12]} has no parent and cannot be a patch", hint="take it as `base`")
    trailer = _TRAILER.search(commit.body)
    diff = git.diff(commit.parents[0], commit.sha)
    return Patch(
        name=_plain(trailer[1]) if trailer else slug(_AREA.sub("", commit.subject)),
        role="stack",
        kind="commit",
        position=position,
        commit=commit.sha,
        patch_id=git.patch_id(diff) or f"empty:{commit.sha}",
        subject=commit.subject,
        diff=diff,
    )


def _from_file(
    target: Target, git: Git, path: Path, role: Role, position: int, suspected: tuple[str, ...] = ()
) -> Patch:
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise PatchError(
            f"{path} is not UTF-8", hint="apply it and commit it; a stack of commits may hold any bytes"
        ) from error
    patch_id = git.patch_id(text)
    if not patch_id:
        raise PatchError(
            f"{path} holds no diff", hint="write one with `git diff --full-index --binary` or `git format-patch`"
        )
    subject = _SUBJECT.search(text)
    return Patch(
        name=_plain(_NUMBER.sub("", path.stem)),
        role=role,
        kind="file",
        position=position,
        commit=None,
        patch_id=patch_id,
        subject=" ".join(subject[1].split()) if subject else path.stem,
        diff=_diff_part(text),
        source=_relative(path, target.folder),
        suspected=suspected,
    )


def _from_flag(name: str, off: str, on: str, position: int) -> Patch:
    return Patch(
        name=_plain(f"{name}={on}"),
        role="stack",
        kind="flag",
        position=position,
        commit=None,
        patch_id=f"flag:{name}={on}",
        subject=f"environment {name}={on} instead of {off or 'empty'}",
        diff="",
        source=f"{name}={off}:{on}",
    )


def _diff_part(text: str) -> str:
    """What follows the message of a mail-formatted patch."""
    start = re.search(r"^(diff --git |--- )", text, re.MULTILINE)
    return text[start.start() :] if start else text


def _glob(target: Target, patterns: Iterable[str], key: str) -> list[Path]:
    paths: dict[Path, None] = {}
    for pattern in patterns:
        try:
            found = sorted(path.resolve() for path in target.folder.glob(pattern) if path.is_file())
        except (ValueError, NotImplementedError) as error:
            raise PatchError(
                f"{target.path.name}: {key} `{pattern}` is no glob: {error}", hint="paths are relative"
            ) from error
        if not found:
            raise PatchError(
                f"{target.path.name}: {key} `{pattern}` matches no file", hint=f"it is looked for in {target.folder}"
            )
        paths |= dict.fromkeys(found)
    return list(paths)


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def _origin(patch: Patch) -> str:
    return f"commit {patch.commit[:12]}" if patch.commit else patch.source
