"""How close is close: one table of tolerances with a reason each, and poisoned outputs.

Errors are relative l2 norms, ||out - ref|| / ||ref||, computed in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

# name: (largest relative l2 error, why)
TOLERANCES: dict[str, tuple[float, str]] = {
    "fp32": (2e-6, "the same fp32 sum in another order"),
    "fp32_merge": (5e-6, "fp32 with one exp and log more per split"),
    "fp32_tensor_core": (5e-6, "exact products in fp32 sums that a tensor core cuts off instead of rounding"),
    "tf32": (8e-4, "tf32 operands carry 11 bits"),
    "bf16_dot": (3e-3, "bf16 operands with an exact block scale, fp32 accumulation, one bf16 rounding of the output"),
    "bf16_layer": (4.5e-3, "two bf16 GEMMs, a bf16 intermediate and a bf16 output"),
    "e4m3_step": (2e-3, "fp32 sums of e4m3 rows; a hidden value between two e4m3 numbers may go to the other one"),
    "fp8_layer": (1.2e-2, "the same with the tensor core's sums, which keep fewer bits: more values go there"),
    "nvfp4": (0.11, "16 code values a block; Gaussian weights lose 9.5 %"),
    "fp8_block": (0.04, "e4m3 has 4 significant bits; Gaussian weights lose 2.6 %"),
    "fp8_key": (0.04, "e4m3 with one scale a key"),
    "bf16_key": (4e-3, "8 significant bits"),
}


def relative_error(out: Tensor, ref: Tensor) -> float:
    """||out - ref|| / ||ref|| in float64; NaN in `out` gives NaN, which passes no tolerance."""
    out, ref = out.detach().double().cpu(), ref.detach().double().cpu()
    assert out.shape == ref.shape, f"shape {tuple(out.shape)}, expected {tuple(ref.shape)}"
    return float((out - ref).norm() / ref.norm().clamp_min(1e-300))


def assert_close(out: Tensor, ref: Tensor, tolerance: str) -> None:
    """Fails, naming the tolerance and its reason, when the relative l2 error is above it or is NaN."""
    limit, reason = TOLERANCES[tolerance]
    error = relative_error(out, ref)
    assert error <= limit, f"relative l2 error {error:.3e} above {limit:.1e} ({tolerance}: {reason})"


def poisoned(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    """A tensor of NaN (bytes 0xFF for integers), so that an element nobody wrote cannot pass."""
    if dtype.is_floating_point:
        return torch.full(shape, float("nan"), dtype=torch.float32, device=device).to(dtype)
    return torch.full(shape, -1 if dtype != torch.uint8 else 255, dtype=dtype, device=device)
