"""Everything the engine raises on purpose.

EngineError
├── ConfigError        a config key, a setting or a combination of settings that cannot work
├── CheckpointError    a checkpoint folder that is missing, incomplete or of the wrong shapes
└── InputError         token ids, positions or a cache that do not fit the call
"""

from __future__ import annotations


class EngineError(Exception):
    """Base class. `hint` is the next step; it is printed on a line of its own."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n{hint}" if hint else message)
        self.message = message
        self.hint = hint


class ConfigError(EngineError):
    pass


class CheckpointError(EngineError):
    pass


class InputError(EngineError):
    pass
