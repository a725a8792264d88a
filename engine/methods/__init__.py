"""How the routed experts are stored and computed: one method per quantisation."""

from engine.methods.base import MoEMethod, Packed
from engine.methods.compressed_tensors import CompressedTensorsNvFp4MoEMethod
from engine.methods.fp8 import Fp8MoEMethod
from engine.methods.modelopt_fp8 import ModelOptFp8MoEMethod
from engine.methods.mxfp4 import Mxfp4MoEMethod
from engine.methods.nvfp4 import NvFp4MoEMethod
from engine.methods.unquantized import UnquantizedMoEMethod

METHODS: dict[str, type[MoEMethod]] = {
    "none": UnquantizedMoEMethod,
    "fp8": Fp8MoEMethod,
    "nvfp4": NvFp4MoEMethod,
    "modelopt_fp8": ModelOptFp8MoEMethod,
    "mxfp4": Mxfp4MoEMethod,
    "compressed_tensors_nvfp4": CompressedTensorsNvFp4MoEMethod,
}

__all__ = ["METHODS", "Fp8MoEMethod", "MoEMethod", "NvFp4MoEMethod", "Packed", "UnquantizedMoEMethod"]
