"""Global scales and the two conventions they come in: a factor that multiplies on decode, or a divisor.

Contract: a factor is amax / 2688 beside four-bit codes and amax / 448 beside eight-bit ones, a divisor the inverse.
Which one a number is follows from the name of its tensor; here its value must agree. Read the wrong way round, a weight
is off by the square of its scale, which shows at once; a scale of activations near 1 is off by little enough to go
unnoticed. Weights, and the activations of this architecture (normalised, or clamped by swiglu_limit), stay below 448,
so a factor is at most 1 and a divisor at least 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from engine.loading.files import StoredTensor
from engine.loading.formats import Parts, divides

_WEIGHT_SCALES = ("weight_global_scale", "weight_scale_2")
_INPUT_SCALES = ("input_global_scale", "input_scale")
_SCALE_OF_FP8 = ("weight_scale", "scale")
_DTYPES = ("F32", "BF16", "F16")


def check_global_scales(matrices: Iterable[Parts]) -> list[str]:
    """What is wrong with the global scales of all these matrices: their form, their value, their side of 1."""
    problems = []
    for parts in matrices:
        eight_bits = any(tensor.dtype == "F8_E4M3" for part, tensor in parts.items() if part == "weight")
        for part, tensor in parts.items():
            one_number = part in _SCALE_OF_FP8 and eight_bits and tensor.shape in ((), (1,)) and tensor.dtype in _DTYPES
            if part in (*_WEIGHT_SCALES, *_INPUT_SCALES) or one_number:
                dtypes = ("F32",) if part in _WEIGHT_SCALES else _DTYPES
                problems += _wrong(tensor, dtypes, full=448 if eight_bits else 2688)
    return problems


def _wrong(tensor: StoredTensor, dtypes: tuple[str, ...], *, full: int) -> list[str]:
    if tensor.shape not in ((), (1,)) or tensor.dtype not in dtypes:
        return [f"{tensor.name} is {tensor.dtype} {tensor.shape}, expected one {dtypes[0]} number"]
    value = float(tensor.read())
    if not math.isfinite(value) or value <= 0:
        return [f"{tensor.name} is {value:g}, expected a positive number"]
    factor, divisor = f"amax / {full}", f"{full} / amax"
    if divides(tensor) and value < 1:
        return [f"{tensor.name} is {value:g}, expected {divisor}, which divides: this looks like {factor}"]
    if not divides(tensor) and value > 1:
        return [f"{tensor.name} is {value:g}, expected {factor}, which multiplies: this looks like {divisor}"]
    return []
