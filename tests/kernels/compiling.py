"""Compiles what a launcher would launch on an sm_90, on a machine that has no GPU.

Contract: `compiled(code)` runs the code in a process of its own. There every launch of a Triton or Gluon kernel
compiles for sm_90 with the launcher's own arguments and constants instead of running, its metadata function is called,
and tensors on the CPU pass for tensors on a GPU; what kernels would write stays as it was allocated. ptxas reports
registers and spills.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One launch: what the compiler made of it, and what it says of itself."""

    name: str
    registers: int
    stack_bytes: int  # spilled registers lie there
    shared_bytes: int
    ptx: str
    launch: dict[str, float | str]  # name, bytes and flops, as a profiler is told


def compiled(code: str, folder: Path, timeout_s: float = 240.0) -> list[Compiled]:
    """The launches of `code`, in order; a compiler's error fails with its last lines."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiling", str(folder / "launches.jsonl")],
        input=code,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    lines = (folder / "launches.jsonl").read_text(encoding="utf-8").splitlines()
    return [Compiled(**json.loads(line)) for line in lines]


def main(code: str, out: Path) -> None:
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    import kernels.checks

    class Sm90:
        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

    tools = Path(triton.__file__).parent / "backends/nvidia/bin"

    def launches(self, grid):  # type: ignore[no-untyped-def]
        def launch(*args, **kwargs):  # type: ignore[no-untyped-def]
            kernel = self.run(*args, grid=grid, warmup=True, **kwargs)
            values = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
            said = {} if self.launch_metadata is None else self.launch_metadata(grid, kernel.metadata, values)
            with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
                cubin.write(kernel.asm["cubin"])
                cubin.flush()
                command = [tools / "cuobjdump", "-res-usage", cubin.name]
                usage = subprocess.run(command, capture_output=True, text=True, check=True)
            found = {key: int(n) for key, n in re.findall(r"(REG|STACK):(\d+)", usage.stdout + usage.stderr)}
            row = {"name": self.__name__, "registers": found["REG"], "stack_bytes": found["STACK"],
                   "shared_bytes": kernel.metadata.shared, "ptx": kernel.asm["ptx"], "launch": said}  # fmt: skip
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

        return launch

    driver.set_active(Sm90())  # type: ignore[arg-type]
    JITFunction.__getitem__ = launches  # type: ignore[method-assign]
    kernels.checks.require_device = lambda op, *tensors: None
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    out.touch()
    exec(compile(code, "<launches>", "exec"), {"torch": torch})


if __name__ == "__main__":
    main(sys.stdin.read(), Path(sys.argv[1]))
