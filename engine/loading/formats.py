"""Storage formats of a matrix: which tensors make it up, what must be true of them, what they stand for.

Contract: the format is read off the stored tensors (parts and types), never off a config's word for it. A check names
what it found and what it expected.
"""

# N rows, K columns of one matrix; E experts.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from engine.loading.files import StoredTensor
from engine.loading.pieces import row_pieces, scale_rows
from kernels import fp8_block_ref, mxfp4_ref, nvfp4_ref

# The names of the expert methods that take them as they are.
Storage = Literal["none", "nvfp4", "compressed_tensors_nvfp4", "mxfp4", "fp8", "modelopt_fp8"]
Parts = Mapping[str, StoredTensor]

FP8_BLOCK = 128
FOUR_BITS = ("nvfp4", "compressed_tensors_nvfp4", "mxfp4")
_DENSE_DTYPES = ("F32", "BF16", "F16", "F64")
_POWER_SCALES = ("F8_E8M0", "U8")
_CODES = ("weight_packed", "weight")
_SCALES = ("weight_scale", "weight_scale_inv", "scale_inv", "scale")
# The first of each pair divides, the second multiplies.
_GLOBAL_SCALES = ("weight_global_scale", "weight_scale_2")
_INPUT_SCALES = ("input_global_scale", "input_scale")


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix [..., N, K], or a stack of them, as it is stored."""

    storage: Storage
    codes: Tensor
    block_scale: Tensor | None = None
    global_scale: Tensor | None = None

    def stored_as(self, storage: Storage) -> StoredMatrix:
        """The same matrix in the other spelling of NVFP4, or in its own: nothing is rounded anew."""
        assert is_same_number_format(self.storage, storage)
        if storage == self.storage:
            return self
        assert self.global_scale is not None
        return StoredMatrix(storage, self.codes, self.block_scale, 1 / self.global_scale)

    def decode_into(self, out_NK: Tensor) -> None:
        """Writes the numbers that one matrix stands for, piece by piece, in the type of `out_NK` and on its device."""
        block_rows = FP8_BLOCK if self.storage == "fp8" else 1
        num_rows, columns = out_NK.shape
        for rows in row_pieces(num_rows, columns, block_rows, self.codes.device):
            scale = None if self.block_scale is None else scale_rows(self.block_scale, rows, block_rows)
            out_NK[rows] = replace(self, codes=self.codes[rows], block_scale=scale).decode()

    def decode(self) -> Tensor:
        """The numbers it stands for, fp32."""
        factor = self.global_scale
        if self.storage == "modelopt_fp8" and factor is not None:
            return self.codes.float() * factor[..., None, None]
        if self.block_scale is None:
            return self.codes.float()
        if self.storage == "mxfp4":
            return mxfp4_ref.decode(self.codes, self.block_scale)
        if factor is None:
            return fp8_block_ref.decode(self.codes, self.block_scale, FP8_BLOCK)
        return nvfp4_ref.decode(self.codes, self.block_scale, factor if self.storage == "nvfp4" else 1 / factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The parts of a matrix in a checkpoint: which tensor holds codes, block scales, the global scale, and the scale
    that its input was calibrated to."""

    storage: Storage
    codes: StoredTensor
    block_scale: StoredTensor | None = None
    global_scale: StoredTensor | None = None
    input_scale: StoredTensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the numbers that it stands for."""
        *rows, columns = self.codes.shape
        return (*rows, columns * 2 if self.storage in FOUR_BITS else columns)

    def read(self) -> StoredMatrix:
        codes = self.codes.read()
        if self.storage in FOUR_BITS:
            codes = codes.view(torch.uint8)
        scale = None if self.block_scale is None else self.block_scale.read()
        if self.block_scale is not None and self.block_scale.dtype == "U8":
            scale = scale.view(torch.float8_e8m0fnu)  # type: ignore[union-attr]
        if scale is not None and self.storage == "fp8":
            scale = scale.float()
        factor = None if self.global_scale is None else self.global_scale.read().float().reshape(())
        return StoredMatrix(self.storage, codes, scale, factor)

    def row(self, number: int) -> Layout:
        """One matrix of a stack; a scale of the whole stack is a scale of each."""
        scale = None if self.block_scale is None else self.block_scale.row(number)
        return replace(self, codes=self.codes.row(number), block_scale=scale)

    def read_input_scale(self) -> Tensor | None:
        """The fp32 number that codes of the input are multiplied by."""
        if self.input_scale is None:
            return None
        scale = self.input_scale.read().float().reshape(())
        return 1 / scale if divides(self.input_scale) else scale


def is_same_number_format(one: str, other: str) -> bool:
    """Whether codes and block scales of one storage are those of the other, and so are scales of activations."""
    return one == other or {one, other} == {"nvfp4", "compressed_tensors_nvfp4"}


def divides(scale: StoredTensor) -> bool:
    """Whether the name of a global scale says that it divides on decode; the other spelling multiplies."""
    return scale.name.endswith("_global_scale")


def layout_of(parts: Parts, shape: tuple[int, ...]) -> Layout | list[str]:
    """The layout of a tensor with these parts, or every reason why there is none.

    Args:
        shape: what the config makes of it; only matrices, and stacks of them, have a quantised form.
    """
    twice = [f"has {both[0]} and {both[1]}, expected one of them" for both in _rivals(parts)]
    codes, scale, global_scale, input_scale = (
        next((parts[part] for part in spellings if part in parts), None)
        for spellings in (_CODES, _SCALES, _GLOBAL_SCALES, _INPUT_SCALES)
    )
    if codes is None:
        return [*twice, f"has only {', '.join(sorted(parts))}, expected a weight as well"]
    if twice:
        return twice
    layout = _quantised(codes, scale, global_scale, shape)
    return replace(layout, input_scale=input_scale) if isinstance(layout, Layout) else layout


def _rivals(parts: Parts) -> Iterator[list[str]]:
    """Parts of the same meaning under two names: which of them counts would be a guess."""
    for spellings in (_CODES, _SCALES, _GLOBAL_SCALES, _INPUT_SCALES):
        present = [part for part in spellings if part in parts]
        if len(present) > 1:
            yield present[:2]


def _quantised(
    codes: StoredTensor, scale: StoredTensor | None, global_scale: StoredTensor | None, shape: tuple[int, ...]
) -> Layout | list[str]:
    if scale is None and global_scale is None:
        return _dense(codes, shape)
    if scale is None:
        return [f"has a global scale and no block scales, expected {codes.name}_scale beside it"]
    if len(shape) < 2:
        return [f"has a scale beside it, {scale.name}, expected none for a vector"]
    if global_scale is not None:
        storage: Storage = "compressed_tensors_nvfp4" if divides(global_scale) else "nvfp4"
        problems = _packed(codes, scale, shape, nvfp4_ref.BLOCK, ("F8_E4M3",))
        return problems or Layout(storage=storage, codes=codes, block_scale=scale, global_scale=global_scale)
    if codes.dtype in ("U8", "I8"):
        problems = _packed(codes, scale, shape, mxfp4_ref.BLOCK, _POWER_SCALES)
        return problems or Layout(storage="mxfp4", codes=codes, block_scale=scale)
    if codes.dtype != "F8_E4M3":
        return [f"{codes.name} is {codes.dtype} with a scale beside it, expected F8_E4M3, U8 or I8"]
    if scale.shape in ((), (1,)) and scale.dtype in _DENSE_DTYPES:
        return _has_shape(codes, shape) or Layout(storage="modelopt_fp8", codes=codes, global_scale=scale)
    return _has_shape(codes, shape) + _fp8(scale, shape) or Layout(storage="fp8", codes=codes, block_scale=scale)


def _dense(codes: StoredTensor, shape: tuple[int, ...]) -> Layout | list[str]:
    problems = _has_shape(codes, shape)
    if codes.dtype not in _DENSE_DTYPES:
        problems.append(f"is {codes.dtype} without a scale, expected {', '.join(_DENSE_DTYPES)}")
    return problems or Layout(storage="none", codes=codes)


def _packed(
    codes: StoredTensor, scale: StoredTensor, shape: tuple[int, ...], block: int, scale_dtypes: tuple[str, ...]
) -> list[str]:
    *rows, columns = shape
    if columns % block:
        return [f"has K = {columns} columns, expected a multiple of {block} for 4-bit codes"]
    problems = _has_shape(codes, (*rows, columns // 2)) + _has_shape(scale, (*rows, columns // block))
    if codes.dtype not in ("U8", "I8"):
        problems.append(f"{codes.name} is {codes.dtype}, expected U8 (two codes a byte)")
    if scale.dtype not in scale_dtypes:
        problems.append(f"{scale.name} is {scale.dtype}, expected {' or '.join(scale_dtypes)}")
    return problems


def _fp8(scale: StoredTensor, shape: tuple[int, ...]) -> list[str]:
    *experts, rows, columns = shape
    problems = _has_shape(scale, (*experts, -(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)))
    if scale.dtype not in (*_DENSE_DTYPES, *_POWER_SCALES):
        problems.append(f"{scale.name} is {scale.dtype}, expected F32, F8_E8M0 or U8")
    return problems


def _has_shape(tensor: StoredTensor, shape: tuple[int, ...]) -> list[str]:
    return [] if tensor.shape == shape else [f"{tensor.name} has shape {tensor.shape}, config.json makes it {shape}"]
