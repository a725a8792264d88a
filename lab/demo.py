"""The demo repository: the embedded engine as a target, with its history of patches.

Contract: `make_demo(DIR)` gives DIR a git repository whose commits, dates and SHAs are fixed per Livepath version:
the engine of the story (tag `v1`), then one commit per patch of the stack on `main`; candidates and planted faults
lie beside livepath.toml as `.patch` files. Made again from another version of the engine, the new history takes over
`main` and `v1`, the old one stays under a tag, and nothing under `.livepath/` is touched.
"""

from __future__ import annotations

from pathlib import Path

from lab.scribe import Scribe
from lab.series import PATCHES, ROOT, SeriesPatch, read_group, read_patch, source_files
from store.errors import RepoError

BASE_SUBJECT = "engine: the engine as it was deployed"
FOLDERS = {"candidates": "candidates", "zoo": "zoo", "later": "later"}


def message_of(patch: SeriesPatch) -> str:
    """The commit message of a patch; the trailer keeps its name whatever happens to the subject."""
    why = f"\n{patch.why}\n" if patch.why else ""
    return f"{patch.subject}\n{why}\nPatch-Name: {patch.name}\n"


def write_history(scribe: Scribe, root: Path = ROOT) -> tuple[str, str]:
    """Write base and stack as commits and return their SHAs (base, head)."""
    scribe.stage(root, source_files(root))
    base_patch = read_patch(PATCHES / "base.patch")
    scribe.apply("base", base_patch.diff)
    scribe.stage_text("livepath.toml", (PATCHES / "livepath.toml").read_text(encoding="utf-8"))
    scribe.stage_text(".gitignore", "__pycache__/\n*.pyc\n.livepath/\n")
    for group, folder in FOLDERS.items():
        for patch in read_group(group):
            scribe.stage_text(f"{folder}/{patch.path.name}", patch.text)
    base = head = scribe.commit(BASE_SUBJECT)
    for number, patch in enumerate(read_group("stack"), start=1):
        scribe.apply(patch.name, patch.diff)
        head = scribe.commit(message_of(patch), [head], number=number)
    return base, head


def make_demo(directory: Path) -> Path:
    """Make or renew the demo repository in `directory` and return it.

    Raises:
        RepoError: the folder holds something else, or files of the demo were changed by hand.
    """
    git_dir = directory / ".git"
    directory.mkdir(parents=True, exist_ok=True)
    if not git_dir.exists() and any(path.name != ".livepath" for path in directory.iterdir()):
        raise RepoError(f"{directory} is not empty and holds no demo", hint="name an empty folder: `livepath demo DIR`")
    fresh = not git_dir.exists()
    with Scribe(git_dir) as scribe:
        if fresh:
            scribe.init()
        elif not _is_demo(scribe):
            raise RepoError(f"{directory} is another git repository", hint="name an empty folder: `livepath demo DIR`")
        base, head = write_history(scribe)
        if not fresh:
            old = scribe.git("rev-parse", "refs/heads/main")
            if old == head:
                _restore_missing(scribe, directory)
                return directory
            _refuse_changes(directory, scribe)
            scribe.git("tag", "--force", f"was/{old[:12]}", old)
        scribe.git("update-ref", "refs/heads/main", head)
        scribe.git("update-ref", "refs/tags/v1", base)
        scribe.git("symbolic-ref", "HEAD", "refs/heads/main")
        _checkout(scribe, directory)
    return directory


def _is_demo(scribe: Scribe) -> bool:
    try:
        return scribe.git("log", "-1", "--format=%s", "refs/tags/v1") == BASE_SUBJECT
    except RepoError:
        return False


def _in_work_tree(directory: Path) -> dict[str, str]:
    # The repository's own index, not the throw-away one: a person's `git status` must come out clean.
    return {"GIT_WORK_TREE": str(directory), "GIT_INDEX_FILE": str(directory / ".git" / "index")}


def _checkout(scribe: Scribe, directory: Path) -> None:
    scribe.git("read-tree", "--reset", "-u", "HEAD", env=_in_work_tree(directory))


def _restore_missing(scribe: Scribe, directory: Path) -> None:
    """A demo whose making was interrupted before the files were written is finished here; edits are left alone."""
    if not (directory / "livepath.toml").exists():
        _checkout(scribe, directory)


def _refuse_changes(directory: Path, scribe: Scribe) -> None:
    changed = scribe.git("status", "--porcelain", "--untracked-files=no", env=_in_work_tree(directory))
    if changed:
        raise RepoError(
            f"{directory} holds changes of yours: {changed.splitlines()[0].strip()}",
            hint="commit them on a branch of your own, or name another folder: `livepath demo DIR`",
        )
