"""What the engine says of itself: JSON lines appended to the file named by LIVEPATH_EVENTS.

Contract: one object per line with `v` (1) and `event`; NaN and infinities are written as strings. Without
LIVEPATH_EVENTS every function here does nothing. Events are claims, not proof: whoever reads them compares them with
the lines that ran.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from kernels.dispatch import Choice

VERSION = 1
Phase = Literal["prefill", "decode"]

_ROOT = Path(__file__).resolve().parent.parent
_said: set[Hashable] = set()
# The path alone in a tuple while `path_read_once`.
_held: tuple[str | None] | None = None


def _path() -> str | None:
    return os.environ.get("LIVEPATH_EVENTS") if _held is None else _held[0]


@contextmanager
def path_read_once() -> Iterator[None]:
    """LIVEPATH_EVENTS as it is now, until the end: a look-up costs as much as a small product, and every op asks."""
    global _held
    before, _held = _held, (_path(),)
    try:
        yield
    finally:
        _held = before


def enabled() -> bool:
    return bool(_path())


def emit(event: str, **fields: Any) -> None:
    """Appends one event. The line is written and closed at once, so a killed process loses at most its last line."""
    path = _path()
    if not path:
        return
    line = json.dumps({"v": VERSION, "event": event, **_plain(fields)}, allow_nan=False)
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def emit_once(key: Hashable, event: str, **fields: Any) -> None:
    """Appends an event unless `key` was already used for this event and events file in this process."""
    path = _path()
    if not path or (path, event, key) in _said:
        return
    _said.add((path, event, key))
    emit(event, **fields)


def route(
    op: str, implementation: Callable[..., Any], *, layer: int, phase: Phase, reason: str, requested: str = ""
) -> None:
    """Says which implementation of `op` a layer takes, and where that implementation is defined."""
    if not enabled():
        return
    code = inspect.unwrap(implementation).__code__
    emit_once(
        (op, layer, phase, code.co_qualname),
        "route",
        op=op,
        implementation=code.co_qualname,
        layer=layer,
        phase=phase,
        file=_relative(code.co_filename),
        line=code.co_firstlineno,
        reason=reason,
        requested=requested,
    )


def choice(choice: Choice, *, layer: int, phase: Phase) -> None:
    """Passes on what the dispatcher of the kernels picked, as a route, with the kernels that it launched."""
    launched = {"kernels": [asdict(launch) for launch in choice.launches]} if choice.launches else {}
    emit_once(
        (choice.op, layer, phase, choice.implementation),
        "route",
        op=choice.op,
        implementation=choice.implementation,
        layer=layer,
        phase=phase,
        file=choice.file,
        line=choice.line,
        reason=choice.reason,
        requested=choice.requested,
        **launched,
    )


def recorder(*, layer: int, phase: Phase) -> Callable[[Choice], None] | None:
    """What the dispatcher of the kernels is handed, so that its picks become routes; None where nobody listens."""
    return partial(choice, layer=layer, phase=phase) if enabled() else None


def constant(
    value: float, *, site: Literal["topk", "kernel", "epilogue"], layer: int, phase: Phase, branch: str = "routed"
) -> None:
    """Says that the routed scaling factor was multiplied in at `site`; called right beside that multiplication."""
    emit_once(
        (site, layer, phase, branch, value),
        "constant",
        name="routed_scaling_factor",
        value=value,
        site=site,
        layer=layer,
        phase=phase,
        branch=branch,
    )


@cache
def _relative(filename: str) -> str:
    path = Path(filename).resolve()
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else path.as_posix()


def _plain(value: Any) -> Any:
    """JSON has no NaN or infinity: they become the strings 'nan', 'inf' and '-inf'."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
