"""How every launcher starts a kernel, so that whoever listens learns which kernels ran and with which constants.

Contract: `launch(kernel, grid)(*args, **constants)` is `kernel[grid](*args, **constants)`. Inside `heard()` each launch
is noted as well: constants are what the launcher gives by keyword, compile-time constants and launch options. Without
a listener a launch costs one look at a context variable more. Needs no triton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

Constant = int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start of a kernel; `file` is relative to the folder that holds `kernels/`, `line` is the kernel's first."""

    name: str
    file: str
    line: int
    constants: dict[str, Constant]


_heard: ContextVar[list[Launch] | None] = ContextVar("heard", default=None)


@contextmanager
def heard() -> Iterator[list[Launch]]:
    """The launches inside, in their order."""
    launches: list[Launch] = []
    token = _heard.set(launches)
    try:
        yield launches
    finally:
        _heard.reset(token)


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., Any]:
    """What starts `kernel` over `grid` once it is called with the kernel's arguments."""
    start: Callable[..., Any] = kernel[grid]
    launches = _heard.get()
    if launches is None:
        return start

    def noted(*args: Any, **constants: Any) -> Any:
        file, line = place_of(kernel.fn.__code__)
        plain = {name: _plain(value) for name, value in constants.items()}
        launches.append(Launch(name=kernel.fn.__name__, file=file, line=line, constants=plain))
        return start(*args, **constants)

    return noted


@cache
def place_of(code: CodeType) -> tuple[str, int]:
    """The file, relative to the folder that holds `kernels/`, and the first line of a function."""
    return Path(code.co_filename).resolve().relative_to(ROOT).as_posix(), code.co_firstlineno


def _plain(value: Any) -> Constant:
    return value if value is None or isinstance(value, int | float | str) else str(value)
