"""The demo repository: the embedded engine as a target, with its history of patches.

Contract: `make_demo(DIR)` gives DIR a git repository whose commits, dates and SHAs are fixed per Livepath version:
the engine of the story (tag `v1`), then one commit per patch of the stack on `main`; candidates and planted faults
lie beside livepath.toml as `.patch` files. The second chapter is a repository of its own: the same history, and on a
branch `chapter-2` what came after `main`, the fix and one more patch. Made again from another version of the engine,
the new history takes over branches and `v1`, the old one stays under a tag, and nothing under `.livepath/` is touched.
"""

from __future__ import annotations

from pathlib import Path

from lab.scribe import Scribe
from lab.series import PATCHES, ROOT, TRIED, SeriesPatch, read_group, read_patch, source_files
from store.errors import RepoError

BASE_SUBJECT = "engine: the engine as it was deployed"
SECOND_BRANCH = "chapter-2"
# What the second chapter's branch adds to main.
SECOND = (("candidates", "indexer-fp8-layout"), ("later", "marlin-runner"))


def message_of(patch: SeriesPatch) -> str:
    """The commit message of a patch; the trailer keeps its name whatever happens to the subject."""
    why = f"\n{patch.why}\n" if patch.why else ""
    return f"{patch.subject}\n{why}\nPatch-Name: {patch.name}\n"


def branch_of(chapter: int) -> str:
    """The branch whose history is the stack of a chapter."""
    return "main" if chapter == 1 else SECOND_BRANCH


def write_history(scribe: Scribe, root: Path = ROOT, *, chapter: int = 1) -> tuple[str, str, str]:
    """Write base, stack and what the chapter adds as commits; returns the SHAs of v1, main and the chapter's end."""
    later = SECOND if chapter == 2 else ()
    scribe.stage(root, source_files(root))
    base_patch = read_patch(PATCHES / "base.patch")
    scribe.apply("base", base_patch.diff)
    toml = (PATCHES / "livepath.toml").read_text(encoding="utf-8")
    scribe.stage_text("livepath.toml", toml.replace('head = "main"', f'head = "{branch_of(chapter)}"'))
    scribe.stage_text(".gitignore", "__pycache__/\n*.pyc\n.livepath/\n")
    for group in TRIED:
        for patch in read_group(group):
            if (group, patch.name) not in later:  # what is a commit of the history is no file beside it
                scribe.stage_text(f"{group}/{patch.path.name}", patch.text)
    base = head = scribe.commit(BASE_SUBJECT)
    added = [patch for group, name in later for patch in read_group(group) if patch.name == name]
    commits = []
    for number, patch in enumerate([*read_group("stack"), *added], start=1):
        scribe.apply(patch.name, patch.diff)
        head = scribe.commit(message_of(patch), [head], number=number)
        commits.append(head)
    return base, commits[-1 - len(added)], head


def make_demo(directory: Path, chapter: int = 1) -> Path:
    """Make or renew the demo repository of a chapter in `directory` and return it.

    Raises:
        RepoError: the folder holds something else, or files of the demo were changed by hand.
    """
    directory = directory.resolve()  # git changes to the work tree, where a relative path means another place
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
        elif _chapter(scribe) != chapter:
            raise RepoError(
                f"{directory} holds chapter {_chapter(scribe)} of the demo, not {chapter}",
                hint=f"name another folder: `livepath demo --chapter {chapter} DIR`",
            )
        base, main, head = write_history(scribe, chapter=chapter)
        branch = f"refs/heads/{branch_of(chapter)}"
        if not fresh:
            old = scribe.git("rev-parse", branch)
            if old == head:
                _restore_missing(scribe, directory)
                return directory
            _refuse_changes(directory, scribe)
            scribe.git("tag", "--force", f"was/{old[:12]}", old)
        scribe.git("update-ref", branch, head)
        scribe.git("update-ref", "refs/heads/main", main)
        scribe.git("update-ref", "refs/tags/v1", base)
        scribe.git("symbolic-ref", "HEAD", branch)
        _checkout(scribe, directory)
    return directory


def _chapter(scribe: Scribe) -> int:
    return 2 if scribe.git("for-each-ref", f"refs/heads/{SECOND_BRANCH}") else 1


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
