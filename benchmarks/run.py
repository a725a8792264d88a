"""Time kernels on a GPU, each behind its green tests: `./run bench experts --shapes flash,v3 --tokens 1,8,64`.

`all` times every op of the registry. An op whose GPU tests are red, or of which none ran, gets no time, and neither
does a row whose error is above the op's limit. Each op is timed in a process of its own, after the tests of all have
ended, and writes `benchmarks/results/<date>-<op>-<gpu>.json` after each shape.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import gpu_tests, result_file
from benchmarks.children import kill_tree
from benchmarks.kernels import OPS, load, patterns_of

TOKENS = "1,8,64,512,4096,16384"
QUICK_TOKENS = "1,64,4096"
OP_LIMIT_S = 300.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="+", choices=[*OPS, "all"], metavar="OP", help=f"{', '.join(OPS)} or all")
    parser.add_argument("--shapes", help="names of the op's shapes, by commas; all of them without it")
    parser.add_argument("--tokens", help=f"of the experts; {TOKENS} without it")
    parser.add_argument("--skewed", action="store_true", help="a few experts get most tokens")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--quick", action="store_true", help=f"the first shape only, and {QUICK_TOKENS} tokens")
    parser.add_argument("--limit", type=float, default=OP_LIMIT_S, help="seconds for timing one op")
    parser.add_argument("--out", type=Path, default=result_file.RESULTS, help="folder of the result files")
    options = parser.parse_args(arguments)
    ops = list(OPS) if "all" in options.ops else list(dict.fromkeys(options.ops))

    import torch

    if not torch.cuda.is_available():
        print("bench: no CUDA device; the benchmarks need one", file=sys.stderr)
        return 1
    try:
        plans = {op: plan(op, options, alone=len(ops) == 1) for op in ops}
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    untimed = red(ops)
    for op in ops:
        if op not in untimed and (obstacle := _in_a_child(op, *plans[op], options.out.resolve(), options.limit)):
            untimed[op] = obstacle
    for op, reason in untimed.items():
        print(f"bench: {op}: {reason}", file=sys.stderr)
    return 1 if untimed else 0


def plan(op: str, options: argparse.Namespace, *, alone: bool) -> tuple[list[str], dict[str, Any]]:
    """The shapes to time and what else the op's `run` takes.

    Raises:
        ValueError: a shape that the op does not have, or an option that one op alone was asked for and does not take.
    """
    module = load(op)
    shapes = options.shapes.split(",") if options.shapes else list(module.SHAPES)[: 1 if options.quick else None]
    if unknown := [shape for shape in shapes if shape not in module.SHAPES]:
        raise ValueError(f"{op} has no shape {', '.join(unknown)}; expected some of {', '.join(module.SHAPES)}")
    tokens = options.tokens or (QUICK_TOKENS if options.quick else TOKENS)
    given = {
        "token_counts": [int(count) for count in tokens.split(",")],
        "peers": not options.no_peers,
        "skewed": options.skewed,
    }
    takes = inspect.signature(module.run).parameters
    asked = {"token_counts": options.tokens, "peers": options.no_peers, "skewed": options.skewed}
    if alone and (ignored := [name for name, value in asked.items() if value and name not in takes]):
        raise ValueError(f"{op} takes no {', '.join(ignored)}")
    return shapes, {name: value for name, value in given.items() if name in takes}


def red(ops: Sequence[str]) -> dict[str, str]:
    """Run the GPU tests of the ops, several files at once: for each op that is not green, why."""
    files = {op: gpu_tests.files_with_gpu_tests(patterns_of(op)) for op in ops}
    with tempfile.TemporaryDirectory() as folder:
        every = sorted({file for of_op in files.values() for file in of_op})
        outcomes = {outcome.file: outcome for outcome in gpu_tests.run_files(every, Path(folder))}
    reasons = {}
    for op, of_op in files.items():
        bad = [f"{file.name}: {outcomes[file].verdict}" for file in of_op if not outcomes[file].green]
        if bad:
            reasons[op] = f"not timed, GPU tests are red: {'; '.join(bad)}"
        elif not any(outcomes[file].passed for file in of_op):
            reasons[op] = "not timed, no GPU test of it ran"
    return reasons


def _in_a_child(op: str, shapes: list[str], arguments: dict[str, Any], out: Path, limit_s: float) -> str | None:
    """Time one op in a fresh process; what went wrong, or None."""
    # An illegal access or a full card of one op must not reach the next.
    child = multiprocessing.get_context("spawn").Process(target=measure, args=(op, shapes, arguments, out))
    child.start()
    try:
        child.join(limit_s)
    finally:
        if stopped := child.is_alive():
            assert child.pid is not None
            kill_tree(child.pid)
    child.join()
    if stopped:
        return f"over its limit of {limit_s:.0f} s; the shapes before are in its file"
    return None if child.exitcode == 0 else f"failed, exit {child.exitcode}; the lines above say why"


def measure(op: str, shapes: list[str], arguments: dict[str, Any], out: Path) -> None:
    """Time one op and write its file after each shape; exits 1 when it breaks off or a row is not as it must be."""
    import torch

    from benchmarks import timing

    module = load(op)
    result: dict[str, Any] = {"machine": timing.machine(), "ceilings": timing.ceilings(), "rows": []}
    if isinstance(limit := getattr(module, "ERROR_LIMIT", None), float):
        result["error_limit"] = limit
    print(json.dumps({"op": op, **result}, indent=1), flush=True)
    name = f"{op}-skewed" if arguments.get("skewed") else op
    path = result_file.path_of(out, name, torch.cuda.get_device_name())
    for shape in shapes:
        try:
            result["rows"] += module.run([shape], **arguments)
        except Exception as error:
            traceback.print_exc()
            result["stopped"] = f"{shape}: {type(error).__name__}: {error}"
            break
        finally:
            result["machine"]["clocks_after"] = timing.clocks()
            result_file.write(path, result)
    print(path, flush=True)
    found = result_file.problems(result)
    for problem in found:
        print(f"bench: {path.name}: {problem}", file=sys.stderr)
    if found or "stopped" in result:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
