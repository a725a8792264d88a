"""Which experts a token goes to and with what weight, on a GPU: one warp takes a few tokens, one launch.

Contract: as `route_ref.route_ref` and `route_ref.table_route_ref`, except that ids are int32 (the sort by expert takes
those) and that floats may differ in the last places, so two experts whose scores differ less than that may change
places. A token's result does not depend on the other tokens. A NaN score ranks first, as torch sorts, at the lower id;
ids are distinct and in range whatever the logits are, and the NaN shows in the weights. A token id outside the table,
or an entry of it that is no expert, gives id -1 with weight 0.
Live when: tensors lie on a GPU of sm_80 or newer. `_table_route` in hash layers, `_route` in the others.
GROUPS > 1: `keep_best_groups` runs. HAS_BIAS: the bias is loaded and added. RENORMALISE: the division by the sum runs.
SCORING names the branch of `score_of`; "softmax": `_table_route` reads whole rows too. SHARED: the two lines that put
the last column in place run.
Cost: the logits are read once; 256 experts and six picks are 600 PTX instructions a token, so from some thousand tokens
up it should be bound by instructions, at about three times its bytes; below, by the launch. No GPU has timed it yet.
"""

# T tokens, E experts in groups of MEMBERS, K experts per token, V vocabulary.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.checks import require, require_device
from kernels.errors import DtypeError, ShapeError
from kernels.launch import launch
from kernels.route_ref import RENORMALISE_EPS, Scoring, check_picks
from kernels.route_score import LOWEST, keep_best_groups, key_of, row_sum, score_of

# As many scores as one warp keeps in its registers: nothing is exchanged between warps.
SCORES_EACH = 1024
MAX_EXPERTS, MAX_TOPK = 1024, 32
_EPS = tl.constexpr(RENORMALISE_EPS)


@triton.jit
def _weigh(  # type: ignore[no-untyped-def]
    logits,
    id_TK,
    t_T,
    peak_T,
    total_T,
    weights_out,
    ids_out,
    factor,
    shared_weight,
    num_tokens,
    E: tl.constexpr,
    TOPK: tl.constexpr,
    SCORING: tl.constexpr,
    RENORMALISE: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK_K: tl.constexpr,
    row_stride,
):
    """Write the picks and their weights; the few logits needed are read again, they lie in L1."""
    k_K = tl.arange(0, BLOCK_K)[None, :]
    real_T = (t_T < num_tokens)[:, None]
    picked_TK = (k_K < TOPK) & (id_TK >= 0) & (id_TK < E) & real_T
    logit_TK = tl.load(logits + (t_T * row_stride)[:, None] + id_TK, mask=picked_TK, other=0.0).to(tl.float32)
    weight_TK = tl.where(picked_TK, score_of(logit_TK, peak_T[:, None], total_T[:, None], SCORING), 0.0)
    id_TK = tl.where(picked_TK, id_TK, -1)
    if RENORMALISE:
        weight_TK = weight_TK / (tl.sum(weight_TK, axis=1)[:, None] + _EPS)
    weight_TK = weight_TK * factor
    if SHARED:
        weight_TK = tl.where(k_K == TOPK, shared_weight, weight_TK)
        id_TK = tl.where(k_K == TOPK, E, id_TK)
    place_TK = t_T[:, None] * (TOPK + SHARED) + k_K
    written_TK = (k_K < TOPK + SHARED) & real_T
    tl.store(weights_out + place_TK, weight_TK, mask=written_TK)
    tl.store(ids_out + place_TK, id_TK, mask=written_TK)


def _metadata(grid: tuple[int, ...], kernel: Any, args: dict[str, Any]) -> dict[str, Any]:
    tokens, experts, columns = args["num_tokens"], args["E"], args["TOPK"] + args["SHARED"]
    whole_rows = "table" not in args or args["SCORING"] == "softmax"
    read = experts if whole_rows else args["TOPK"]
    size = tokens * (read * args["logits"].element_size() + 8 * columns)
    if "table" in args:
        size += tokens * (args["token_ids"].element_size() + args["TOPK"] * args["table"].element_size())
    name = f"route {tokens} x {experts} top-{args['TOPK']} {args['SCORING']}"
    return {"name": name, "bytes": size, "flops": tokens * read}


@triton.jit(launch_metadata=_metadata, do_not_specialize=["num_tokens"])
def _route(  # type: ignore[no-untyped-def]
    logits,
    bias_E,
    weights_out,
    ids_out,
    factor,
    shared_weight,
    num_tokens,
    row_stride,
    E: tl.constexpr,
    TOPK: tl.constexpr,
    SCORING: tl.constexpr,
    RENORMALISE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GROUPS: tl.constexpr,
    TOPK_GROUPS: tl.constexpr,
    MEMBERS: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    t_T = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    # Groups are padded to BLOCK_M places each; places are in the order of the ids, so the lower place is the lower id.
    place_E = tl.arange(0, BLOCK_G * BLOCK_M)
    expert_E = place_E // BLOCK_M * MEMBERS + place_E % BLOCK_M
    real_E = (place_E // BLOCK_M < GROUPS) & (place_E % BLOCK_M < MEMBERS)
    real_TE = (t_T < num_tokens)[:, None] & real_E[None, :]
    logit_TE = tl.load(logits + (t_T * row_stride)[:, None] + expert_E[None, :], mask=real_TE, other=float("-inf"))
    logit_TE = logit_TE.to(tl.float32)
    peak_T, total_T = row_sum(logit_TE, SCORING)
    choice_TE = score_of(logit_TE, peak_T[:, None], total_T[:, None], SCORING)
    if HAS_BIAS:
        choice_TE += tl.load(bias_E + expert_E, mask=real_E, other=0.0).to(tl.float32)[None, :]
    key_TE = tl.where(real_E[None, :], key_of(choice_TE), LOWEST)
    if GROUPS > 1:
        key_TE = keep_best_groups(key_TE, GROUPS, TOPK_GROUPS, MEMBERS, BLOCK_G, BLOCK_M)
        key_TE = tl.where(real_E[None, :], key_TE, LOWEST)

    k_K = tl.arange(0, BLOCK_K)[None, :]
    id_TK = tl.full([BLOCK_T, BLOCK_K], -1, tl.int32)
    for k in tl.static_range(TOPK):
        best_T = tl.max(key_TE, axis=1)
        pick_T = tl.min(tl.where(key_TE == best_T[:, None], expert_E[None, :], E), axis=1)
        id_TK = tl.where(k_K == k, pick_T[:, None], id_TK)
        key_TE = tl.where(expert_E[None, :] == pick_T[:, None], LOWEST, key_TE)
    _weigh(logits, id_TK, t_T, peak_T, total_T, weights_out, ids_out, factor, shared_weight, num_tokens, E, TOPK,
           SCORING, RENORMALISE, SHARED, BLOCK_K, row_stride)  # fmt: skip


@triton.jit(launch_metadata=_metadata, do_not_specialize=["num_tokens"])
def _table_route(  # type: ignore[no-untyped-def]
    logits,
    token_ids,
    table,
    weights_out,
    ids_out,
    factor,
    shared_weight,
    num_tokens,
    vocab,
    row_stride,
    table_stride,
    E: tl.constexpr,
    TOPK: tl.constexpr,
    SCORING: tl.constexpr,
    RENORMALISE: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    t_T = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    k_K = tl.arange(0, BLOCK_K)[None, :]
    token_T = tl.load(token_ids + t_T, mask=t_T < num_tokens, other=-1).to(tl.int64)
    known_T = (token_T >= 0) & (token_T < vocab)
    named_TK = known_T[:, None] & (k_K < TOPK)
    id_TK = tl.load(table + (token_T * table_stride)[:, None] + k_K, mask=named_TK, other=-1)
    # An id too large for int32 must not wrap round into an expert's.
    id_TK = tl.where((id_TK >= 0) & (id_TK < E), id_TK, -1).to(tl.int32)
    if SCORING == "softmax":
        expert_E = tl.arange(0, BLOCK_E)
        real_TE = (t_T < num_tokens)[:, None] & (expert_E < E)[None, :]
        logit_TE = tl.load(logits + (t_T * row_stride)[:, None] + expert_E[None, :], mask=real_TE, other=float("-inf"))
        peak_T, total_T = row_sum(logit_TE.to(tl.float32), SCORING)
    else:
        peak_T = tl.zeros([BLOCK_T], tl.float32)
        total_T = peak_T
    _weigh(logits, id_TK, t_T, peak_T, total_T, weights_out, ids_out, factor, shared_weight, num_tokens, E, TOPK,
           SCORING, RENORMALISE, SHARED, BLOCK_K, row_stride)  # fmt: skip


def route(
    logits_TE: Tensor,
    topk: int,
    *,
    bias_E: Tensor | None = None,
    scoring: Scoring = "sqrtsoftplus",
    renormalise: bool = True,
    factor: float | None = None,
    num_groups: int = 1,
    topk_groups: int = 1,
    shared_weight: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Top-k routing: topk_weights_TK float32 and topk_ids_TK int32, best first; arguments as of `route_ref.route_ref`.

    Raises:
        DtypeError: logits are not bf16 or fp32, or the bias is no float.
        ShapeError: a size or a stride does not fit.
        DeviceError: the tensors are not all on one GPU.
    """
    require_device("route", logits_TE, *(() if bias_E is None else (bias_E,)))
    num_tokens, num_experts = _check(logits_TE, topk, num_groups, topk_groups)
    if bias_E is not None:
        require(bias_E.dtype in (torch.bfloat16, torch.float32), DtypeError, "correction bias", bias_E.dtype,
                "bf16 or fp32")  # fmt: skip
        require(bias_E.shape == (num_experts,) and bias_E.is_contiguous(), ShapeError, "correction bias",
                f"{tuple(bias_E.shape)} of strides {bias_E.stride()}", f"({num_experts},), contiguous")  # fmt: skip
    weights, ids = _outputs(logits_TE, topk, shared_weight)
    if num_tokens == 0:
        return weights, ids
    groups = 1 if topk_groups == num_groups else num_groups
    members = num_experts // groups
    block_g, block_m = triton.next_power_of_2(groups), triton.next_power_of_2(members)
    block_t = _tokens_each(block_g * block_m)
    launch(_route, (triton.cdiv(num_tokens, block_t),))(
        logits_TE,
        bias_E,
        weights,
        ids,
        1.0 if factor is None else factor,
        0.0 if shared_weight is None else shared_weight,
        num_tokens,
        logits_TE.stride(0),
        E=num_experts,
        TOPK=topk,
        SCORING=scoring,
        RENORMALISE=renormalise,
        HAS_BIAS=bias_E is not None,
        GROUPS=groups,
        TOPK_GROUPS=topk_groups,
        MEMBERS=members,
        SHARED=shared_weight is not None,
        BLOCK_T=block_t,
        BLOCK_G=block_g,
        BLOCK_M=block_m,
        BLOCK_K=triton.next_power_of_2(ids.shape[1]),
        num_warps=1,
    )
    return weights, ids


def table_route(
    logits_TE: Tensor,
    ids_T: Tensor,
    tid2eid_VK: Tensor,
    *,
    scoring: Scoring = "sqrtsoftplus",
    renormalise: bool = True,
    factor: float | None = None,
    shared_weight: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Hash routing: topk_weights_TK float32 and topk_ids_TK int32; arguments as of `route_ref.table_route_ref`.

    Raises:
        DtypeError: logits are not bf16 or fp32, or token ids or table not int32 or int64.
        ShapeError: a size or a stride does not fit.
        DeviceError: the tensors are not all on one GPU.
    """
    require_device("table_route", logits_TE, ids_T, tid2eid_VK)
    vocab, topk = tid2eid_VK.shape
    num_tokens, num_experts = _check(logits_TE, topk)
    for what, tensor in (("token ids", ids_T), ("expert table", tid2eid_VK)):
        require(tensor.dtype in (torch.int32, torch.int64), DtypeError, what, tensor.dtype, "int32 or int64")
    require(tid2eid_VK.stride(1) == 1, ShapeError, "stride of expert table", tid2eid_VK.stride(), "1 between picks")
    require(ids_T.shape == (num_tokens,), ShapeError, "token ids", tuple(ids_T.shape), (num_tokens,))
    weights, ids = _outputs(logits_TE, topk, shared_weight)
    if num_tokens == 0:
        return weights, ids
    block_e = triton.next_power_of_2(num_experts)
    block_t = _tokens_each(block_e)
    launch(_table_route, (triton.cdiv(num_tokens, block_t),))(
        logits_TE,
        ids_T.contiguous(),  # the newest of each sequence's ids lie apart
        tid2eid_VK,
        weights,
        ids,
        1.0 if factor is None else factor,
        0.0 if shared_weight is None else shared_weight,
        num_tokens,
        vocab,
        logits_TE.stride(0),
        tid2eid_VK.stride(0),
        E=num_experts,
        TOPK=topk,
        SCORING=scoring,
        RENORMALISE=renormalise,
        SHARED=shared_weight is not None,
        BLOCK_T=block_t,
        BLOCK_E=block_e,
        BLOCK_K=triton.next_power_of_2(ids.shape[1]),
        num_warps=1,
    )
    return weights, ids


def _check(logits_TE: Tensor, topk: int, num_groups: int = 1, topk_groups: int = 1) -> tuple[int, int]:
    num_tokens, num_experts = logits_TE.shape
    require(logits_TE.dtype in (torch.bfloat16, torch.float32), DtypeError, "router logits", logits_TE.dtype,
            "bf16 or fp32")  # fmt: skip
    require(logits_TE.stride(1) == 1, ShapeError, "stride of router logits", logits_TE.stride(), "1 between experts")
    require(num_experts <= MAX_EXPERTS, ShapeError, "experts", num_experts, f"at most {MAX_EXPERTS}")
    require(topk <= MAX_TOPK, ShapeError, "experts per token", topk, f"at most {MAX_TOPK}")
    check_picks(num_experts, topk, num_groups, topk_groups)
    return num_tokens, num_experts


def _tokens_each(block_e: int) -> int:
    """Tokens of one program; it must not follow from the number of tokens, or sums could change their order with it."""
    return max(1, min(8, SCORES_EACH // block_e))


def _outputs(logits_TE: Tensor, topk: int, shared_weight: float | None) -> tuple[Tensor, Tensor]:
    shape = (logits_TE.shape[0], topk + (shared_weight is not None))
    return logits_TE.new_empty(shape, dtype=torch.float32), logits_TE.new_empty(shape, dtype=torch.int32)
