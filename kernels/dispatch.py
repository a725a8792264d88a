"""The only place that picks between a reference and its Triton kernel, one function per op.

Every call tells `record` what was picked and why; the engine turns that into a `route` event. Kernel modules are
imported only on the branch that runs them, so a machine without triton never loads it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from kernels import experts_ref as experts_reference
from kernels import index_page_ref
from kernels.errors import DeviceError
from kernels.nvfp4_layout import HopperExperts, Nvfp4Experts

Implementation = Literal["reference", "triton"]
Requested = Literal["auto", "reference", "triton"]
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was picked for one call of an op; `file` is relative to the folder that holds `kernels/`."""

    op: str
    implementation: Implementation
    requested: Requested
    reason: str
    file: str
    line: int


Record = Callable[[Choice], None]


def index_scores(
    q_BTHD: Tensor,
    pages: Tensor,
    block_table_BP: Tensor,
    num_keys: int,
    weights_BTH: Tensor,
    scale: float,
    *,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """Index scores fp32 [B, T, num_keys] of paged keys; see `index_page_ref.index_scores_ref`."""
    implementation, reason = pick("index_scores", q_BTHD, requested)
    if implementation == "triton":
        from kernels.index import index_scores as run
    else:
        run = index_page_ref.index_scores_ref
    _tell(record, "index_scores", implementation, requested, reason, run)
    return run(q_BTHD, pages, block_table_BP, num_keys, weights_BTH, scale)


def experts(
    x_TD: Tensor,
    w13: Tensor,
    w2: Tensor,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    swiglu_limit: float | None,
    *,
    quantise: Callable[[Tensor], Tensor] | None = None,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """Routed experts over plain weights, fp32 [T, D]; see `experts_ref.experts_ref`."""
    run = experts_reference.experts_ref
    _tell(record, "experts", "reference", requested, "plain weights have no kernel of their own", run)
    return run(x_TD, w13, w2, topk_ids_TK, topk_weights_TK, swiglu_limit, quantise)


def nvfp4_experts(
    x_TD: Tensor,
    weights: Nvfp4Experts,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    swiglu_limit: float | None,
    *,
    factor: float | None = None,
    hopper: HopperExperts | None = None,
    requested: Requested = "auto",
    record: Record | None = None,
) -> Tensor:
    """Routed experts from packed NVFP4 weights, [T, D]: fp32 by the reference, the tokens' dtype by a kernel.

    `hopper` are the same weights repacked; bf16 tokens on sm_90 use them where they are given. `factor` is the routed
    scaling factor where it belongs to the kernel.
    """
    implementation, reason = pick("nvfp4_experts", x_TD, requested)
    packed: Nvfp4Experts | HopperExperts = weights
    if implementation == "reference":
        run: Callable[..., Tensor] = experts_reference.nvfp4_experts_ref
    elif hopper is not None and x_TD.dtype == torch.bfloat16 and torch.cuda.get_device_capability(x_TD.device)[0] == 9:
        from kernels.experts_hopper import experts_hopper

        run, packed, reason = experts_hopper, hopper, f"{reason}, sm_90 and repacked weights"
    else:
        from kernels.experts import experts as run
    _tell(record, "nvfp4_experts", implementation, requested, reason, run)
    return run(x_TD, packed, topk_ids_TK, topk_weights_TK, swiglu_limit, factor=factor)


def pick(op: str, tensor: Tensor, requested: Requested) -> tuple[Implementation, str]:
    """The implementation of `op` for tensors that lie where `tensor` lies, and why.

    Raises:
        DeviceError: triton was asked for and cannot run there.
    """
    if requested == "reference":
        return "reference", "asked for"
    obstacle = _obstacle(tensor.device)
    if obstacle is None:
        return "triton", "asked for" if requested == "triton" else f"tensors on {tensor.device}"
    if requested == "triton":
        raise DeviceError(
            f"{op}: triton was asked for, but {obstacle}", hint="ask for `auto` or `reference`, or use a CUDA device"
        )
    return "reference", obstacle


def _obstacle(device: torch.device) -> str | None:
    """Why triton cannot run there, or None."""
    if device.type != "cuda":
        return f"tensors on {device.type}, not on a GPU"
    if not _has_triton():
        return "triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    return None if major >= 8 else f"the GPU is sm_{major}{minor}, expected sm_80 or newer"


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _tell(
    record: Record | None,
    op: str,
    implementation: Implementation,
    requested: Requested,
    reason: str,
    function: Callable[..., Any],
) -> None:
    if record is None:
        return
    code = function.__code__
    file = Path(code.co_filename).resolve()
    record(
        Choice(
            op=op,
            implementation=implementation,
            requested=requested,
            reason=reason,
            file=file.relative_to(ROOT).as_posix(),
            line=code.co_firstlineno,
        )
    )
