"""One case of the sanitizer in this process: `python -m benchmarks.sanitizer_child CASE` names the kernels it launched.

With `--each-thread-arrives` its kernels are rewritten so (`benchmarks/sanitizer_arrivals.py`), and it says how many
arrivals there were. `FAULTS` are cases with a fault that a tool must find, or else its silence about the others means
nothing; `roles` is the last of them without its fault.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from benchmarks import warp_roles
from benchmarks.children import ROOT
from benchmarks.sanitizer_arrivals import rewriting
from benchmarks.sanitizer_cases import CASES, Case


@triton.jit
def _beyond_the_end(out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(out + tl.arange(0, BLOCK), 1.0)


@triton.jit
def _unguarded_exchange(out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    # Thread t writes word t of shared memory and reads word 127 - t, another warp's, with no barrier between.
    word = tl.inline_asm_elementwise(
        """{
        .shared .align 4 .b32 planted[128];
        .reg .b32 base, own, other, thread;
        mov.u32 thread, %tid.x;
        mov.u32 base, planted;
        shl.b32 own, thread, 2;
        sub.u32 other, 508, own;
        add.u32 own, own, base;
        add.u32 other, other, base;
        st.shared.b32 [own], $1;
        ld.shared.b32 $0, [other];
        }""",
        "=r,r",
        [tl.arange(0, BLOCK)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.store(out + tl.arange(0, BLOCK), word)


def write_beyond_the_end(device: str) -> None:
    _beyond_the_end[(1,)](torch.empty(100, device=device), BLOCK=128, num_warps=4)


def exchange_unguarded(device: str) -> None:
    _unguarded_exchange[(1,)](torch.empty(128, dtype=torch.int32, device=device), BLOCK=128, num_warps=4)


FAULTS: dict[str, Case] = {
    "beyond-the-end": write_beyond_the_end,
    "unguarded": exchange_unguarded,
    "unordered-roles": warp_roles.unordered,
}


def launchable_kernels() -> set[str]:
    """`module.function` of every kernel below kernels/ that some launcher there launches, read from the source."""
    kernels: set[str] = set()
    launched: set[str] = set()
    for path in sorted((ROOT / "kernels").glob("*.py")):
        module, names, given = f"kernels.{path.stem}", {}, set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(_is_jit(decorator) for decorator in node.decorator_list):
                names[node.name] = f"{module}.{node.name}"
            elif isinstance(node, ast.ImportFrom):
                names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "launch":
                given.add(ast.unparse(node.args[0]))
        kernels |= {name for name in names.values() if name.startswith(f"{module}.")}
        # `launch(kernel, grid)`, whether the kernel is this module's or another's.
        launched |= {names[name] for name in given & names.keys()}
    return kernels & launched


def _is_jit(decorator: ast.expr) -> bool:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(function, ast.Attribute) and function.attr == "jit"


@contextmanager
def recorded() -> Iterator[set[str]]:
    """The kernels launched inside, as `module.function`."""
    launched: set[str] = set()
    original = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        launched.add(f"{self.fn.__module__}.{self.fn.__name__}")
        return original(self, *args, **kwargs)

    JITFunction.run = run
    try:
        yield launched
    finally:
        JITFunction.run = original


def main() -> None:
    cases = {**CASES, **FAULTS, "roles": warp_roles.ordered}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sanitizer_child")
    parser.add_argument("case", choices=sorted(cases))
    parser.add_argument("--each-thread-arrives", action="store_true", help="as racecheck needs it")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device; every case needs one")
    with ExitStack() as stack:
        counts = stack.enter_context(rewriting()) if options.each_thread_arrives else []
        launched = stack.enter_context(recorded())
        cases[options.case]("cuda")
        torch.cuda.synchronize()
    print("launched: " + json.dumps(sorted(launched)))
    print(f"rewritten: {sum(counts)}")


if __name__ == "__main__":
    main()
