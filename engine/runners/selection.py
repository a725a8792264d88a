"""Which runner computes the experts: by argument, else by environment, else by the device's compute capability.

Contract: ENGINE_MOE_RUNNER names a runner, ENGINE_DEVICE_CAPABILITY ("9.0", or "none" for no GPU) replaces what the
device says of itself. A variable that is set and has no effect is said to be ignored, by name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from engine import events
from engine.errors import ConfigError

RUNNER_VARIABLE = "ENGINE_MOE_RUNNER"
CAPABILITY_VARIABLE = "ENGINE_DEVICE_CAPABILITY"

_FOUR_BIT = ("nvfp4", "compressed_tensors_nvfp4", "mxfp4")
_EIGHT_BIT = ("fp8", "modelopt_fp8")
# By the capability's major number: tensor cores of 8.x and 9.x have no four-bit operands, so codes are undone on the
# way (Marlin); the kernels of 10.x do not run on 12.x, whose major number is larger all the same.
_AUTO = {
    8: dict.fromkeys(_FOUR_BIT, "marlin"),
    9: dict.fromkeys(_FOUR_BIT, "marlin"),
    10: dict.fromkeys(_FOUR_BIT, "trtllm") | dict.fromkeys(_EIGHT_BIT, "cutlass"),
    12: dict.fromkeys(_FOUR_BIT, "cutlass"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    runner: str
    reason: str
    requested: str


def select_runner(method: str, runners: tuple[str, ...], argument: str, device: str) -> Selection:
    """The runner for experts stored by `method`, which `runners` can read.

    Raises:
        ConfigError: the runner that was asked for cannot read this storage, or a variable has no valid value.
    """
    wanted = os.environ.get(RUNNER_VARIABLE, "")
    if argument != "auto":
        if wanted and wanted != argument:
            _ignored(RUNNER_VARIABLE, f"the argument runner={argument} comes first")
        return _asked_for(method, runners, argument, "settings: runner", "asked for by argument")
    if wanted and wanted != "auto":
        return _asked_for(method, runners, wanted, RUNNER_VARIABLE, f"asked for by {RUNNER_VARIABLE}")
    capability, source = device_capability(device)
    if capability is None:
        return Selection(runner=runners[0], reason=f"{source}: no GPU", requested="auto")
    named = f"{source}: capability {capability[0]}.{capability[1]}"
    if capability[0] < 8:
        return Selection(runner=runners[0], reason=f"{named}, older than 8.0", requested="auto")
    # A generation that is not listed has no kernels of its own here.
    return Selection(runner=_AUTO.get(capability[0], {}).get(method, "triton"), reason=named, requested="auto")


def device_capability(device: str) -> tuple[tuple[int, int] | None, str]:
    """The compute capability that selections go by, None without a GPU, and where it was learnt.

    Raises:
        ConfigError: ENGINE_DEVICE_CAPABILITY is neither a capability nor "none".
    """
    said = os.environ.get(CAPABILITY_VARIABLE, "")
    if said == "none":
        return None, CAPABILITY_VARIABLE
    if said:
        major, _, minor = said.partition(".")
        if not (major.isdecimal() and minor.isdecimal()):
            raise ConfigError(f"{CAPABILITY_VARIABLE} is {said!r}, expected a capability such as 9.0, or none")
        return (int(major), int(minor)), CAPABILITY_VARIABLE
    if torch.device(device).type != "cuda":
        return None, f"device {device}"
    return torch.cuda.get_device_capability(device), f"device {device}"


def _asked_for(method: str, runners: tuple[str, ...], wanted: str, where: str, reason: str) -> Selection:
    if wanted not in runners:
        raise ConfigError(
            f"{where} {wanted!r} cannot read {method!r} experts, expected one of auto, {', '.join(runners)}"
        )
    if os.environ.get(CAPABILITY_VARIABLE):
        _ignored(CAPABILITY_VARIABLE, f"the runner {wanted} was {reason}")
    return Selection(runner=wanted, reason=reason, requested=wanted)


def _ignored(setting: str, reason: str) -> None:
    events.emit_once((setting, reason), "ignored", setting=setting, where="engine/runners/selection.py", reason=reason)
