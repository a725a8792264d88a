"""Run NVIDIA's compute-sanitizer over small launches of every kernel: `python -m benchmarks.sanitize [OP...]`.

Each op runs plain first (which also compiles its kernels), then under each tool, in processes of their own under a
limit, several at once. Writes `benchmarks/results/<date>-sanitizer-<gpu>.json`. Exits 1 when a tool found something or
a kernel of kernels/ was launched by no case, 2 when the tool is missing or does not find the fault planted for it.
memcheck sees a write beyond a tensor because torch's allocator is told to ask the driver for every tensor, and the
tool pads what the driver gives. racecheck sees shared memory only, and of that nothing that `stmatrix` writes: a race
through global memory is not its business. It needs `pip install nvidia-cuda-sanitizer-api` where the CUDA toolkit is
older than 13.1, whose mbarriers it misjudges; kernels of warps with roles run rewritten (`sanitizer_arrivals.py`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import result_file
from benchmarks.children import run_child, tail

TOOLS = {"memcheck": ("--padding", "1024"), "racecheck": ()}
SUMMARY = {"memcheck": r"ERROR SUMMARY: (\d+) error", "racecheck": r"RACECHECK SUMMARY: (\d+) hazard"}
OPTIONS = ("--target-processes", "application-only", "--report-api-errors", "no", "--print-limit", "20")
# Cases with a fault that a tool must find: racecheck also in a kernel that is rewritten, which must hide no race.
FAULTS = {"memcheck": ("beyond-the-end",), "racecheck": ("unguarded", "unordered-roles")}
# Cases whose kernels have warps with roles.
ROLES = ("sparse_attention", "unordered-roles")
CASE_LIMIT_S = 120.0
JOBS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One op under one tool; `found` is None where the tool came to no count, with why in `verdict`."""

    op: str
    tool: str
    found: int | None
    verdict: str
    kernels: list[str]
    seconds: float
    rewritten: int = 0  # arrivals of one thread for its warps that became arrivals of each

    @property
    def clean(self) -> bool:
        return self.found == 0 and self.verdict == "clean"


def find_sanitizer() -> Path | None:
    """compute-sanitizer of its wheel, on PATH, or in a CUDA toolkit's folder."""
    wheels = importlib.util.find_spec("nvidia")
    folders = sorted((Path(path) for path in (wheels and wheels.submodule_search_locations) or ()), reverse=True)
    places = [place for folder in folders for place in folder.glob("cu*/bin/compute-sanitizer")]
    if found := shutil.which("compute-sanitizer"):
        places.append(Path(found))
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    roots += [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True), Path("/opt/cuda")]
    places += [root / folder / "compute-sanitizer" for root in roots for folder in ("bin", "compute-sanitizer")]
    return next((place for place in places if place.is_file() and os.access(place, os.X_OK)), None)


def version_of(sanitizer: Path) -> str | None:
    said = subprocess.run([sanitizer, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"Version (\S+)", said)
    return version[1] if version else None


def check(sanitizer: Path | None, tool: str, op: str, folder: Path, limit_s: float) -> Row:
    """Run one case under one tool; `plain` runs it as it is."""
    command: list[str | Path] = [sys.executable, "-m", "benchmarks.sanitizer_child", op]
    if tool == "racecheck" and op in ROLES:
        command.append("--each-thread-arrives")
    if tool != "plain":
        assert sanitizer is not None
        command = [sanitizer, "--tool", tool, *OPTIONS, *TOOLS[tool], *command]
    log = folder / f"{op}-{tool}.log"
    ended = run_child(command, limit_s, log, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    row = read_log(op, tool, log.read_text(encoding="utf-8", errors="replace"), ended.code, ended.seconds)
    print(f"{op:18} {tool:10} {row.seconds:6.1f} s  {row.verdict}", flush=True)
    if not row.clean and not any(op in faults for faults in FAULTS.values()):
        print(tail(log, 40), flush=True)
    return row


def read_log(op: str, tool: str, text: str, code: int | None, seconds: float) -> Row:
    """What a run says of itself: the tool's last count, and the kernels that the case launched."""
    launched = re.search(r"^launched: (\[.*\])$", text, re.MULTILINE)
    kernels = json.loads(launched[1]) if launched else []
    rewritten = re.search(r"^rewritten: (\d+)$", text, re.MULTILINE)
    counts = [0] if tool == "plain" else [int(count) for count in re.findall(SUMMARY[tool], text)]
    found = counts[-1] if counts else None
    if code is None:
        found, verdict = None, "over its limit"
    elif found:
        verdict = f"{found} found"
    elif found is None:
        verdict = "the tool gave no count"
    elif not kernels or code != 0:
        found, verdict = None, f"the case itself failed, exit {code}"
    else:
        verdict = "clean"
    return Row(
        op=op, tool=tool, found=found, verdict=verdict, kernels=kernels, seconds=round(seconds, 1),
        rewritten=int(rewritten[1]) if rewritten else 0,
    )  # fmt: skip


def run_all(
    sanitizer: Path, ops: Sequence[str], tools: Sequence[str], folder: Path, limit_s: float, jobs: int
) -> Iterator[list[Row]]:
    """The rows of each op, as it ends; an op that fails plain is not put under the tools."""

    def one(op: str) -> list[Row]:
        rows = [check(sanitizer, "plain", op, folder, limit_s)]
        if rows[0].clean:
            rows += [check(sanitizer, tool, op, folder, limit_s) for tool in tools]
        return rows

    with ThreadPoolExecutor(jobs) as pool:
        for ended in as_completed([pool.submit(one, op) for op in ops]):
            yield ended.result()


def never_launched(rows: Sequence[Row], kernels: set[str]) -> list[str]:
    return sorted(kernels - {kernel for row in rows for kernel in row.kernels})


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sanitize", description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", help="names of cases; all of them without it")
    parser.add_argument("--tools", default=",".join(TOOLS), help="by commas")
    parser.add_argument("--quick", action="store_true", help="memcheck only")
    parser.add_argument("--limit", type=float, default=CASE_LIMIT_S, help="seconds for each op under each tool")
    parser.add_argument("--jobs", type=int, default=JOBS, help="ops at once")
    parser.add_argument("--out", type=Path, default=result_file.RESULTS, help="folder of the result file")
    options = parser.parse_args(arguments)
    tools = ["memcheck"] if options.quick else options.tools.split(",")
    if unknown := [tool for tool in tools if tool not in TOOLS]:
        parser.error(f"no tool {', '.join(unknown)}; expected some of {', '.join(TOOLS)}")
    sanitizer = find_sanitizer()
    if sanitizer is None:
        print("sanitize: compute-sanitizer is neither on PATH nor in a CUDA toolkit's folder", file=sys.stderr)
        print("sanitize: `pip install nvidia-cuda-sanitizer-api` brings it", file=sys.stderr)
        return 2

    import torch

    from benchmarks import timing
    from benchmarks.sanitizer_cases import CASES
    from benchmarks.sanitizer_child import launchable_kernels

    if not torch.cuda.is_available():
        print("sanitize: no CUDA device; the sanitizer needs one", file=sys.stderr)
        return 2
    if unknown := [op for op in options.ops if op not in CASES]:
        parser.error(f"no case {', '.join(unknown)}; expected some of {', '.join(CASES)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for tool in tools:
            for fault in FAULTS[tool]:
                if not check(sanitizer, tool, fault, folder, options.limit).found:
                    print(f"sanitize: {tool} does not find the fault {fault} planted for it here:", file=sys.stderr)
                    print(tail(folder / f"{fault}-{tool}.log", 30), file=sys.stderr)
                    return 2
        kernels = set() if options.ops else launchable_kernels()
        result: dict[str, Any] = {
            "machine": timing.machine(), "sanitizer": version_of(sanitizer), "tools": tools, "never_launched": [],
            "rows": [],
        }  # fmt: skip
        path = result_file.path_of(options.out, "sanitizer", torch.cuda.get_device_name())
        rows: list[Row] = []
        # Written after each op, so that a run cut short from outside keeps what it knew.
        for of_op in run_all(sanitizer, options.ops or list(CASES), tools, folder, options.limit, options.jobs):
            rows += of_op
            missing = never_launched(rows, kernels)
            result |= {"never_launched": missing, "rows": [asdict(row) for row in rows]}
            result_file.write(path, result)
    print(path)
    for kernel in missing:
        print(f"sanitize: {kernel} is launched by no case", file=sys.stderr)
    return 0 if all(row.clean for row in rows) and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
