"""Small launches of every kernel at the tiles that production uses, one function per op, for the sanitizer.

Contract: `CASES[op](device)` builds its inputs on the CPU and moves them, so that next to no kernel but ours runs, and
calls the launchers; answers are not looked at, tests do that. Sizes are awkward on purpose: nothing is a multiple of
its tile. A new op is one function and one line of `CASES`.
"""

# T tokens, K picks per token, E experts.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from kernels import nvfp4_ref
from kernels.nvfp4_layout import Nvfp4Experts, repack

Case = Callable[[str], Any]
LIMIT = 10.0
# Token counts that meet every tile which is ever chosen; a test holds them to it.
HOPPER_EXPERTS, HOPPER_TOPK, HOPPER_TOKENS = 9, 3, (1, 9, 35, 119, 150, 190, 401)
PLAIN_EXPERTS, PLAIN_TOPK, PLAIN_TOKENS = 5, 2, (3, 61, 301)
FLOATS = (torch.float32, torch.bfloat16)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _nvfp4(num_experts: int, dim: int, hidden: int) -> Nvfp4Experts:
    generator = _generator()
    w13 = nvfp4_ref.encode(torch.randn(num_experts, 2 * hidden, dim, generator=generator))
    w2 = nvfp4_ref.encode(torch.randn(num_experts, dim, hidden, generator=generator))
    names = ("w13_codes", "w13_scale", "w13_global", "w2_codes", "w2_scale", "w2_global")
    return Nvfp4Experts(**dict(zip(names, (*w13, *w2), strict=True)))


def _on(weights: Any, device: str) -> Any:
    """A frozen holder of tensors and numbers with its tensors on `device`."""
    parts = {field.name: getattr(weights, field.name) for field in fields(weights)}
    return replace(weights, **{name: part.to(device) for name, part in parts.items() if isinstance(part, Tensor)})


def _routed(num_tokens: int, dim: int, num_experts: int, topk: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """bf16 tokens, expert ids of which some are no expert, routing weights; the last expert stays without a token."""
    generator = _generator()
    gates, ids = torch.randn(num_tokens, num_experts - 1, generator=generator).topk(topk)
    ids[::5, 0], ids[1::7, 1] = -1, num_experts
    x = torch.randn(num_tokens, dim, generator=generator).bfloat16()
    return x.to(device), ids.int().to(device), gates.softmax(-1).to(device)


def experts_hopper(device: str) -> None:
    """Every tile of `choose_tile`, with tails and extra rows, and all tokens on one expert."""
    from kernels.experts_hopper import experts_hopper as run

    dim = 320
    weights = _on(repack(_nvfp4(HOPPER_EXPERTS, dim, 176)), device)
    for num_tokens in HOPPER_TOKENS:
        x, ids, gates = _routed(num_tokens, dim, HOPPER_EXPERTS, HOPPER_TOPK, device)
        run(x, weights, ids, gates, LIMIT)
    run(x, weights, torch.zeros_like(ids), gates, None, factor=2.5)


def experts(device: str) -> None:
    """The portable kernel with both of its token tiles."""
    from kernels.experts import experts as run

    weights = _on(_nvfp4(9, 80, 48), device)
    for num_tokens in (1, 37, 100):
        x, ids, gates = _routed(num_tokens, 80, 9, 3, device)
        run(x, weights, ids, gates, LIMIT)
    run(x.float(), weights, ids, gates, None)


def align(device: str) -> None:
    """Both ways to sort: comparing all rows, and counting first."""
    from kernels.align import align as run

    for num_tokens in (3, 341, 1001):
        ids = torch.randint(-1, 12, (num_tokens, 3), generator=_generator(), dtype=torch.int32)
        run(ids.to(device), 11, 16)


def index(device: str) -> None:
    """fp8 and bf16 pages, one query and several, in bf16 and in fp32."""
    from kernels import index_page_ref
    from kernels.index import index_scores

    generator, dim, num_keys, num_heads = _generator(), 128, 321, 64
    table = torch.arange(12, dtype=torch.int32).view(2, 6)
    for dtype in (torch.float8_e4m3fn, torch.bfloat16):
        pages = index_page_ref.empty_pages(12, dim, dtype)
        index_page_ref.write_keys(pages, torch.arange(12 * 64), torch.randn(12 * 64, dim, generator=generator))
        for num_queries in (1, 11):
            q = torch.randn(2, num_queries, num_heads, dim, generator=generator).to(device)
            weights = torch.rand(2, num_queries, num_heads, generator=generator).to(device)
            for queries in (q.bfloat16(), q):
                index_scores(queries, pages.to(device), table.to(device), num_keys, weights, dim**-0.5)


def index_select(device: str) -> None:
    """One chunk and several, decode and prefill, with fewer visible keys than picks."""
    from kernels.index_select import index_select as run

    for shape, topk in (((3, 1, 321), 64), ((2, 3, 1000), 512), ((2, 1, 20001), 512), ((1, 1, 20001), 2048)):
        scores = torch.randn(shape, generator=_generator())
        visible = torch.randint(0, shape[2] + 1, shape[:2], generator=_generator(), dtype=torch.int32)
        run(scores.to(device), visible.to(device), topk)


def nvfp4(device: str) -> None:
    """Decode and encode, linear and swizzled, fp32 and bf16, one matrix and a stack of them, by either arithmetic."""
    from kernels import nvfp4_encode
    from kernels.nvfp4 import decode
    from kernels.nvfp4_encode import encode

    for shape in ((3, 130, 208), (37, 48)):
        w = torch.randn(shape, generator=_generator())
        # What is too large for the short arithmetic takes the long one.
        weights = [part.to(device) for part in (w, w.bfloat16(), w * 2.0**20, w.bfloat16() * 2.0**20)]
        for swizzled in (False, True):
            for four_over_six in (False, True):
                for part in weights:
                    parts = encode(part, four_over_six=four_over_six, swizzled=swizzled, check=False)
            for dtype in FLOATS:
                decode(*parts, swizzled=swizzled, dtype=dtype)
    # Launches so short that each searches the matrices of the next.
    with patch.object(nvfp4_encode, "SEARCHING_PROGRAMS", 1):
        for w in (torch.randn(5, 130, 208, generator=_generator()).to(device, dtype) for dtype in FLOATS):
            encode(w, four_over_six=True, check=False)


def experts_fp8(device: str) -> None:
    """W8A8 and W8A16 with every tile of the plain kernel; widths that are no whole number of blocks."""
    from kernels.experts_plain import fp8_experts
    from kernels.fp8_block_ref import Fp8Experts

    dim, hidden = 336, 176
    (w13, w13_scale), (w2, w2_scale) = _fp8(PLAIN_EXPERTS, 2 * hidden, dim), _fp8(PLAIN_EXPERTS, dim, hidden)
    weights = _on(Fp8Experts(w13=w13, w13_scale=w13_scale, w2=w2, w2_scale=w2_scale), device)
    for num_tokens in PLAIN_TOKENS:
        x, ids, gates = _routed(num_tokens, dim, PLAIN_EXPERTS, PLAIN_TOPK, device)
        for quantise_activations in (True, False):
            fp8_experts(x, weights, ids, gates, LIMIT, quantise_activations=quantise_activations)
    fp8_experts(x.float(), weights, torch.zeros_like(ids), gates, None, quantise_activations=False)


def _fp8(num_experts: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    values = torch.randn(num_experts, rows, columns, generator=_generator()).to(torch.float8_e4m3fn)
    return values, torch.rand(num_experts, -(-rows // 128), -(-columns // 128), generator=_generator())


def experts_bf16(device: str) -> None:
    """Plain bf16 weights with every tile, and fp32 tokens."""
    from kernels.experts_plain import bf16_experts

    dim, hidden = 336, 176
    w13 = torch.randn(PLAIN_EXPERTS, 2 * hidden, dim, generator=_generator()).bfloat16().to(device)
    w2 = torch.randn(PLAIN_EXPERTS, dim, hidden, generator=_generator()).bfloat16().to(device)
    for num_tokens in PLAIN_TOKENS:
        x, ids, gates = _routed(num_tokens, dim, PLAIN_EXPERTS, PLAIN_TOPK, device)
        bf16_experts(x, w13, w2, ids, gates, LIMIT)
    bf16_experts(x.float(), w13, w2, torch.zeros_like(ids), gates, None)


def route(device: str) -> None:
    """Every scoring, with and without groups, bias and the shared expert's slot; and experts from a table."""
    from kernels.route import route as run
    from kernels.route import table_route

    for num_tokens, num_experts, topk in ((1, 256, 8), (37, 384, 6), (131, 96, 3)):
        logits = torch.randn(num_tokens, num_experts, generator=_generator()).to(device)
        bias = torch.randn(num_experts, generator=_generator()).to(device)
        ids = torch.randint(-1, 41, (num_tokens,), generator=_generator()).to(device)
        table = torch.randint(0, num_experts, (40, topk), generator=_generator()).to(device)
        for scoring in ("sqrtsoftplus", "sigmoid", "softmax"):
            run(logits, topk, bias_E=bias, scoring=scoring, factor=2.5, shared_weight=1.0)
            run(logits.bfloat16(), topk, scoring=scoring, renormalise=False, num_groups=8, topk_groups=4)
            table_route(logits, ids, table, scoring=scoring, shared_weight=1.0)


def hyper(device: str) -> None:
    """Pre-mix in every precision, read and write, at every tile; and the head, which reads."""
    from kernels.hyper import read, write
    from kernels.hyper_mix import WHOLE_FROM_TOKENS, premix

    num_streams, dim, num_mixes = 4, 1104, 24
    fn = torch.randn(num_mixes, num_streams * dim, generator=_generator()).to(device)
    base = torch.randn(num_mixes, generator=_generator()).to(device)
    scale = torch.rand(3, generator=_generator()).to(device)
    for num_tokens in (1, 67, 1029, WHOLE_FROM_TOKENS + 1):
        streams = torch.randn(num_tokens, num_streams, dim, generator=_generator()).to(device)
        for x, precisions in ((streams.bfloat16(), ("bf16x3", "tf32")), (streams, ("fp32", "tf32"))):
            for precision in precisions:
                z = premix(x, fn, 1e-6, precision)
            write(x, read(x, z, base, scale, 1e-6), z, base, scale, 20, 1e-6)
            read(x, z[:, :num_streams], base[:num_streams], scale[:1], 1e-6)


def swiglu(device: str) -> None:
    """One block and several with a tail, vectors of sixteen bytes and less, with and without a limit."""
    from kernels.swiglu import swiglu as run

    for num_tokens, hidden in ((1, 16), (67, 2056), (3, 1041)):
        gate_up = 9 * torch.randn(num_tokens, 2 * hidden, generator=_generator())
        for dtype in FLOATS:
            for limit in (LIMIT, None):
                run(gate_up.to(device, dtype), limit)


def norm(device: str) -> None:
    """Norms of every number of warps and of rows a program, with and without weight and rotation; rotation alone."""
    from kernels.norm import norm as run
    from kernels.norm import rotate

    for num_tokens, num_heads, width in ((3, 5, 48), (67, 3, 512), (3, 1, 1000), (5, 1, 4096), (3, 1, 7168)):
        x = torch.randn(num_tokens, num_heads, width, generator=_generator()).to(device)
        weight = torch.randn(width, generator=_generator()).to(device)
        turns = torch.randn(num_tokens, 1, 8, generator=_generator(), dtype=torch.complex64).to(device)
        for rows in (x, x.bfloat16()):
            run(rows, 1e-6, weight)
            run(rows[:, :, : width // 2], 1e-6, turns=turns)
            rotate(rows, turns)


def sparse_attention(device: str) -> None:
    """Gathered entries, rows of plain caches and of packed ones, each by blocks of 64 heads, which have a kernel of
    their own on Hopper, and by 48; whole and in splits, with rows that are none."""
    from kernels.attention_cache_ref import empty_key_pages, write_rows
    from kernels.sparse_attention import sparse_attention as run
    from kernels.sparse_attention import sparse_attention_rows

    generator, dim, num_rows = _generator(), 512, 320
    sinks, keys = torch.randn(128, generator=generator).to(device), torch.randn(num_rows, dim, generator=generator)
    packed = empty_key_pages(num_rows // 64, dim)
    write_rows(packed, torch.arange(num_rows), keys)
    caches = (keys.bfloat16().to(device), packed.to(device))
    for batch, heads, split_size in ((3, 64, None), (2, 128, 64), (150, 64, None), (3, 48, None), (150, 48, None)):
        q = torch.randn(batch, heads, dim, generator=generator).bfloat16().to(device)
        window, picks = (torch.randint(-1, num_rows, (batch, n), generator=generator).to(device) for n in (67, 131))
        angle = torch.randn(batch, 32, generator=generator).to(device)
        for cache in caches:
            for entries, rows in ((cache, picks), (None, None)):
                sparse_attention_rows(
                    q, cache, window, entries, rows, sinks[:heads], dim**-0.5, split_size=split_size,
                    rotation=(angle.cos(), angle.sin()), out_dtype=torch.bfloat16,
                )  # fmt: skip
        gathered = caches[0][picks.clamp_min(0)]
        for queries in (q, q[:2].float()):
            run(queries, gathered[: len(queries)], picks[: len(queries)] >= 0, sinks[:heads], dim**-0.5)


CASES: dict[str, Case] = {
    "nvfp4": nvfp4,
    "route": route,
    "hyper": hyper,
    "swiglu": swiglu,
    "norm": norm,
    "align": align,
    "index": index,
    "index_select": index_select,
    "sparse_attention": sparse_attention,
    "experts": experts,
    "experts_hopper": experts_hopper,
    "experts_fp8": experts_fp8,
    "experts_bf16": experts_bf16,
}
