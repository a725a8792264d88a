"""Who computes the experts: each runner has its own weight layout and its own scaling contract."""

from engine.runners.base import MoeRunner, MoeRunnerConfig
from engine.runners.marlin import MarlinRunner
from engine.runners.reference import ReferenceRunner

__all__ = ["MarlinRunner", "MoeRunner", "MoeRunnerConfig", "ReferenceRunner"]
