"""How many bits a tensor core keeps of a sum of e4m3 products: `python -m benchmarks.fp8_sums`, on a GPU from sm_89 on.

Prints the error of one product of tiles against fp64, for Gaussian and for positive numbers, in units of the largest
product of each sum (rounded down to a power of two), and which small product still counts beside one of 2^16.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 64
# From where a single product beside 2^16 is looked for.
EXPONENTS = range(8, -4, -1)


@triton.jit
def _product(a, b, out, K: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    m = tl.arange(0, SIZE)
    k = tl.arange(0, K)
    a_MK = tl.load(a + m[:, None] * K + k[None, :])
    b_NK = tl.load(b + m[:, None] * K + k[None, :])
    tl.store(out + m[:, None] * SIZE + m[None, :], tl.dot(a_MK, tl.trans(b_NK), out_dtype=tl.float32))


def product(a_MK: Tensor, b_NK: Tensor) -> Tensor:
    """The products fp32 [64, 64] of two tiles [64, K] of e4m3."""
    out = torch.empty(SIZE, SIZE, device="cuda")
    _product[(1,)](a_MK.cuda(), b_NK.cuda(), out, K=a_MK.shape[1], SIZE=SIZE, num_warps=4)
    return out.cpu()


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    for num_products in (32, 128):
        for name, sign in (("Gaussian", torch.sign), ("positive", torch.ones_like)):
            a, b = (
                (draw.abs() * sign(draw) * 150).clamp(-448, 448).to(torch.float8_e4m3fn)
                for draw in torch.randn(2, SIZE, num_products, generator=generator)
            )
            terms = a.double()[:, None] * b.double()[None]
            error = product(a, b).double() - terms.sum(-1)
            unit = torch.exp2(torch.floor(torch.log2(terms.abs().amax(-1))))
            relative = float(error.norm() / terms.sum(-1).norm())
            off = error / unit
            print(
                f"{num_products:3} {name}: mean {off.mean():+.1e}, spread {off.std():.1e}; relative l2 {relative:.1e}"
            )
    kept = [exponent for exponent in EXPONENTS if _counts_beside_the_largest(exponent)]
    print(f"beside 2^16 the smallest product that counts is 2^{min(kept, default=16)}")


def _counts_beside_the_largest(exponent: int) -> bool:
    a, b = torch.zeros(2, SIZE, 32)
    a[:, 0] = b[:, 0] = 256.0
    half = exponent // 2
    a[:, 1], b[:, 1] = 2.0**half, 2.0 ** (exponent - half)
    return float(product(a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn))[0, 0]) != 65536.0


if __name__ == "__main__":
    main()
