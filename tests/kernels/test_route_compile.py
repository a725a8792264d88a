"""What can be said of the routing kernels without a GPU: what they compile to for sm_90."""

from __future__ import annotations

from pathlib import Path

from tests.kernels.compiling import compiled

LAUNCH = """
from kernels.route import route, table_route

logits = torch.zeros(4096, 256)
route(logits, 8, bias_E=torch.zeros(256), scoring="sigmoid", num_groups=8, topk_groups=4)
table_route(logits, torch.zeros(4096, dtype=torch.long), torch.zeros(129280, 6, dtype=torch.long), shared_weight=0.4)
"""


def test_a_warp_keeps_its_scores_in_registers_and_takes_the_largest_in_one_instruction(tmp_path: Path) -> None:
    route, table = compiled(LAUNCH, tmp_path)

    assert route.stack_bytes == table.stack_bytes == 0
    assert route.registers <= 128
    # Four tokens of a program, eight picks each: the largest key, and the lowest place that has it.
    assert route.ptx.count("redux.sync.max.s32") == route.ptx.count("redux.sync.min.s32") == 32
    assert route.ptx.count("ld.global.v4") == 10
    assert route.launch == {
        "name": "route 4096 x 256 top-8 sigmoid",
        "bytes": 4096 * (4 * 256 + 8 * 8),
        "flops": 4096 * 256,
    }
    # A table chooses without the row of logits: six of them are read, and the token's own id and experts.
    assert table.launch["bytes"] == 4096 * (4 * 6 + 8 * 7 + 8 + 8 * 6)
