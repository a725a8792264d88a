"""The only place that picks between a reference and its Triton kernel, one function per op.

Every call tells `record` what was picked and why, and which kernels that launched; the engine turns it into a `route`
event. Kernel modules are imported only on the branch that runs them, so a machine without triton never loads it. The
functions stand by family in `dispatch_<family>.py`; whoever computes asks here.
"""

from __future__ import annotations

from kernels.choice import Choice, Implementation, Record, Requested, pick
from kernels.dispatch_attention import sparse_attention, sparse_attention_rows
from kernels.dispatch_experts import experts, fp8_experts, nvfp4_experts
from kernels.dispatch_hyper import hyper_premix, hyper_read, hyper_write
from kernels.dispatch_index import index_scores, index_select
from kernels.dispatch_norm import norm, rotate
from kernels.dispatch_nvfp4 import nvfp4_decode, nvfp4_encode
from kernels.dispatch_route import route, table_route
from kernels.dispatch_swiglu import swiglu

__all__ = [
    "Choice",
    "Implementation",
    "Record",
    "Requested",
    "experts",
    "fp8_experts",
    "hyper_premix",
    "hyper_read",
    "hyper_write",
    "index_scores",
    "index_select",
    "norm",
    "nvfp4_decode",
    "nvfp4_encode",
    "nvfp4_experts",
    "pick",
    "rotate",
    "route",
    "sparse_attention",
    "sparse_attention_rows",
    "swiglu",
    "table_route",
]
