"""Packed experts in the form that the Triton kernels take, made once at load: what a runner keeps where kernels run.

Contract: NVFP4 for bf16 tokens on sm_90 is repacked for the tensor core's registers and kept in that form alone; NVFP4
for others, FP8 blocks and bf16 weights are kept as the method has them. Nothing is undone per call. `numbers` gives
back what the experts stand for, whatever the form.
"""

# E experts, I expert hidden, D model dim.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels import dispatch, fp8_block_ref, nvfp4_ref
from kernels.choice import is_hopper
from kernels.fp8_block_ref import Fp8Experts
from kernels.nvfp4_layout import HopperExperts, Nvfp4Experts, repack
from kernels.nvfp4_unpack import unpack

if TYPE_CHECKING:
    from engine.methods.base import MoEMethod, Packed
    from engine.settings import Kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One of the forms; `layout` and `scales` are what the runner says of it."""

    layout: str
    scales: str
    nvfp4: Nvfp4Experts | None = None
    hopper: HopperExperts | None = None
    fp8: Fp8Experts | None = None
    plain: tuple[Tensor, Tensor] | None = None

    def numbers(self) -> tuple[Tensor, Tensor]:
        """fp32 w13 [E, 2I, D], gate rows first, and w2 [E, D, I]."""
        if self.plain is not None:
            return self.plain[0].float(), self.plain[1].float()
        if self.fp8 is not None:
            return (
                fp8_block_ref.decode(self.fp8.w13, self.fp8.w13_scale),
                fp8_block_ref.decode(self.fp8.w2, self.fp8.w2_scale),
            )
        packed = self.nvfp4
        if packed is None:
            assert self.hopper is not None
            packed = unpack(self.hopper)
        return (
            nvfp4_ref.decode(packed.w13_codes, packed.w13_scale, packed.w13_global),
            nvfp4_ref.decode(packed.w2_codes, packed.w2_scale, packed.w2_global),
        )


def kept_for_kernels(method: MoEMethod, w13: Packed, w2: Packed, dtype: torch.dtype, requested: Kernels) -> Kept | None:
    """What to keep for tokens of this type where a kernel will run; None where it will not, or has no such form."""
    if dispatch.pick("experts", w13.codes, requested)[0] == "reference":
        return None
    nvfp4 = method.nvfp4_experts(w13, w2)
    if nvfp4 is not None and dtype == torch.bfloat16 and is_hopper(w13.codes.device):
        return Kept(
            layout="tiles of 64 x 64 in the order of the tensor core's registers, repacked at load",
            scales="beside the codes they scale",
            hopper=repack(nvfp4),
        )
    if nvfp4 is not None:
        return Kept(layout="rows as loaded", scales="linear", nvfp4=nvfp4)
    fp8 = method.fp8_experts(w13, w2)
    if fp8 is not None:
        return Kept(layout="rows as loaded", scales="128 x 128 blocks", fp8=fp8)
    if method.weight_bits == 16 and dtype == torch.bfloat16:
        plain = (w13.codes.to(dtype), w2.codes.to(dtype))
        return Kept(layout="rows as loaded, in bfloat16", scales="none", plain=plain)
    return None
