"""What can be said of the Hopper kernel without a GPU: it compiles for sm_90 and keeps its promises on registers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILE = """
import re, subprocess, sys
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from kernels.experts_hopper import choose_tile
from kernels.experts_hopper_gemm import expert_gemm

rows, gate_up, folder = int(sys.argv[1]), sys.argv[2] == "True", Path(sys.argv[3])
tile = choose_tile(rows, 256)
constants = dict(TOPK=6, E=256, GATE_UP=gate_up, ONE_TOKEN=False, HAS_LIMIT=True, BLOCK_T=tile.block_t,
                 TAIL_T=tile.tail_t, NUM_WARPS=tile.num_warps, X_COLUMNS=tile.x_columns, STAGES=tile.stages,
                 PREFETCH_CHUNK=tile.prefetch_chunk, OVERLAP=tile.overlap)
types = {"x": "*bf16", "words": "*i32", "scales": "*i32", "global_scale_E": "*fp32", "out": "*bf16",
         "swiglu_limit": "fp32"}
names = expert_gemm.arg_names
signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
for name in ("topk_ids", "sorted_rows", "tile_expert", "tile_start", "tile_end"):
    signature[name] = "*i32"
aligned = [i for i, name in enumerate(names) if signature[name].startswith("*") or name in ("out_stride", "out_rows")]
source = GluonASTSource(expert_gemm, signature=signature,
                        constexprs={(names.index(name),): value for name, value in constants.items()},
                        attrs={(i,): [["tt.divisibility", 16]] for i in aligned})
options = {"num_warps": tile.num_warps}
if tile.max_registers:
    options["maxnreg"] = tile.max_registers
kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
cubin = folder / "kernel.cubin"
cubin.write_bytes(kernel.asm["cubin"])
tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
usage = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True)
text = usage.stdout + usage.stderr
print(re.search(r"REG:(\\d+)", text)[1], re.search(r"STACK:(\\d+)", text)[1], kernel.asm["ptx"].count("mul.rn.bf16x2"))
"""


@pytest.mark.parametrize(("rows", "gate_up"), [(48, True), (24576, False)], ids=["decode", "prefill"])
def test_two_programs_or_more_fit_a_multiprocessor_without_spilling(rows: int, gate_up: bool, tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache")}

    result = subprocess.run(
        [sys.executable, "-c", COMPILE, str(rows), str(gate_up), str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert result.returncode == 0, result.stderr[-2000:]
    registers, stack_bytes, packed_multiplies = map(int, result.stdout.split())
    assert registers <= 128
    assert stack_bytes == 0
    # Four words of four pairs in each of four column groups, once more for the narrower product where there is one.
    assert packed_multiplies == (64 if rows == 48 else 128)
