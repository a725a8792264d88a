"""One table of a TOML file, read key by key with the type that is expected.

Contract: every reader names file, key, value and what was expected when it refuses; `done` refuses keys that nobody
asked for.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from store.errors import TargetError

_REQUIRED = object()


class Table:
    """A table that remembers which keys were asked for."""

    def __init__(self, values: dict[str, Any], path: Path, name: str = "") -> None:
        self._values = values
        self._path = path
        self._name = name
        self._asked: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._values)

    def names(self) -> list[str]:
        return list(self._values)

    def error(self, key: str, value: object, expected: str) -> TargetError:
        return TargetError(f"{self._path}: `{self._full(key)}` is {value!r}", hint=f"expected {expected}")

    def value(self, key: str, default: object = _REQUIRED) -> Any:
        """The value as it stands in the file.

        Raises:
            TargetError: it is missing and has no default.
        """
        self._asked.append(key)
        if key in self._values:
            return self._values[key]
        if default is _REQUIRED or default is None:
            self._refuse_unknown(only_near=key)
            raise TargetError(f"{self._path}: `{self._full(key)}` is missing", hint="add it; it has no default")
        return default

    def text(self, key: str, default: str | object = _REQUIRED) -> str:
        value = self.value(key, default)
        if not isinstance(value, str):
            raise self.error(key, value, "a text in quotes")
        return value

    def texts(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self.value(key, default)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.error(key, value, "a list of texts in quotes")
        return tuple(value)

    def integer(self, key: str) -> int:
        value = self.value(key)
        if type(value) is not int:
            raise self.error(key, value, "an integer")
        return value

    def positive(self, key: str, default: float) -> float:
        value = self.value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.error(key, value, "a number above 0")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "true or false")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.value(key, {})
        if not isinstance(value, dict):
            raise self.error(key, value, "a table")
        return value

    def text_mapping(self, key: str) -> dict[str, str]:
        values = self.mapping(key)
        for name, value in values.items():
            if not isinstance(value, str):
                raise self.error(f"{key}.{name}", value, "a text in quotes")
        return dict(values)

    def table(self, key: str, default: dict[str, Any] | object = _REQUIRED) -> Table:
        value = self.value(key, default)
        if not isinstance(value, dict):
            raise self.error(key, value, "a table")
        return Table(value, self._path, self._full(key))

    def done(self) -> None:
        """Refuse what is left.

        Raises:
            TargetError: a key is unknown.
        """
        self._refuse_unknown()

    def _refuse_unknown(self, only_near: str = "") -> None:
        """Raise on an unknown key; with `only_near`, only if it looks like a misspelling of that one."""
        for key in self._values:
            if key in self._asked:
                continue
            near = difflib.get_close_matches(key, [only_near] if only_near else self._asked, n=1, cutoff=0.6)
            if near or not only_near:
                hint = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(dict.fromkeys(self._asked))}"
                raise TargetError(f"{self._path}: unknown key `{self._full(key)}`", hint=hint)

    def _full(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key
