"""The ops that can be timed: module `benchmarks.kernels.<op>` with SHAPES and `run(shape_names, ...) -> rows`.

`run` may also take `token_counts`, `peers` and `skewed`; the options of `benchmarks.run` go to whoever takes them. A
row holds op, shape, us (None where the answer was wrong), floor_us, error, peers {name: us}, and what else tells it
from the next; `benchmarks.result_file` says the rest.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

# op: the files below tests/kernels whose GPU tests must be green before it is timed, without `test_` and `.py`
OPS: dict[str, tuple[str, ...]] = {
    "nvfp4": ("nvfp4*",),
    "route": ("route*",),
    "hyper": ("hyper*",),
    "swiglu": ("swiglu*",),
    "norm": ("norm*",),
    "index": ("index*",),
    "sparse_attention": ("sparse_attention*",),
    "experts_bf16": ("experts*", "align"),
    "experts_fp8": ("experts*", "align", "fp8*"),
    "experts": ("experts*", "align"),
}


def load(op: str) -> ModuleType:
    """The op's module. It imports torch and triton, and leaves the GPU alone until `run` is called."""
    return import_module(f"benchmarks.kernels.{op}")


def patterns_of(op: str) -> list[str]:
    """The op's test files as patterns below tests/."""
    return [f"kernels/test_{name}.py" for name in OPS[op]]
