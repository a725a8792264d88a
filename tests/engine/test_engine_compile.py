"""Every kernel that a bf16 engine launches, compiled for sm_90 with the engine's own operands, on any machine."""

from __future__ import annotations

from pathlib import Path

from tests.kernels.compiling import compiled

# A sliding and a CSA layer in the widths of the full shape where a kernel's tile depends on them, the rest small.
CODE = """
import kernels.choice, kernels.dispatch_experts, engine.runners.kept
kernels.choice._obstacle = lambda device, interpreted: None
for module in (kernels.dispatch_experts, engine.runners.kept):
    module.is_hopper = lambda device: True
torch.cuda.get_device_properties = lambda device: type("Card", (), {"multi_processor_count": 132})
torch.set_num_threads(1)

from benchmarks.random_model import FLASH, config_of, random_tensors
from engine.engine import Engine
from engine.settings import EngineSettings

small = {"vocab_size": 128, "hidden_size": 512, "moe_intermediate_size": 256, "n_routed_experts": 16,
         "o_lora_rank": 64, "q_lora_rank": 128, "index_topk": 16}
config = config_of(FLASH | small, 2)
settings = EngineSettings(dtype=torch.bfloat16, runner="marlin", kernels="triton")
engine = Engine(config, random_tensors(config, "cpu"), settings)
_, cache = engine.prefill(torch.zeros(1, 100, dtype=torch.int64), range(100))
engine.decode(torch.zeros(4, dtype=torch.int64), cache.fork(4))
"""
WANTED = {
    "_add_slices",
    "_combine",
    "_eliminate",
    "_index_scores",
    "_mix_slice",
    "_norm",
    "_permute_pairs",
    "_place",
    "_read",
    "_route",
    "_score_pages",
    "_sort",
    "_table_route",
    "_write",
    "expert_gemm",
    "_swiglu",
    "sparse_attention_hopper",
    "sparse_attention_merge",
}


def test_all_that_prefill_and_decode_launch_compiles_for_hopper_and_hardly_spills(tmp_path: Path) -> None:
    launches = compiled(CODE, tmp_path)

    assert {launch.name for launch in launches} == WANTED
    assert max(launch.stack_bytes for launch in launches) <= 16
    # Bytes and flops are known for each of them.
    assert all(launch.launch["bytes"] > 0 for launch in launches)
