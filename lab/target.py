"""livepath.toml: which repository is under suspicion, and how it is run.

Contract: `Target.load` reads the file once and checks all of it; a key it does not know is an error that names the
file, the key and the nearest valid key. Paths are absolute after loading, except globs, which stay relative to the
file's folder. `python` left out means the interpreter that runs Livepath; a bare name is looked up on PATH, a name
with a slash is relative to the file.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.toml import Table
from store.errors import TargetError

SCHEMA = 1
_GOOD = re.compile(r"\s*(<=|>=|==|<|>)\s*([-+0-9.eE]+|[-+]?inf)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Good:
    """The absolute judgement of one arm: `metric operator number`."""

    operator: str
    number: float

    def holds(self, value: float) -> bool:
        """Whether `value` satisfies it; NaN never does."""
        match self.operator:
            case "<":
                return value < self.number
            case "<=":
                return value <= self.number
            case ">":
                return value > self.number
            case ">=":
                return value >= self.number
            case _:
                return value == self.number


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A named measurement command."""

    name: str
    command: str
    metric: str = ""  # "" = the mean of the items' score, or the exit code where there are none
    higher_is_better: bool = True
    margin: float = 0.05
    good: Good | None = None
    timeout_s: float = 300.0
    seeds: tuple[int, ...] = (0,)
    controls: dict[str, str] = field(default_factory=dict)  # kind of fault -> .patch file, relative to livepath.toml


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server one start of which serves all probes of an arm."""

    start: str
    ready: str
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A repository and how to run it."""

    path: Path  # of livepath.toml
    text: str  # its text
    repo: Path
    base: str
    head: str
    patches: tuple[str, ...]
    candidates: tuple[str, ...]
    flags: dict[str, tuple[str, str]]  # NAME -> (off, on)
    python: Path
    env: dict[str, str]
    setup: str
    trace: tuple[str, ...]
    knobs: tuple[str, ...]
    probes: dict[str, Probe]

    @property
    def folder(self) -> Path:
        """Where livepath.toml lies; globs and control patches are relative to it."""
        return self.path.parent

    def probe(self, name: str) -> Probe:
        """The probe of that name.

        Raises:
            TargetError: there is none; the message names the nearest.
        """
        if name in self.probes:
            return self.probes[name]
        raise TargetError(
            f"{self.path.name} has no probe `{name}`", hint=f"its probes are: {', '.join(self.probes) or 'none'}"
        )

    @classmethod
    def load(cls, path: Path) -> Target:
        """Read livepath.toml, or the livepath.toml of a folder.

        Raises:
            TargetError: the file is missing, is not TOML, or says something it cannot say.
        """
        path = (path / "livepath.toml" if path.is_dir() else path).resolve()
        text = _read(path)
        try:
            top = Table(tomllib.loads(text), path)
        except tomllib.TOMLDecodeError as error:
            raise TargetError(f"{path} is not TOML: {error}", hint="mend that line") from error
        schema = top.integer("schema")
        if schema != SCHEMA:
            raise TargetError(
                f"{path}: schema is {schema}, this Livepath reads {SCHEMA}", hint="take a Livepath of that schema"
            )
        target = _target(top.table("target"), path, text, _probes(top.table("probe", {})))
        if server := top.table("server", {}):
            _server(server)
            raise TargetError(
                f"{path}: [server] is understood, but this Livepath cannot start one yet",
                hint="remove [server] and let each probe's command start what it needs",
            )
        top.done()
        return target


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise TargetError(f"{path} does not exist", hint="write one, see the guide on livepath.toml") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"{path} cannot be read: {error}", hint="it must be a readable UTF-8 file") from error


def _target(table: Table, path: Path, text: str, probes: dict[str, Probe]) -> Target:
    patches = table.texts("patches", ())
    flags = {name: _flag(table, name, values) for name, values in table.mapping("flags").items()}
    # Patch files or flags alone make a stack on whatever is checked out; commits need both ends.
    default = "HEAD" if patches or flags else None
    base = table.text("base", default)
    target = Target(
        path=path,
        text=text,
        repo=(path.parent / table.text("repo", ".")).resolve(),
        base=base,
        head=table.text("head", base if default else None),
        patches=patches,
        candidates=table.texts("candidates", ()),
        flags=flags,
        python=_interpreter(table.text("python", ""), path),
        env=table.text_mapping("env"),
        setup=table.text("setup", ""),
        trace=table.texts("trace", (".",)),
        knobs=table.texts("knobs", ()),
        probes=probes,
    )
    for folder in target.trace:
        if Path(folder).is_absolute() or ".." in Path(folder).parts:
            raise TargetError(f"{path}: trace `{folder}` leaves the repository", hint="name a folder inside it")
    if not target.repo.is_dir():
        raise TargetError(f"{path}: repo `{target.repo}` is no folder", hint="`repo` is relative to livepath.toml")
    table.done()
    return target


def _flag(table: Table, name: str, values: Any) -> tuple[str, str]:
    if not isinstance(values, list) or len(values) != 2 or not all(isinstance(value, str) for value in values):
        raise table.error(f"flags.{name}", values, 'two texts, the off and the on value, as in ["0", "1"]')
    return values[0], values[1]


def _probes(tables: Table) -> dict[str, Probe]:
    probes = {}
    for name in tables.names():
        table = tables.table(name)
        probes[name] = Probe(
            name=name,
            command=table.text("command"),
            metric=table.text("metric", ""),
            higher_is_better=table.boolean("higher_is_better", True),
            margin=table.positive("margin", 0.05),
            good=_good(table),
            timeout_s=table.positive("timeout_s", 300.0),
            seeds=_seeds(table),
            controls=table.text_mapping("controls"),
        )
        table.done()
    return probes


def _good(table: Table) -> Good | None:
    text = table.text("good", "")
    match = _GOOD.fullmatch(text)
    if match:
        try:
            return Good(operator=match[1], number=float(match[2]))
        except ValueError:
            match = None
    if text:
        raise table.error("good", text, 'an operator and a number, as in ">= 0.95"')
    return None


def _seeds(table: Table) -> tuple[int, ...]:
    seeds = table.value("seeds", [0])
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise table.error("seeds", seeds, "a list of at least one integer")
    return tuple(dict.fromkeys(seeds))


def _server(table: Table) -> Server:
    server = Server(start=table.text("start"), ready=table.text("ready"), timeout_s=table.positive("timeout_s", 600.0))
    table.done()
    return server


def _interpreter(name: str, path: Path) -> Path:
    if not name:
        return Path(sys.executable)
    if os.sep in name:
        # Not resolved further: the path through a virtual environment's symlink is what selects that environment.
        found = Path(os.path.normpath(path.parent / Path(name).expanduser()))
        if found.is_file():
            return found
    elif on_path := shutil.which(name):
        return Path(on_path)
    raise TargetError(f"{path}: python `{name}` was not found", hint="name an interpreter on PATH, or a path to one")
