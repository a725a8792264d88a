"""Dataclasses to SQLite rows and back, driven by the type hints of `store.models`.

Contract: tuples, dicts and `Predicate` are JSON text; bools are 0 or 1; a NaN in a float column is stored as NULL
(SQLite has no NaN) and read back as NaN where the field is a plain `float`. Inside JSON, NaN and infinities are the
strings "NaN", "Infinity" and "-Infinity". Text that is not valid Unicode (undecodable bytes of a repository) gets
U+FFFD in its place.
"""

from __future__ import annotations

import json
import math
import types
from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from store.models import Predicate

T = TypeVar("T")
Row = dict[str, Any]

_KINDS: dict[type, dict[str, str]] = {}  # resolving type hints is slow, and every row needs them


def to_row(thing: Any) -> Row:
    """Every field of a dataclass as something SQLite takes."""
    return {name: to_cell(getattr(thing, name)) for name in kinds(type(thing))}


def from_row(cls: type[T], row: Row) -> T:
    """A dataclass from a row that holds at least its fields."""
    return cls(**{name: from_cell(kind, row[name]) for name, kind in kinds(cls).items()})


def kinds(cls: type) -> dict[str, str]:
    """How each field of a dataclass is stored: pairs, tuple, dict, predicate, bool, float, float? or plain."""
    if cls not in _KINDS:
        hints = get_type_hints(cls)
        _KINDS[cls] = {field.name: _kind(hints[field.name]) for field in fields(cls)}
    return _KINDS[cls]


def _kind(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return _kind(next(arm for arm in get_args(hint) if arm is not types.NoneType)).replace("float", "float?")
    origin = get_origin(hint) or hint
    if origin is tuple:
        return "pairs" if get_origin(get_args(hint)[0]) is tuple else "tuple"
    named = {dict: "dict", Predicate: "predicate", bool: "bool", float: "float"}
    return named.get(origin, "plain")


def to_cell(value: Any) -> Any:
    """One value as SQLite takes it."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, str):
        return unicode_only(value)
    if is_dataclass(value) and not isinstance(value, type):
        return to_json(asdict(value))
    if isinstance(value, (tuple, list, dict)):
        return to_json(value)
    return value


def from_cell(kind: str, cell: Any) -> Any:
    """One value as the dataclass holds it."""
    if cell is None:
        return math.nan if kind == "float" else None
    match kind:
        case "dict":
            return json.loads(cell)
        case "tuple":
            return tuple(json.loads(cell))
        case "pairs":
            return tuple(tuple(pair) for pair in json.loads(cell))
        case "predicate":
            fields = json.loads(cell)
            return Predicate(**fields | {"number": float(fields["number"])})  # an infinity is a string in JSON
        case "bool":
            return bool(cell)
        case _:
            return cell


def to_json(value: Any) -> str:
    """Standard JSON, keys in the order given."""
    return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def unicode_only(text: str) -> str:
    """The text with lone surrogates replaced, so that it can be written as UTF-8."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {unicode_only(str(key)): _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    if isinstance(value, str):
        return unicode_only(value)
    return value
