"""Picks for routing: the best experts of each token, or those that a table names."""

from __future__ import annotations

from torch import Tensor

from kernels import route_ref
from kernels.choice import Record, Requested, pick, told
from kernels.route_ref import Scoring


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
    requested: Requested = "auto",
    record: Record | None = None,
) -> tuple[Tensor, Tensor]:
    """topk_weights_TK float32 and topk_ids_TK, int64 by the reference, int32 by the kernel; see `route_ref`."""
    implementation, reason = pick("route", logits_TE, requested)
    if implementation == "triton":
        from kernels.route import route as run
    else:
        run = route_ref.route_ref
    if record is not None:
        run = told(record, "route", implementation, requested, reason, run)
    return run(
        logits_TE,
        topk,
        bias_E=bias_E,
        scoring=scoring,
        renormalise=renormalise,
        factor=factor,
        num_groups=num_groups,
        topk_groups=topk_groups,
        shared_weight=shared_weight,
    )


def table_route(
    logits_TE: Tensor,
    ids_T: Tensor,
    tid2eid_VK: Tensor,
    *,
    scoring: Scoring = "sqrtsoftplus",
    renormalise: bool = True,
    factor: float | None = None,
    shared_weight: float | None = None,
    requested: Requested = "auto",
    record: Record | None = None,
) -> tuple[Tensor, Tensor]:
    """As `route`, of the experts that a table names for each token id; see `route_ref.table_route_ref`."""
    implementation, reason = pick("table_route", logits_TE, requested)
    if implementation == "triton":
        from kernels.route import table_route as run
    else:
        run = route_ref.table_route_ref
    if record is not None:
        run = told(record, "table_route", implementation, requested, reason, run)
    return run(
        logits_TE,
        ids_T,
        tid2eid_VK,
        scoring=scoring,
        renormalise=renormalise,
        factor=factor,
        shared_weight=shared_weight,
    )
