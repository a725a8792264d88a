"""Facts of the machine and of the target's interpreter that decide what a run can show.

Contract: the interpreter is asked by a small child that reads package metadata and imports none of the packages.
`machine_facts` is plain JSON; `given` holds the facts a verdict may rest on, in words ("no GPU").
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

from lab.target import Target
from store.errors import TargetError

NO_GPU = "no GPU"
_ASK = """
import hashlib, json, platform, sys
from importlib import metadata
have = {}
for dist in metadata.distributions():
    name = dist.metadata["Name"]
    if name:
        have.setdefault(name.lower().replace("_", "-"), dist.version)
listed = "\\n".join(f"{name}=={version}" for name, version in sorted(have.items()))
print(json.dumps({
    "python": platform.python_version(),
    "implementation": sys.implementation.cache_tag,
    "torch": have.get("torch"),
    "triton": have.get("triton"),
    "packages_sha256": hashlib.sha256(listed.encode()).hexdigest(),
}))
"""


def machine_facts(target: Target) -> dict[str, Any]:
    """What this machine and the target's interpreter are.

    Raises:
        TargetError: the interpreter does not run.
    """
    gpus = gpu_names()
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "git": _git_version(),
        "interpreter": str(target.python),
        **_interpreter_facts(str(target.python)),
        "gpus": list(gpus),
        "given": [] if gpus else [NO_GPU],
    }


def gpu_names() -> tuple[str, ...]:
    """The names of the GPUs, "GPU" for one whose name is not told; empty where there is none."""
    found = []
    for folder in sorted(Path("/proc/driver/nvidia/gpus").glob("*")):
        text = _read(folder / "information")
        named = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Model:")]
        found.append(named[0] if named else "GPU")
    if not found and (smi := shutil.which("nvidia-smi")):
        try:
            done = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=20, check=False)
            found = [
                line.partition(":")[2].partition("(")[0].strip() for line in done.stdout.splitlines() if "GPU " in line
            ]
        except (OSError, subprocess.TimeoutExpired):
            found = []
    return tuple(found or ["GPU" for _ in sorted(Path("/dev").glob("nvidia[0-9]*"))])


@lru_cache(maxsize=8)
def _interpreter_facts(python: str) -> dict[str, Any]:
    hint = "set `python` in livepath.toml to a working Python 3.11 or newer"
    env = {key: os.environ[key] for key in ("PATH", "HOME", "LD_LIBRARY_PATH") if key in os.environ}
    try:
        done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=60, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TargetError(f"the target's interpreter {python} does not run: {error}", hint=hint) from error
    try:
        facts = json.loads(done.stdout)
    except ValueError as error:
        last = done.stderr.strip().rpartition("\n")[2]
        raise TargetError(
            f"the target's interpreter {python} does not answer: {last or 'no output'}", hint=hint
        ) from error
    return dict(facts)


@lru_cache(maxsize=1)
def _git_version() -> str:
    try:
        return subprocess.run(["git", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def _cpu_name() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
