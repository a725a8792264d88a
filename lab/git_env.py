"""The environment every git call of the workbench runs in: nothing of the repository's own config gets to run.

Contract: hooks, fsmonitor, filters and merge drivers are off by settings that outrank the repository's; the machine's
and the person's git config take no part, except `safe.directory`, which only they may set. `GIT_*` variables around
us are not handed on.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from store.errors import RepoError

MIN_VERSION = (2, 38)


def base_env() -> dict[str, str]:
    """The environment before the repository is known."""
    # Nothing of GIT_*: a hook or `git bisect run` around us would point git at another repository or index.
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR", "SYSTEMROOT") if key in os.environ}
    return kept | {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "LC_ALL": "C",
    }


def neutral_config(path: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Settings, as environment, that switch off whatever the config of the repository at `path` would run."""
    values = [
        ("core.hooksPath", os.devnull),
        ("core.fsmonitor", "false"),
        ("core.quotePath", "false"),
        ("core.autocrlf", "false"),
        ("core.attributesFile", os.devnull),
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
        ("submodule.recurse", "false"),
        *(("safe.directory", folder) for folder in _safe_directories(path)),
    ]
    listed = subprocess.run(
        ["git", "config", "--null", "--name-only", "--get-regexp", r"^(filter|merge|diff)\..*\."],
        capture_output=True,
        cwd=path,
        env={**env, **_config_env(values)},
        check=False,
    )
    for key in os.fsdecode(listed.stdout).split("\0"):
        section, _, rest = key.partition(".")
        name, _, setting = rest.rpartition(".")
        match section, setting:
            case "filter", "clean" | "smudge" | "process":
                values += [(key, ""), (f"filter.{name}.required", "false")]
            case "merge", "driver":
                values.append((key, "false"))  # the command `false`: such a file conflicts instead of running a driver
            case "diff", "textconv":
                values.append((key, "cat"))
    return _config_env(values)


def _config_env(values: list[tuple[str, str]]) -> dict[str, str]:
    env = {"GIT_CONFIG_COUNT": str(len(values))}
    for number, (key, value) in enumerate(values):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env


def _safe_directories(path: Path) -> list[str]:
    """What the person allowed; handed on because their config takes no other part."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_") or key == "GIT_CONFIG_GLOBAL"}
    folders: list[str] = []
    for scope in ("--system", "--global"):
        done = subprocess.run(
            ["git", "config", scope, "--null", "--get-all", "safe.directory"],
            capture_output=True,
            cwd=path,
            env=env,
            check=False,
        )
        folders += [folder for folder in os.fsdecode(done.stdout).split("\0") if folder]
    return folders


def check_version(env: Mapping[str, str]) -> None:
    """Refuse a git that is missing or older than `MIN_VERSION`."""
    try:
        out = subprocess.run(["git", "--version"], capture_output=True, env=env, check=False, text=True).stdout
    except FileNotFoundError as error:
        raise RepoError("git is not on PATH", hint="install git 2.38 or newer") from error
    numbers = re.search(r"(\d+)\.(\d+)", out)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < MIN_VERSION:
        raise RepoError(f"{out.strip() or 'git'} is too old", hint="install git 2.38 or newer")
