"""Reference or kernel: how one is picked, and what whoever asks is told of it.

Contract: `pick` decides by what was asked for and by where the tensors lie; `told` wraps the function that was picked
so that `record` hears of it, and of the kernels that it launched, once it has run. Needs no triton.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor

from kernels.errors import DeviceError, KernelError
from kernels.launch import Launch, heard, place_of

Implementation = Literal["reference", "triton"]
Requested = Literal["auto", "reference", "triton"]
# Set to 1, Triton runs kernels on the CPU, slowly; they must be asked for.
INTERPRETER_VARIABLE = "TRITON_INTERPRET"
# Set to 1, experts' ids are looked at before each launch, which waits for the device (`kernels.experts_launch`).
DEBUG_VARIABLE = "KERNELS_DEBUG"
ON_CPU = "tensors on cpu, not on a GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was picked for one call of an op; `file` is relative to the folder that holds `kernels/`."""

    op: str
    implementation: Implementation
    requested: Requested
    reason: str
    file: str
    line: int
    launches: tuple[Launch, ...] = ()


Record = Callable[[Choice], None]


def pick(
    op: str,
    tensor: Tensor,
    requested: Requested,
    *,
    obstacle: str | None = None,
    error: type[KernelError] = DeviceError,
) -> tuple[Implementation, str]:
    """The implementation of `op` for tensors that lie where `tensor` lies, and why.

    Args:
        obstacle: what else keeps the kernel from these operands, where something does, and the `error` it makes.

    Raises:
        DeviceError: triton was asked for and cannot run there.
        KernelError: triton was asked for and there is an obstacle; of the type `error`.
    """
    if requested == "reference":
        return "reference", "asked for"
    if requested == "auto" and tensor.is_cpu:
        return "reference", ON_CPU
    interpreted = requested == "triton" and os.environ.get(INTERPRETER_VARIABLE) == "1"
    where = _obstacle(tensor.device, interpreted)
    if requested == "triton" and (where or obstacle):
        hint = "ask for `auto` or `reference`" + (", or use a CUDA device" if where else "")
        raise (DeviceError if where else error)(f"{op}: triton was asked for, but {where or obstacle}", hint=hint)
    if where or obstacle:
        return "reference", where or obstacle or ""
    return "triton", "asked for" if requested == "triton" else f"tensors on {tensor.device}"


def told(
    record: Record,
    op: str,
    implementation: Implementation,
    requested: Requested,
    reason: str,
    function: Callable[..., Any],
) -> Callable[..., Any]:
    """`function`, which tells `record` what was picked and what it launched once it has run."""

    def telling(*args: Any, **kwargs: Any) -> Any:
        with heard() as launches:
            result = function(*args, **kwargs)
        file, line = place_of(function.__code__)
        record(
            Choice(
                op=op,
                implementation=implementation,
                requested=requested,
                reason=reason,
                file=file,
                line=line,
                launches=tuple(launches),
            )
        )
        return result

    return telling


def is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


@cache
def _obstacle(device: torch.device, interpreted: bool) -> str | None:
    """Why triton cannot run there, or None; found once, because every call of an op asks."""
    if interpreted and device.type == "cpu" and _has_triton():
        return None
    if device.type != "cuda":
        return ON_CPU if device.type == "cpu" else f"tensors on {device.type}, not on a GPU"
    if not _has_triton():
        return "triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    return None if major >= 8 else f"the GPU is sm_{major}{minor}, expected sm_80 or newer"


def _has_triton() -> bool:
    return find_spec("triton") is not None
