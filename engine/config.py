"""The architecture of a checkpoint: DeepSeek-V4's config.json, under its own key names.

Contract: `ModelConfig.from_dict` takes the dictionary of a config.json, in Hugging Face spelling or with the older
lists (`compress_ratios`, `num_hash_layers`), and refuses what the engine cannot compute. Keys it does not use are
ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
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
        # Values are compared with each other only where each is of its kind.
        faults = _faults_of_kind(self) or _faults_of_value(self)
        if faults:
            raise ConfigError("config: " + ";\n  ".join(faults))

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> ModelConfig:
        """Reads a config.json dictionary.

        Raises:
            ConfigError: a needed key is missing or a value is outside what the engine computes.
        """
        _expect(raw.get("model_type", MODEL_TYPE) == MODEL_TYPE, "model_type", raw.get("model_type"), MODEL_TYPE)
        architectures = raw.get("architectures") or [ARCHITECTURE]
        _expect(ARCHITECTURE in _list(architectures, "architectures"), "architectures", architectures, ARCHITECTURE)
        if raw.get("num_key_value_heads", 1) != 1:
            raise ConfigError(
                f"config: num_key_value_heads is {raw['num_key_value_heads']}, this architecture has exactly 1"
            )
        values = {key: value for key, value in raw.items() if key in cls.__dataclass_fields__}
        share, head_dim = raw.get("partial_rotary_factor"), raw.get("head_dim")
        if "qk_rope_head_dim" not in values and share is not None and head_dim is not None:
            _expect(_is_positive(share), "partial_rotary_factor", share, "a number above 0")
            _expect(_is_count(head_dim), "head_dim", head_dim, "a whole number of at least 1")
            values["qk_rope_head_dim"] = int(head_dim * share)
        for unused in ("n_group", "topk_group"):
            values.pop(unused, None)
        missing = [field.name for field in fields(cls) if field.default is MISSING and field.name not in values]
        missing = [name for name in missing if name not in ("layer_types", "mlp_layer_types", "compress_rates")]
        if missing:
            raise ConfigError(f"config: missing {', '.join(missing)}")
        num_layers = raw["num_hidden_layers"]
        _expect(_is_count(num_layers), "num_hidden_layers", num_layers, "a whole number of at least 1")
        values["layer_types"] = _layer_types(raw)
        values["mlp_layer_types"] = _mlp_layer_types(raw)
        values["compress_rates"] = raw.get("compress_rates") or {CSA: 4, HCA: 128}
        values["yarn"] = _yarn(raw)
        return cls(**values)

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
        raise ConfigError(f"config: {_fault(key, value, expected)}")


def _fault(key: str, value: object, expected: str) -> str:
    return f"{key} is {value!r}, expected {expected}"


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value) and value > 0


def _list(value: object, key: str) -> list[Any]:
    _expect(isinstance(value, list | tuple), key, value, "a list")
    return list(value)  # type: ignore[call-overload]


def _faults_of_kind(config: ModelConfig) -> list[str]:
    """Every field whose value is not even of the kind that its declaration names."""
    kinds: dict[str, tuple[Callable[[object], bool], str]] = {
        "int": (_is_count, "a whole number of at least 1"),
        "float": (_is_positive, "a number above 0"),
        "bool": (lambda value: type(value) is bool, "true or false"),
        "dict[str, int]": (lambda value: isinstance(value, dict), "an object"),
    }
    faults = []
    for field in fields(config):
        value = getattr(config, field.name)
        right, expected = kinds.get(str(field.type), (lambda _: True, ""))
        if not right(value):
            faults.append(_fault(field.name, value, expected))
    return faults


def _faults_of_value(config: ModelConfig) -> list[str]:
    """Every value that is outside what the engine computes, or does not fit the others."""
    faults = []
    for name, kinds in (("layer_types", get_args(LayerType)), ("mlp_layer_types", get_args(RouterType))):
        values = getattr(config, name)
        if len(values) != config.num_hidden_layers:
            faults.append(f"{name} has {len(values)} entries, num_hidden_layers is {config.num_hidden_layers}")
        unknown = [value for value in values if value not in kinds]
        faults += [_fault(name, value, " or ".join(kinds)) for value in dict.fromkeys(map(str, unknown))]
    faults += [
        _fault(f"compress_rates[{kind}]", config.compress_rates.get(kind), "a whole number of at least 1")
        for kind in (CSA, HCA)
        if kind in config.layer_types and not _is_count(config.compress_rates.get(kind))
    ]
    groups, rope, experts = config.o_groups, config.qk_rope_head_dim, config.n_routed_experts
    checks: list[tuple[bool, str, str]] = [
        (config.scoring_func in get_args(ScoringFunc), "scoring_func", "sqrtsoftplus, sigmoid or softmax"),
        (config.num_attention_heads % groups == 0, "num_attention_heads", f"a multiple of o_groups ({groups})"),
        (rope % 2 == 0, "qk_rope_head_dim", "an even number"),
        (rope <= config.head_dim, "qk_rope_head_dim", f"at most head_dim ({config.head_dim})"),
        (
            CSA not in config.layer_types or config.index_head_dim >= rope,
            "index_head_dim",
            f"at least qk_rope_head_dim ({rope})",
        ),
        (config.n_shared_experts == 1, "n_shared_experts", "1"),
        (
            config.num_experts_per_tok <= experts,
            "num_experts_per_tok",
            f"between 1 and n_routed_experts ({experts})",
        ),
    ]
    return faults + [_fault(key, getattr(config, key), expected) for ok, key, expected in checks if not ok]


def _layer_types(raw: dict[str, Any]) -> tuple[LayerType, ...]:
    if raw.get("layer_types"):
        return tuple(_list(raw["layer_types"], "layer_types"))
    ratios = raw.get("compress_ratios")
    if not ratios:
        raise ConfigError(
            "config: neither layer_types nor compress_ratios is given", hint="The default of other loaders differs."
        )
    # Released checkpoints carry one more ratio, for the multi-token-prediction block.
    ratios = _list(ratios, "compress_ratios")[: raw["num_hidden_layers"]]
    for ratio in ratios:
        _expect(ratio in _TYPE_OF_RATIO, "compress_ratios", ratio, "0, 4 or 128")
    return tuple(_TYPE_OF_RATIO[ratio] for ratio in ratios)


def _mlp_layer_types(raw: dict[str, Any]) -> tuple[RouterType, ...]:
    if raw.get("mlp_layer_types"):
        return tuple(_list(raw["mlp_layer_types"], "mlp_layer_types"))
    num_hash = raw.get("num_hash_layers", 3)
    _expect(type(num_hash) is int, "num_hash_layers", num_hash, "a whole number")
    return tuple("hash_moe" if layer < num_hash else "moe" for layer in range(raw["num_hidden_layers"]))


def _yarn(raw: dict[str, Any]) -> Yarn | None:
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    _expect(isinstance(rope, dict), "rope_parameters", rope, "an object")
    rope = rope.get("compress", rope)
    _expect(isinstance(rope, dict), "rope_parameters.compress", rope, "an object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    _expect(kind == "yarn", "rope_parameters.rope_type", kind, "yarn or default")
    stretch = {"beta_fast": 32.0, "beta_slow": 1.0} | rope
    for key in ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow"):
        _expect(_is_positive(stretch.get(key)), f"rope_parameters.{key}", stretch.get(key), "a number above 0")
    return Yarn(
        factor=float(stretch["factor"]),
        original_max_position_embeddings=int(stretch["original_max_position_embeddings"]),
        beta_fast=float(stretch["beta_fast"]),
        beta_slow=float(stretch["beta_slow"]),
    )
