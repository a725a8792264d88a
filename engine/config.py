"""The architecture of a checkpoint: DeepSeek-V4's config.json, under its own key names.

Contract: `ModelConfig.from_dict` takes the dictionary of a config.json, in Hugging Face spelling or with the older
lists (`compress_ratios`, `num_hash_layers`), and refuses what the engine cannot compute. Keys it does not use are
ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from engine.errors import CheckpointError, ConfigError

MODEL_TYPE, ARCHITECTURE = "deepseek_v4", "DeepseekV4ForCausalLM"

LayerType = Literal["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
RouterType = Literal["hash_moe", "moe"]
ScoringFunc = Literal["sqrtsoftplus", "sigmoid", "softmax"]

SLIDING: LayerType = "sliding_attention"
CSA: LayerType = "compressed_sparse_attention"
HCA: LayerType = "heavily_compressed_attention"

_TYPE_OF_RATIO: dict[int, LayerType] = {0: SLIDING, 4: CSA, 128: HCA}


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """Frequency stretching of the compress rope; the softmax scale and the rope amplitude stay untouched."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    layer_types: tuple[LayerType, ...]
    mlp_layer_types: tuple[RouterType, ...]
    compress_rates: dict[str, int]
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    yarn: Yarn | None = None
    index_n_heads: int = 64
    index_head_dim: int = 128
    index_topk: int = 512
    n_routed_experts: int = 256
    num_experts_per_tok: int = 6
    n_shared_experts: int = 1
    # Groups of experts to pick from. DeepSeek-V4 has none: its files carry these keys, and nothing reads them.
    n_group: int = 1
    topk_group: int = 1
    scoring_func: ScoringFunc = "sqrtsoftplus"
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 10.0
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 1048576

    def __post_init__(self) -> None:
        for name, kinds in (("layer_types", get_args(LayerType)), ("mlp_layer_types", get_args(RouterType))):
            values = getattr(self, name)
            if len(values) != self.num_hidden_layers:
                raise ConfigError(
                    f"config: {name} has {len(values)} entries, num_hidden_layers is {self.num_hidden_layers}"
                )
            for value in values:
                _expect(value in kinds, name, value, " or ".join(kinds))
        _expect(
            self.scoring_func in get_args(ScoringFunc),
            "scoring_func",
            self.scoring_func,
            "sqrtsoftplus, sigmoid or softmax",
        )
        _expect(
            self.num_attention_heads % self.o_groups == 0,
            "num_attention_heads",
            self.num_attention_heads,
            f"a multiple of o_groups ({self.o_groups})",
        )
        _expect(self.qk_rope_head_dim % 2 == 0, "qk_rope_head_dim", self.qk_rope_head_dim, "an even number")
        _expect(
            self.qk_rope_head_dim <= self.head_dim,
            "qk_rope_head_dim",
            self.qk_rope_head_dim,
            f"at most head_dim ({self.head_dim})",
        )
        if CSA in self.layer_types:
            _expect(
                self.index_head_dim >= self.qk_rope_head_dim,
                "index_head_dim",
                self.index_head_dim,
                f"at least qk_rope_head_dim ({self.qk_rope_head_dim})",
            )
        _expect(self.n_shared_experts == 1, "n_shared_experts", self.n_shared_experts, "1")
        _expect(
            0 < self.num_experts_per_tok <= self.n_routed_experts,
            "num_experts_per_tok",
            self.num_experts_per_tok,
            f"between 1 and n_routed_experts ({self.n_routed_experts})",
        )
        for name in ("hc_sinkhorn_iters", "sliding_window", "hc_mult"):
            _expect(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> ModelConfig:
        """Reads a config.json dictionary.

        Raises:
            ConfigError: a needed key is missing or a value is outside what the engine computes.
        """
        _expect(raw.get("model_type", MODEL_TYPE) == MODEL_TYPE, "model_type", raw.get("model_type"), MODEL_TYPE)
        architectures = raw.get("architectures") or [ARCHITECTURE]
        _expect(ARCHITECTURE in architectures, "architectures", architectures, ARCHITECTURE)
        if raw.get("num_key_value_heads", 1) != 1:
            raise ConfigError(
                f"config: num_key_value_heads is {raw['num_key_value_heads']}, this architecture has exactly 1"
            )
        names = set(cls.__dataclass_fields__)
        values = {key: value for key, value in raw.items() if key in names}
        if "qk_rope_head_dim" not in values and "partial_rotary_factor" in raw and "head_dim" in raw:
            values["qk_rope_head_dim"] = int(raw["head_dim"] * raw["partial_rotary_factor"])
        for unused in ("n_group", "topk_group"):
            values.pop(unused, None)
        values["layer_types"] = _layer_types(raw)
        values["mlp_layer_types"] = _mlp_layer_types(raw)
        values["compress_rates"] = dict(raw.get("compress_rates") or {CSA: 4, HCA: 128})
        values["yarn"] = _yarn(raw)
        try:
            return cls(**values)
        except TypeError as error:
            missing = [name for name in names if name not in values and name in str(error)]
            raise ConfigError(f"config: missing {', '.join(sorted(missing)) or error}") from error

    @classmethod
    def from_json(cls, path: Path) -> ModelConfig:
        return cls.from_dict(read_config(path))

    def compress_rate(self, layer: int) -> int:
        """Tokens per compressed entry of a layer; 0 for a sliding layer."""
        kind = self.layer_types[layer]
        return 0 if kind == SLIDING else self.compress_rates[kind]


def read_config(path: Path) -> dict[str, Any]:
    """The dictionary of a config.json.

    Raises:
        CheckpointError: there is no such file, or it holds no JSON object.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} does not exist", hint="A checkpoint is a folder with config.json and *.safetensors."
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} holds a {type(raw).__name__}, expected an object")
    return raw


def _expect(ok: bool, key: str, value: object, expected: str) -> None:
    if not ok:
        raise ConfigError(f"config: {key} is {value!r}, expected {expected}")


def _layer_types(raw: dict[str, Any]) -> tuple[LayerType, ...]:
    if raw.get("layer_types"):
        return tuple(raw["layer_types"])
    ratios = raw.get("compress_ratios")
    if not ratios:
        raise ConfigError(
            "config: neither layer_types nor compress_ratios is given", hint="The default of other loaders differs."
        )
    # Released checkpoints carry one more ratio, for the multi-token-prediction block.
    ratios = ratios[: raw["num_hidden_layers"]]
    for ratio in ratios:
        _expect(ratio in _TYPE_OF_RATIO, "compress_ratios", ratio, "0, 4 or 128")
    return tuple(_TYPE_OF_RATIO[ratio] for ratio in ratios)


def _mlp_layer_types(raw: dict[str, Any]) -> tuple[RouterType, ...]:
    if raw.get("mlp_layer_types"):
        return tuple(raw["mlp_layer_types"])
    num_layers = raw.get("num_hidden_layers", 0)
    num_hash = raw.get("num_hash_layers", 3)
    return tuple("hash_moe" if layer < num_hash else "moe" for layer in range(num_layers))


def _yarn(raw: dict[str, Any]) -> Yarn | None:
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    rope = rope.get("compress", rope)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    _expect(kind == "yarn", "rope_parameters.rope_type", kind, "yarn or default")
    return Yarn(
        factor=float(rope["factor"]),
        original_max_position_embeddings=int(rope["original_max_position_embeddings"]),
        beta_fast=float(rope.get("beta_fast", 32.0)),
        beta_slow=float(rope.get("beta_slow", 1.0)),
    )
