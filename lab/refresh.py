"""`./run refresh-patches`: rebases the patch series after the engine changed.

Contract: the old series (the files in HEAD, which apply to HEAD's engine) is written as commits, each commit is
cherry-picked onto the working tree's engine by a real three-way merge, and every file under `engine/patches/` is
written anew, the recorded session too. A conflict stops everything before a file is written and names the patch and
the files.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from lab.demo import make_demo
from lab.scribe import Scribe
from lab.series import PATCHES, ROOMS, ROOT, TRIED, SeriesPatch, read_group, read_patch, source_files
from lab.session_replay import replay
from store.errors import LivepathError, PatchError, RepoError


def main(argv: list[str]) -> int:
    old_rev = argv[0] if argv else "HEAD"
    try:
        changed = refresh(old_rev)
    except LivepathError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    print("\n".join(f"rewritten: {path}" for path in changed) or "every patch is as it was", file=sys.stderr)
    return 0


def refresh(old_rev: str) -> list[str]:
    """Rebase the series from `old_rev` of this checkout onto its working tree; returns the files that changed."""
    with tempfile.TemporaryDirectory(prefix="livepath-refresh-") as folder:
        old_root = Path(folder) / "old"
        _export(old_rev, old_root)
        with Scribe(Path(folder) / "git") as scribe:
            scribe.init()
            scribe.stage(old_root, source_files(old_root))
            old_ground = scribe.commit("old engine")
            scribe.stage(ROOT, source_files(ROOT))
            new_ground = scribe.commit("new engine")

            written: dict[Path, str] = {}
            base = read_patch(PATCHES / "base.patch")
            old_base, new_base = _move(scribe, base, old_ground, new_ground)
            written[base.path] = _text(scribe, base, new_ground, new_base)
            old_head, new_head = old_base, new_base
            for patch in read_group("stack"):
                old_next, new_next = _move(scribe, patch, old_head, new_head)
                written[patch.path] = _text(scribe, patch, new_head, new_next)
                old_head, new_head = old_next, new_next
            for group in TRIED:
                for patch in read_group(group):
                    # A candidate or planted fault is written against the end of the stack.
                    _, moved = _move(scribe, patch, old_head, new_head)
                    written[patch.path] = _text(scribe, patch, new_head, moved)
    changed = []
    for path, text in written.items():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(str(path.relative_to(ROOT)))
    return changed + _refresh_session()


def _refresh_session() -> list[str]:
    """The session that ships with the demo prints what the demo's head says now."""
    path = PATCHES / "session.log"
    if not path.exists():
        return []  # a series without a recorded session
    old = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="livepath-refresh-") as folder:
        new = replay(old, make_demo(Path(folder) / "demo"))
    if new == old:
        return []
    path.write_text(new, encoding="utf-8")
    return [str(path.relative_to(ROOT))]


def _move(scribe: Scribe, patch: SeriesPatch, old: str, new: str) -> tuple[str, str]:
    """Commit `patch` on `old`, carry it over to `new`; returns both commits."""
    scribe.load(old)
    scribe.apply(patch.name, patch.diff)
    old_with = scribe.commit(patch.subject, [old])
    # merge-tree takes the merge base from history: `new` is re-parented on `old`, so that it is `old`.
    new_on_old = scribe.git("commit-tree", f"{new}^{{tree}}", "-p", old, stdin="new", env=_who())
    try:
        merged = scribe.git("merge-tree", "--write-tree", "--name-only", new_on_old, old_with).splitlines()[0]
    except RepoError as error:
        raise PatchError(
            f"`{patch.name}` does not carry over to the engine as it is now: {' '.join(str(error).splitlines()[:4])}",
            hint=f"write {patch.path.name} by hand against the new engine, then run this again",
        ) from error
    scribe.load(merged)
    return old_with, scribe.commit(patch.subject, [new])


def _text(scribe: Scribe, patch: SeriesPatch, before: str, after: str) -> str:
    diff = scribe.git("diff", "--no-color", "--no-ext-diff", "--full-index", before, after)
    return SeriesPatch(path=patch.path, name=patch.name, subject=patch.subject, why=patch.why, diff=f"{diff}\n").text


def _who() -> dict[str, str]:
    names = {f"GIT_{role}_NAME": "Livepath" for role in ("AUTHOR", "COMMITTER")}
    return names | {f"GIT_{role}_EMAIL": "demo@livepath.invalid" for role in ("AUTHOR", "COMMITTER")}


def _export(rev: str, folder: Path) -> None:
    folder.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", rev, *ROOMS], capture_output=True, check=False
    )
    if archive.returncode:
        raise RepoError(f"`{rev}` is no revision of this checkout: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
