"""What the launchers of the expert kernels share: the checks before a launch, and what a GEMM's launch says of itself.

Contract: an expert id of no expert adds nothing (the kernels mask it). With KERNELS_DEBUG=1 an id that is neither an
expert nor -1 is refused instead, which waits for the GPU and so cannot be captured in a CUDA graph.
Live when: any of the expert kernels is launched.
"""

# T tokens, K picks per token, D model dim.

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.checks import require, require_device
from kernels.choice import DEBUG_VARIABLE
from kernels.errors import DtypeError, ShapeError


def check_routing(
    x_TD: Tensor,
    weight: Tensor,
    topk_ids_TK: Tensor,
    topk_weights_TK: Tensor,
    *,
    dim: int,
    num_experts: int,
    dtypes: Sequence[torch.dtype] = (torch.bfloat16, torch.float32),
) -> None:
    """Tokens [T, dim] of one of `dtypes`, int32 ids and fp32 weights [T, K], all beside `weight` on one GPU.

    Raises:
        DtypeError, ShapeError, DeviceError: otherwise.
    """
    require(x_TD.ndim == 2, ShapeError, "tokens", tuple(x_TD.shape), "[T, D]")
    num_tokens, width = x_TD.shape
    require_device("experts", x_TD, weight, topk_ids_TK, topk_weights_TK)
    require(x_TD.dtype in dtypes, DtypeError, "tokens", x_TD.dtype, " or ".join(map(str, dtypes)))
    require(topk_ids_TK.dtype == torch.int32, DtypeError, "expert ids", topk_ids_TK.dtype, "int32")
    require(topk_weights_TK.dtype == torch.float32, DtypeError, "routing weights", topk_weights_TK.dtype, "float32")
    require(width == dim, ShapeError, "token width", width, dim)
    require(
        topk_ids_TK.ndim == 2 and topk_ids_TK.shape == topk_weights_TK.shape and len(topk_ids_TK) == num_tokens,
        ShapeError,
        "routing",
        (tuple(topk_ids_TK.shape), tuple(topk_weights_TK.shape)),
        f"two of [{num_tokens}, K]",
    )
    if os.environ.get(DEBUG_VARIABLE) == "1":
        strays = topk_ids_TK[(topk_ids_TK < -1) | (topk_ids_TK >= num_experts)]
        require(strays.numel() == 0, ShapeError, "expert ids", strays[:4].tolist(), f"-1 or 0 to {num_experts - 1}")


def gemm_launch(
    name: str, args: Mapping[str, Any], weights: Sequence[str], *, rows: int, columns: int
) -> dict[str, str | int]:
    """Name, bytes and flops of one GEMM over the routed rows, for a profiler.

    A launch does not know where its rows went: bytes count the weights of as many experts as the rows can reach, and
    flops count every row, also those of no expert.
    """
    num_rows, num_experts = args["sorted_rows"].numel(), args[weights[0]].shape[0]
    weight_bytes = sum(args[weight].nbytes for weight in weights) * min(num_rows, num_experts) // num_experts
    return {
        "name": f"{name}_{'gate_up' if args['GATE_UP'] else 'down'}",
        "bytes": weight_bytes + args["x"].nbytes + args["out"].nbytes,
        "flops": 2 * num_rows * rows * columns,
    }
