"""The engine against Hugging Face transformers: logits along every way of feeding it, and the files it writes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from engine import engine as engine_module
from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.engine import Engine
from engine.settings import EngineSettings
from tests.engine.data.forms import write
from tests.engine.data.tiny import CONFIG, prompts, weights
from tests.oracles.peers import EXACT, SMALL, assert_same_logits, transformers_logits, transformers_model

pytest.importorskip("transformers")
SEEDS = (0, 1, 2)
# Both ends of the SwiGLU limit: hardly ever reached, and reached all the time.
LIMITS = (10.0, 0.05)


@pytest.fixture(scope="module", params=[(seed, limit) for seed in SEEDS for limit in LIMITS], ids=str)
def case(request: pytest.FixtureRequest) -> tuple[Engine, Tensor, Tensor]:
    """The engine, a prompt, and transformers' logits of its full forward."""
    seed, limit = request.param
    config = CONFIG | {"swiglu_limit": limit}
    engine = Engine(ModelConfig.from_dict(config), Tensors(weights(seed), "tiny"), EXACT)
    return engine, prompts(seed), transformers_logits(weights(seed), prompts(seed), config)


def test_full_forward(case: tuple[Engine, Tensor, Tensor]) -> None:
    engine, ids, theirs = case

    assert_same_logits(engine.forward(ids), theirs)


@pytest.mark.parametrize("chunk", [1, 3, 7, 16, 37, 64])
def test_chunked_prefill(case: tuple[Engine, Tensor, Tensor], chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ids, theirs = case
    monkeypatch.setattr(engine_module, "STRETCH_TOKENS", chunk)

    assert_same_logits(engine.forward(ids), theirs)


@pytest.mark.parametrize("first", [1, 17, 67])
def test_cached_decode_token_by_token(case: tuple[Engine, Tensor, Tensor], first: int) -> None:
    engine, ids, theirs = case

    head, cache = engine.prefill(ids[:, :first], range(first))
    steps = [engine.decode(ids[:, position], cache) for position in range(first, ids.shape[1])]

    assert_same_logits(torch.cat((head, torch.stack(steps, 1)), 1), theirs)


@pytest.mark.parametrize("shard_size", ["50MB", "2MB"])
def test_files_written_by_save_pretrained_load_as_they_are(shard_size: str, tmp_path: Path) -> None:
    model = transformers_model(weights(0))
    model.save_pretrained(tmp_path, max_shard_size=shard_size)

    engine = Engine.load(tmp_path, EXACT)

    assert engine.config == ModelConfig.from_dict(CONFIG)
    assert len(list(tmp_path.glob("*.safetensors"))) == (1 if shard_size == "50MB" else 5)
    with torch.inference_mode():
        assert_same_logits(engine.forward(prompts(0)), model(prompts(0), use_cache=False).logits)


@pytest.mark.parametrize("scale_fmt", ["float", "ue8m0"])
def test_fp8_blocks_of_transformers_give_its_logits_on_what_it_dequantises(scale_fmt: str, tmp_path: Path) -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    config = SimpleNamespace(weight_block_size=(128, 128), scale_fmt=scale_fmt, dequantize=True)
    quantizer = SimpleNamespace(quantization_config=config)
    tensors = weights(0, SMALL)
    stored, plain = dict(tensors), dict(tensors)
    for name in tensors:
        if ".experts." in name or ".shared_experts." in name or name.endswith("o_b_proj.weight"):
            parts = Fp8Quantize(quantizer)._quantize_one(name, tensors[name])
            if len(parts) == 2:
                stored |= parts
                weight, scale = parts.values()
                plain[name] = Fp8Dequantize(quantizer)._dequantize_one(weight, scale).float()
    assert sum(name.endswith("_scale_inv") for name in stored) == 10

    folder = write(tmp_path, stored, SMALL, quantization_config={"quant_method": "fp8", "scale_fmt": scale_fmt})

    assert_same_logits(Engine.load(folder, EXACT).forward(prompts(0)), transformers_logits(plain, prompts(0), SMALL))
    kept = Engine.load(folder, EngineSettings(expert_quant="fp8")).model.layers[1].mlp.experts.w13
    assert torch.equal(
        kept.codes.view(torch.uint8), stored["model.layers.1.mlp.experts.gate_up_proj"].view(torch.uint8)
    )
