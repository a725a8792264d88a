"""What the oracle tests share: Hugging Face's model, and folders written with the peers' own encoders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.settings import EngineSettings
from tests.engine.data.tiny import CONFIG

EXACT = EngineSettings(expert_quant="none", index_keys="fp32")
# fp32 logits of two implementations that sum in another order.
TOLERANCE = 5e-6
# Two layers whose expert halves are whole FP8 blocks.
SMALL = CONFIG | {
    "num_hidden_layers": 2,
    "layer_types": CONFIG["layer_types"][:2],
    "mlp_layer_types": ["hash_moe", "moe"],
    "moe_intermediate_size": 128,
}


def transformers_model(tensors: dict[str, Tensor], config: dict[str, Any] = CONFIG) -> Any:
    """`DeepseekV4ForCausalLM` with these weights, in fp32."""
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

    model = DeepseekV4ForCausalLM(DeepseekV4Config(**config)).float().eval()
    model.load_state_dict(tensors, strict=True)
    return model


@torch.inference_mode()
def transformers_logits(tensors: dict[str, Tensor], ids: Tensor, config: dict[str, Any] = CONFIG) -> Tensor:
    return transformers_model(tensors, config)(ids, use_cache=False).logits


def assert_same_logits(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= TOLERANCE
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
