"""Who computes the experts: each runner has its own weight layout and its own scaling contract."""

from engine.runners.base import MoeRunner, MoeRunnerConfig
from engine.runners.cutlass import CutlassRunner
from engine.runners.marlin import MarlinRunner
from engine.runners.reference import ReferenceRunner
from engine.runners.triton import TritonRunner
from engine.runners.trtllm import TrtllmRunner

RUNNERS: dict[str, type[MoeRunner]] = {
    runner.name: runner for runner in (ReferenceRunner, TritonRunner, MarlinRunner, CutlassRunner, TrtllmRunner)
}

__all__ = [
    "RUNNERS",
    "CutlassRunner",
    "MarlinRunner",
    "MoeRunner",
    "MoeRunnerConfig",
    "ReferenceRunner",
    "TritonRunner",
    "TrtllmRunner",
]
