"""How the routed experts are stored and computed: one method per quantisation."""

from engine.methods.base import MoEMethod, Packed
from engine.methods.fp8 import Fp8MoEMethod
from engine.methods.nvfp4 import NvFp4MoEMethod
from engine.methods.unquantized import UnquantizedMoEMethod

METHODS: dict[str, type[MoEMethod]] = {
    "none": UnquantizedMoEMethod,
    "fp8": Fp8MoEMethod,
    "nvfp4": NvFp4MoEMethod,
}

__all__ = ["METHODS", "Fp8MoEMethod", "MoEMethod", "NvFp4MoEMethod", "Packed", "UnquantizedMoEMethod"]
