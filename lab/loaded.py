"""Whether a module the target would load is the one of the tree that is looked at.

Contract: a child of the target's interpreter looks the module up in a throw-away checkout of the case's head, with the
path a run has. It imports the parents of a dotted name, because finding a submodule takes that, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

from lab.case import Case
from lab.git import Git
from store.errors import RunError, UsageError

_TIMEOUT_S = 60
_ASK = """
import importlib.util, json, sys
try:
    spec = importlib.util.find_spec(sys.argv[1])
except ModuleNotFoundError as error:
    print(json.dumps({"missing": error.name}))
else:
    print(json.dumps({"missing": sys.argv[1]} if spec is None else {"origin": spec.origin}))
"""


def where_loaded(case: Case, module: str) -> tuple[str, str]:
    """Where a module would come from: (in words, path from the tree's root or absolute).

    Raises:
        UsageError: it is no module name.
        RunError: the interpreter does not run, or a parent package of the module fails to import.
    """
    if not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"`{module}` is no module name", hint="write it with dots: package.module")
    with tempfile.TemporaryDirectory(prefix="livepath-loaded-") as folder:
        root = Path(folder).resolve() / "tree"
        _write_tree(case.git, case.store.case().head, root)
        origin = _find(case, module, root)
        if origin is None:
            return f"`{module}` cannot be found by {case.target.python}", ""
        path = Path(origin).resolve()
        if not path.is_relative_to(root):
            text = f"`{module}` does NOT come from the worktree: {case.target.python} loads it from {origin}"
            return text, str(path)
        where = path.relative_to(root).as_posix()
        blob = case.git.read(case.store.case().head, where)
        same = blob is not None and hashlib.sha256(blob).digest() == hashlib.sha256(path.read_bytes()).digest()
        whose = "the file of the case's head" if same else "a file that differs from the case's head"
        return f"`{module}` comes from the worktree: {where}, {whose}", where


def _write_tree(git: Git, commit: str, root: Path) -> None:
    """Write the Python files of a commit to a folder; no checkout, so no filter or hook has a part in it."""
    for path in git.files(commit):
        if path.endswith(".py"):
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(git.read(commit, path) or b"")


def _find(case: Case, module: str, root: Path) -> str | None:
    keep = {key: os.environ[key] for key in ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR") if key in os.environ}
    env = {**keep, **case.target.env, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [str(case.target.python), "-c", _ASK, module]
    hint = "check `python` and `env` in livepath.toml"
    try:
        done = subprocess.run(
            words,
            cwd=root,
            env=env,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"{case.target.python} could not look up `{module}`: {error}", hint=hint) from error
    try:
        found = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError as error:
        last = done.stderr.strip().rpartition("\n")[2] or "no output"
        raise RunError(f"looking up `{module}` failed: {last}", hint=hint) from error
    origin = found.get("origin")
    return str(origin) if origin else None
