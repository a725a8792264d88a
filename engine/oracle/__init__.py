"""The oracle: a second, plain fp32 forward of the same architecture, to hold the engine against.

Contract: shares no arithmetic with the engine or `kernels`: no cache, no packed weights, no dispatch, only a state dict
with Hugging Face names in and logits out. Batched and differentiable, so the training recipe uses it too. Where the
engine and the oracle differ by more than rounding, one of the two is wrong.

Source: equations of DeepSeek-V4 as in huggingface/transformers 5.24.0, models/deepseek_v4.
"""

from engine.oracle.forward import OracleOutput, forward
from engine.oracle.moe import Experts, routed_sum, shared_expert

__all__ = ["Experts", "OracleOutput", "forward", "routed_sum", "shared_expert"]
