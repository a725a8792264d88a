"""The same layer by others: torch's bf16 grouped GEMM, and humming-kernels where it is installed.

Their sort is made outside the timed region, which favours them; activation and sum are two small kernels of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from kernels import nvfp4_ref
from kernels.combine import combine
from kernels.nvfp4_layout import Nvfp4Experts

Layer = Callable[[], Tensor]


class Peer(Protocol):
    name: str

    def prepare(self, x: Tensor, ids: Tensor, gates: Tensor, limit: float) -> Layer: ...


@triton.jit
def _swiglu(gate_up, out, hidden, limit, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = column < hidden
    gate = tl.load(gate_up + row * 2 * hidden + column, mask=real).to(tl.float32)
    up = tl.load(gate_up + row * 2 * hidden + hidden + column, mask=real).to(tl.float32)
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    tl.store(out + row * hidden + column, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), mask=real)


def swiglu(gate_up: Tensor, limit: float) -> Tensor:
    rows, double = gate_up.shape
    out = torch.empty(rows, double // 2, dtype=torch.bfloat16, device=gate_up.device)
    _swiglu[(rows, triton.cdiv(double // 2, 1024))](gate_up, out, double // 2, limit, BLOCK=1024)
    return out


class TorchGrouped:
    """bf16 weights w13 [E, 2I, D] and w2 [E, D, I] through torch's grouped GEMM."""

    name = "torch bf16 grouped_mm"

    def __init__(self, w13: Tensor, w2: Tensor) -> None:
        self.w13, self.w2 = w13.transpose(1, 2), w2.transpose(1, 2)

    @classmethod
    def rounded(cls, weights: Nvfp4Experts) -> TorchGrouped:
        """From dequantised weights, rounded to bf16 expert by expert."""

        def decoded(codes: Tensor, scale: Tensor, global_scale: Tensor) -> Tensor:
            return torch.stack(
                [nvfp4_ref.decode(codes[e], scale[e], global_scale[e]).bfloat16() for e in range(len(codes))]
            )

        return cls(
            decoded(weights.w13_codes, weights.w13_scale, weights.w13_global),
            decoded(weights.w2_codes, weights.w2_scale, weights.w2_global),
        )

    def prepare(self, x: Tensor, ids: Tensor, gates: Tensor, limit: float) -> Layer:
        flat, num_experts = ids.flatten().long(), len(self.w2)
        order = torch.argsort(flat, stable=True)
        ends = torch.bincount(flat, minlength=num_experts).cumsum(0).int()
        token, place = order // ids.shape[1], torch.argsort(order)
        out = torch.empty_like(x)
        grouped_mm = getattr(F, "grouped_mm", None) or torch._grouped_mm

        def layer() -> Tensor:
            hidden = swiglu(grouped_mm(x.index_select(0, token), self.w13, offs=ends), limit)
            rows = grouped_mm(hidden, self.w2, offs=ends).index_select(0, place)
            return combine(rows, ids, gates, num_experts, None, out)

        return layer


class Humming:
    """humming-kernels: NVFP4 weights of ModelOpt's layout, its own tile choice, indexed GEMM."""

    name = "humming indexed"
    gemm_type = "indexed"

    def __init__(self, weights: Nvfp4Experts) -> None:
        self.num_experts = weights.num_experts
        self.w13 = self._layer(weights.w13_codes, weights.w13_scale, weights.w13_global)
        self.w2 = self._layer(weights.w2_codes, weights.w2_scale, weights.w2_global)

    def _layer(self, codes: Tensor, scale: Tensor, global_scale: Tensor) -> Any:
        from humming.layer import HummingLayer  # type: ignore[import-not-found]

        layer = HummingLayer(
            shape_n=codes.shape[1],
            shape_k=codes.shape[2] * 2,
            weight_config={"quant_method": "modelopt", "quant_algo": "nvfp4"},
            num_experts=self.num_experts,
            torch_dtype=torch.bfloat16,
        ).cuda()
        layer.load_from_tensors({"weight": codes, "weight_scale": scale, "weight_scale_2": global_scale})
        layer.transform()
        return layer

    def _tuned(self, layer: Any, rows: int, **fixed: Any) -> Callable[[Tensor], Tensor]:
        from humming.tune import get_heuristics_config  # type: ignore[import-not-found]

        tuning = get_heuristics_config(layer.humming_config, shape_m=rows, gemm_type=self.gemm_type)
        if "flat_ids" in fixed:
            fixed |= self._blocks(fixed.pop("flat_ids"), tuning["block_shape"][0])
        out = torch.empty(rows, layer.shape_n, dtype=torch.bfloat16, device="cuda")
        config = {"gemm_type": self.gemm_type}
        return lambda inputs: layer(inputs, outputs=out, compute_config=config, tuning_config=tuning, **fixed)

    def _blocks(self, flat: Tensor, block: int) -> dict[str, Tensor]:
        """Flat rows by expert, each expert padded to whole blocks."""
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=self.num_experts)
        padded = (counts + block - 1) // block * block
        expert = flat[order].long()
        rank = torch.arange(len(flat), device=flat.device) - (counts.cumsum(0) - counts)[expert]
        sorted_ids = torch.full((int(padded.sum()),), len(flat), dtype=torch.int32, device=flat.device)
        sorted_ids[(padded.cumsum(0) - padded)[expert] + rank] = order.int()
        experts = torch.arange(self.num_experts, device=flat.device)
        return {
            "sorted_ids": sorted_ids,
            "expert_ids": torch.repeat_interleave(experts, padded // block).int(),
            "num_tokens_padded": torch.tensor(len(sorted_ids), dtype=torch.int32, device=flat.device),
        }

    def prepare(self, x: Tensor, ids: Tensor, gates: Tensor, limit: float) -> Layer:
        flat = ids.flatten()
        first = self._tuned(self.w13, len(flat), flat_ids=flat, top_k=ids.shape[1])
        second = self._tuned(self.w2, len(flat), flat_ids=flat, top_k=1)
        out = torch.empty_like(x)
        return lambda: combine(second(swiglu(first(x), limit)), ids, gates, self.num_experts, None, out)


class HummingGrouped(Humming):
    """The same with rows gathered by expert first: its better path for many tokens."""

    name = "humming grouped"
    gemm_type = "grouped_contiguous"

    def __init__(self, indexed: Humming) -> None:
        self.num_experts, self.w13, self.w2 = indexed.num_experts, indexed.w13, indexed.w2

    def prepare(self, x: Tensor, ids: Tensor, gates: Tensor, limit: float) -> Layer:
        flat = ids.flatten()
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=self.num_experts)
        starts = F.pad(counts.cumsum(0), (1, 0)).long()
        first = self._tuned(self.w13, len(flat), expert_layout=starts)
        second = self._tuned(self.w2, len(flat), expert_layout=starts)
        token, place, out = order // ids.shape[1], torch.argsort(order), torch.empty_like(x)

        def layer() -> Tensor:
            rows = second(swiglu(first(x.index_select(0, token)), limit)).index_select(0, place)
            return combine(rows, ids, gates, self.num_experts, None, out)

        return layer


def all_peers(weights: Nvfp4Experts) -> list[Peer]:
    """Every peer that can run here."""
    peers: list[Peer] = [TorchGrouped.rounded(weights)]
    if find_spec("humming") is not None:
        indexed = Humming(weights)
        peers += [indexed, HummingGrouped(indexed)]
    return peers
