"""The small pieces every layer uses: norm, rotary positions, hyper-connection mixing.

Contract: fp32 in, fp32 out; weights come as tensors, never as modules.
Source: equations of DeepSeek-V4 as in huggingface/transformers 5.24.0, models/deepseek_v4.
"""

# B batch, T tokens, D hidden size, S streams (hc_mult), R rope channels, P = R/2 rotation pairs

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from engine.config import ModelConfig

Params = Mapping[str, Tensor]


def rms(x: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight


def rope_frequencies(config: ModelConfig, *, compressed: bool, device: torch.device) -> Tensor:
    """Returns the R/2 angular frequencies of a sliding layer, or of a compressed one (other base, perhaps YaRN)."""
    num_channels = config.qk_rope_head_dim
    base = config.compress_rope_theta if compressed else config.rope_theta
    exponents_P = torch.arange(0, num_channels, 2, device=device, dtype=torch.float32) / num_channels
    plain_P = 1.0 / base**exponents_P
    yarn = config.yarn
    if not compressed or yarn is None:
        return plain_P

    def channel_of(rotations: float) -> float:
        turns = yarn.original_max_position_embeddings / (2 * math.pi * rotations)
        return num_channels * math.log(turns) / (2 * math.log(base))

    low = max(math.floor(channel_of(yarn.beta_fast)), 0)
    high: float = min(math.ceil(channel_of(yarn.beta_slow)), num_channels - 1)
    if high == low:
        high += 0.001
    ramp_P = ((torch.arange(num_channels // 2, device=device) - low) / (high - low)).clamp(0, 1)
    return plain_P * (1 - ramp_P) + plain_P / yarn.factor * ramp_P


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotates interleaved pairs of the last R channels of x by `angles` [..., P], broadcast over x's leading axes."""
    num_channels = 2 * angles.shape[-1]
    still, moving = x[..., :-num_channels], x[..., -num_channels:]
    even, odd = moving[..., 0::2], moving[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    return torch.cat((still, turned), dim=-1)


def mix_coefficients(
    streams_BTSD: Tensor, params: Params, prefix: str, config: ModelConfig, sinkhorn_iters: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what one hyper-connection site reads and writes with: pre [B,T,S], post [B,T,S], mix [B,T,S,S].

    The mix is made doubly stochastic by Sinkhorn; it is applied transposed, see `write_streams`.
    """
    num_streams, eps = config.hc_mult, config.hc_eps
    flat = rms(streams_BTSD.flatten(-2), config.rms_norm_eps)
    z_pre, z_post, z_mix = (flat @ params[f"{prefix}.fn"].T).split((num_streams, num_streams, num_streams**2), dim=-1)
    base_pre, base_post, base_mix = params[f"{prefix}.base"].split((num_streams, num_streams, num_streams**2))
    scale = params[f"{prefix}.scale"]
    pre = torch.sigmoid(scale[0] * z_pre + base_pre) + eps
    post = 2 * torch.sigmoid(scale[1] * z_post + base_post)
    mix = (scale[2] * z_mix + base_mix).unflatten(-1, (num_streams, num_streams)).softmax(-1) + eps
    mix = mix / (mix.sum(-2, keepdim=True) + eps)
    for _ in range(sinkhorn_iters - 1):
        mix = mix / (mix.sum(-1, keepdim=True) + eps)
        mix = mix / (mix.sum(-2, keepdim=True) + eps)
    return pre, post, mix


def read_streams(streams_BTSD: Tensor, pre_BTS: Tensor) -> Tensor:
    return (pre_BTS.unsqueeze(-1) * streams_BTSD).sum(-2)


def write_streams(streams_BTSD: Tensor, post_BTS: Tensor, mix_BTSS: Tensor, out_BTD: Tensor) -> Tensor:
    """X'[k] = post[k] out + sum_j mix[j,k] X[j]: the sum runs over the FIRST index of the mix."""
    return post_BTS.unsqueeze(-1) * out_BTD.unsqueeze(-2) + mix_BTSS.transpose(-1, -2) @ streams_BTSD


def read_head(streams_BTSD: Tensor, params: Params, config: ModelConfig) -> Tensor:
    flat = rms(streams_BTSD.flatten(-2), config.rms_norm_eps)
    z = flat @ params["model.hc_head.hc_fn"].T
    pre = torch.sigmoid(params["model.hc_head.hc_scale"] * z + params["model.hc_head.hc_base"]) + config.hc_eps
    return read_streams(streams_BTSD, pre)
