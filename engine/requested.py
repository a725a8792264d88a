"""Reference or Triton kernel: what the engine asks the dispatcher for, by argument, else by environment.

Contract: ENGINE_KERNELS is "auto", "reference" or "triton". Asked for, a kernel that cannot run is an error of the
dispatcher; only an op whose operands have no kernel at all is left to the dispatcher, and the setting is said to be
ignored there.
"""

from __future__ import annotations

import os
from typing import get_args

from engine import events
from engine.errors import ConfigError
from engine.settings import Kernels

KERNELS_VARIABLE = "ENGINE_KERNELS"
PLAIN_FP32 = "plain weights are in fp32"


def requested_kernels(argument: Kernels) -> Kernels:
    """What every op of an engine is asked for.

    Raises:
        ConfigError: ENGINE_KERNELS is none of the choices.
    """
    said = os.environ.get(KERNELS_VARIABLE, "")
    wanted = {choice: choice for choice in get_args(Kernels)}.get(said or "auto")
    if wanted is None:
        raise ConfigError(f"{KERNELS_VARIABLE} is {said!r}, expected one of {', '.join(get_args(Kernels))}")
    if argument == "auto":
        return wanted
    if said and said != argument:
        _ignored(KERNELS_VARIABLE, f"the argument kernels={argument} comes first")
    return argument


def without_kernel(requested: Kernels, op: str, layer: int, reason: str) -> Kernels:
    """What to ask for where the op has no kernel for the operands: asking for one has no effect, and that is said."""
    if requested != "triton":
        return requested
    _ignored("kernels", f"{op} of layer {layer}: {reason}")
    return "auto"


def _ignored(setting: str, reason: str) -> None:
    events.emit_once((setting, reason), "ignored", setting=setting, where="engine/requested.py", reason=reason)
