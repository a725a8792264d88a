"""Records Hugging Face's logits for the tiny architecture; run by hand, with transformers installed, from the checkout:

    python -m tests.engine.data.record

It writes `huggingface-logits.safetensors` beside itself and prints how far Hugging Face's own cached decoding is from
its forward.
"""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from tests.engine.data.tiny import CONFIG, NUM_TOKENS, prompts, weights

SEEDS = (0, 1, 2)
# Every position's best token is kept; all logits at these positions only, to keep the file small.
POSITIONS = (0, 3, 4, 15, 16, 17, 20, 31, 47, 63, 64, 79, 95, 96, 111, 127, 128, 143, 158, 159)


def main() -> None:
    torch.set_num_threads(1)
    recorded = {"positions": torch.tensor(POSITIONS)}
    for seed in SEEDS:
        model = DeepseekV4ForCausalLM(DeepseekV4Config(**CONFIG)).float().eval()
        model.load_state_dict(weights(seed), strict=True)
        ids = prompts(seed)
        with torch.inference_mode():
            logits = model(ids, use_cache=False).logits[0]
            cached = _cached(model, ids)[0]
        print(
            f"seed {seed}: logit std {logits.std():.3f}, cached decoding differs by {(cached - logits).abs().max():.1e}"
        )
        recorded[f"logits.{seed}"] = logits[list(POSITIONS)].contiguous()
        recorded[f"argmax.{seed}"] = logits.argmax(-1).to(torch.int32)
    save_file(
        recorded,
        Path(__file__).with_name("huggingface-logits.safetensors"),
        metadata={"transformers": transformers.__version__, "torch": torch.__version__},
    )


def _cached(model: DeepseekV4ForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Half of the prompt at once, the rest token by token."""
    output = model(ids[:, : NUM_TOKENS // 2], use_cache=True)
    parts = [output.logits]
    for position in range(NUM_TOKENS // 2, NUM_TOKENS):
        output = model(ids[:, position : position + 1], cache=output.cache, use_cache=True)
        parts.append(output.logits)
    return torch.cat(parts, 1)


if __name__ == "__main__":
    main()
