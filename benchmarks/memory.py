"""Peak memory of a call beside the tensors that its result holds on to. Linux only."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

from torch import Tensor


def peak_of(make: Callable[[], object]) -> tuple[int, int]:
    """Bytes that the process grew by at its highest, and bytes of the distinct tensors in the result."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    result = make()
    peak = _status("VmHWM") - before
    return peak, _bytes_in(result)


def _status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _bytes_in(thing: object) -> int:
    """Every tensor that can be reached from `thing`, shared storage counted once."""
    seen: set[int] = set()
    storages: dict[int, int] = {}
    todo: list[object] = [thing]
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            storages[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif isinstance(item, dict):
            todo += item.values()
        elif isinstance(item, list | tuple):
            todo += item
        elif type(item).__module__.startswith(("engine", "kernels")):
            todo += getattr(item, "__dict__", {}).values()
            todo += [getattr(item, slot) for slot in getattr(type(item), "__slots__", ()) if hasattr(item, slot)]
    return sum(storages.values())
