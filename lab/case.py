"""A case on disk: where it lies, how it is made, opened and listed.

Contract: the case of slug S in target repo R is `R/.livepath/S.db`, its artefacts `R/.livepath/S/`; `LIVEPATH_HOME`
moves the folder. The folder ignores itself. Opening a case reads livepath.toml again, so that the patches on record
follow the repository; tier, reason and suspected kinds, which a person gave, stay.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from lab.git import Git
from lab.machine import machine_facts
from lab.patches import all_patches
from lab.target import Target
from lab.version import livepath_version
from store.errors import StoreError, UsageError
from store.models import CaseInfo, Patch
from store.store import Store

# The case of `livepath judge`: single commits, no patches. It is opened only by name.
JUDGE = "judge"
_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(slots=True)
class Case:
    """An open case: its record, its target and the door to the target's repository."""

    slug: str
    home: Path
    store: Store
    target: Target
    git: Git

    @property
    def folder(self) -> Path:
        """Where artefacts go."""
        return self.home / self.slug

    @property
    def stack(self) -> list[Patch]:
        return self.store.patches(role="stack")

    @property
    def candidates(self) -> list[Patch]:
        return self.store.patches(role="candidate")

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Case:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def home_of(repo: Path) -> Path:
    """The folder of a repository's cases; made, and ignoring itself, when it is not there."""
    moved = os.environ.get("LIVEPATH_HOME")
    home = Path(moved).expanduser().resolve() if moved else repo / ".livepath"
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not (home / ".gitignore").exists():
            (home / ".gitignore").write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"{home} cannot be written: {error.strerror}", hint="set LIVEPATH_HOME to a folder you own"
        ) from error
    return home


def find_toml(start: Path) -> Path:
    """livepath.toml in `start` or the nearest folder above it.

    Raises:
        UsageError: there is none.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / "livepath.toml").is_file():
            return folder / "livepath.toml"
    raise UsageError(
        f"no livepath.toml in {start} or above it",
        hint="start in the target's folder, or try the worked case with `livepath demo`",
    )


def slugs(home: Path) -> list[str]:
    return sorted(path.stem for path in home.glob("*.db"))


def create_case(start: Path, slug: str, symptom: str) -> Case:
    """Make a case for the target whose livepath.toml is in or above `start`.

    Raises:
        UsageError: the slug is malformed or taken.
    """
    if not _SLUG.fullmatch(slug):
        raise UsageError(f"`{slug}` is no slug: expected lower-case letters, digits, `.`, `_`, `-`, 64 at most")
    if slug == JUDGE:
        raise UsageError(f"`{JUDGE}` is the case of `livepath judge`", hint="take another slug")
    target = Target.load(find_toml(start))
    git = Git(target.repo)
    home = home_of(git.root)
    path = home / f"{slug}.db"
    if path.exists():
        raise UsageError(f"case `{slug}` exists", hint=f"open it with `--case {slug}`, or take another slug")
    info = CaseInfo(
        slug=slug,
        symptom=symptom,
        repo=str(git.root),
        target_toml=target.text,
        base=git.commit(target.base),
        head=git.commit(target.head),
        machine=machine_facts(target),
        livepath_version=livepath_version(),
    )
    case = Case(slug=slug, home=home, store=Store.create(path, info), target=target, git=git)
    sync_patches(case)
    return case


def open_case(start: Path, slug: str | None = None) -> Case:
    """Open the case of the target in or above `start`; the slug is needed only where several exist.

    Raises:
        UsageError: there is no such case, or several and none was named.
    """
    target = Target.load(find_toml(start))
    git = Git(target.repo)
    home = home_of(git.root)
    known = slugs(home)
    if slug is None:
        known = [name for name in known if name != JUDGE]
        if len(known) > 1:
            raise UsageError(f"several cases: {', '.join(known)}", hint="name one with `--case SLUG`")
        if not known:
            raise UsageError(
                "this target has no case yet", hint="make one with `livepath case new SLUG --symptom TEXT`"
            )
        slug = known[0]
    if slug not in known:
        raise UsageError(f"no case `{slug}`", hint=f"known: {', '.join(known) or 'none'}")
    case = Case(slug=slug, home=home, store=Store.open(home / f"{slug}.db"), target=target, git=git)
    follow_target(case)
    return case


def follow_target(case: Case) -> None:
    """Bring the record up to the repository as it is: base and head after a rebase, and the patches between them."""
    info = case.store.case()
    now = replace(
        info,
        target_toml=case.target.text,
        base=case.git.commit(case.target.base),
        head=case.git.commit(case.target.head),
        machine=machine_facts(case.target),
    )
    if now != info:
        case.store.put_case(now)
    sync_patches(case)


def sync_patches(case: Case) -> None:
    """Write the target's patches into the record, keeping what a person said of them; those that left are gone."""
    known = {patch.name: patch for patch in [*case.store.patches(), *case.store.patches("gone")]}
    present = all_patches(case.target, case.git)
    for name in known.keys() - {patch.name for patch in present}:
        if known[name].role != "gone":
            case.store.put_patch(replace(known[name], role="gone"))
    for patch in present:
        old = known.get(patch.name)
        if old is not None:
            patch = replace(patch, id=old.id, tier=old.tier, reason=old.reason, suspected=old.suspected)
        if patch != old:
            case.store.put_patch(patch)
