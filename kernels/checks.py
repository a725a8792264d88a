"""What every launcher checks before it launches. Imports triton: only kernel modules import this."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from kernels.errors import DeviceError, KernelError


def interpreting() -> bool:
    """Whether kernels run on Triton's CPU interpreter (TRITON_INTERPRET=1)."""
    return bool(triton.knobs.runtime.interpret)


def require(condition: bool, error: type[KernelError], what: str, value: object, expected: object) -> None:
    """Raise `error` with the value and what was expected unless the condition holds."""
    if not condition:
        raise error(f"{what}: {value}, expected {expected}")


def require_device(op: str, *tensors: Tensor) -> None:
    """All tensors on one CUDA device of sm_80 or newer; any one device under the interpreter.

    Raises:
        DeviceError: otherwise.
    """
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1:
        raise DeviceError(f"{op}: tensors on {', '.join(sorted(map(str, devices)))}, expected one device")
    (device,) = devices
    if interpreting():
        return
    if device.type != "cuda":
        raise DeviceError(f"{op}: tensors on {device}, expected a CUDA device", hint="ask dispatch for the reference")
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        raise DeviceError(f"{op}: GPU of sm_{capability[0]}{capability[1]}, expected sm_80 or newer")


def overlaps(device: torch.device) -> bool:
    """Whether a launch on the device may start before the one ahead of it has ended: sm_90 and newer can."""
    return not interpreting() and torch.cuda.get_device_capability(device)[0] >= 9


def overlapped(overlap: bool) -> dict[str, bool]:
    """Launch arguments of a kernel that may start before the launch ahead of it has ended (it waits inside).

    The launch option is named only where it is used: the interpreter and older GPUs do not know it.
    """
    return {"OVERLAP": True, "launch_pdl": True} if overlap else {"OVERLAP": False}
