"""What makes lines dead: patches, a fact of the machine, or the condition that went the other way.

Contract: functions over records of runs that happened; nothing is run. Patches are named from runs in which the lines
were live, the machine only where the conditions on the way to the lines ask for what it lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lab.callers import Stop, find_stops
from lab.git import Git
from lab.machine import NO_GPU

if TYPE_CHECKING:  # lab.live names `given` in its rows
    from lab.live import PatchLiveness

_ASKS_FOR_GPU = re.compile(r"cuda|gpu|triton|device|capability|\bhip\b|rocm|\bsm_?\d+", re.IGNORECASE)
_MAX_LINES = 8  # dead lines of a patch that are traced upward; the first few stand for the rest


def patches_given(dead_in: frozenset[str], live_in: Iterable[frozenset[str]]) -> tuple[str, ...]:
    """The patches that can have made lines dead, from the patch sets of runs in which the lines were dead and live.

    A patch that was applied in a run where the lines were live is no cause by itself; where that clears all of them,
    the smallest difference to a live run is named.
    """
    live = list(live_in)
    if not live:
        return ()
    alone = dead_in.difference(*live)
    smallest = min((dead_in - each for each in live), key=lambda names: (len(names), sorted(names)))
    return tuple(sorted(alone or smallest))


def machine_reason(
    git: Git, tree: str, liveness: PatchLiveness, machine: Mapping[str, Any]
) -> tuple[tuple[str, ...], str]:
    """Why a patch that no other patch made dead is dead: (given, reason in words).

    Args:
        tree: the tree of the run the liveness is from.
        machine: `lab.machine.machine_facts`.
    """
    dead = [line for line in liveness.lines if line.acting and line.path]
    if not dead:
        return (), liveness.why
    stops: dict[Stop, None] = {}
    for line in dead[:_MAX_LINES]:
        stops |= dict.fromkeys(find_stops(git, tree, liveness.seen, line.path, line.line))
    missing = NO_GPU in machine.get("given", ())
    asking = [stop for stop in stops if _ASKS_FOR_GPU.search(stop.text)]
    if missing and asking:
        return (NO_GPU,), f"`{asking[0].text}` at {asking[0].path}:{asking[0].line} went the other way, without a GPU"
    if stops:
        first = next(iter(stops))
        return (str(first),), f"`{first.text}` at {first.path}:{first.line} was evaluated and went the other way"
    return (), dead[0].reason
