"""The key of a run: equal keys mean that another attempt would only repeat what is on record.

Contract: sha256 of canonical JSON over everything that decides the outcome: tree, command, environment, seed,
instrumentation, the recorder's own code, interpreter, installed packages, GPUs. The value behind a key is a list of
attempts, never "the" result.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from lab.runner import INJECT

# Facts of the machine that decide an outcome; the rest (cores, git) only its speed.
_DECIDING = ("system", "machine", "cpu", "python", "implementation", "packages_sha256", "gpus")
_INHERITED = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")


def run_key(
    *,
    tree: str,
    command: str,
    env: Mapping[str, str],
    seed: int,
    instrumentation: str,
    machine: Mapping[str, Any],
    trace: tuple[str, ...] = (),
    setup: str = "",
) -> str:
    """The key of one probe on one tree; `env` is what livepath.toml and the flags set."""
    body = {
        "version": 1,
        "tree": tree,
        "command": command,
        "env": dict(env),
        "inherited": {key: os.environ[key] for key in _INHERITED if key in os.environ},
        "seed": seed,
        "instrumentation": instrumentation,
        "recorder": recorder_sha256(),
        "machine": {key: machine.get(key) for key in _DECIDING},
        "trace": list(trace),
        "setup": setup,
    }
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@lru_cache(maxsize=1)
def recorder_sha256() -> str:
    """The recorder's own code, which takes part in every traced run."""
    digest = hashlib.sha256()
    for path in sorted(INJECT.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
