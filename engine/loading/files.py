"""Safetensors files of a folder, memory-mapped: headers at once, bytes when they are asked for.

Contract: a tensor is copied out of the mapping when it is read, some megabytes at a time whose pages are given back at
once, so reading a checkpoint from end to end never holds more of it than the tensor at hand. Shards are listed by
`model.safetensors.index.json` where there is one; without it, every *.safetensors file of the folder counts.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import CheckpointError

INDEX = "model.safetensors.index.json"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
}
# A header longer than this is damage, not a checkpoint; the format's own limit.
MAX_HEADER_BYTES = 100_000_000
# Touching a page of a file can map as much around it: the page cache works in blocks of up to 2 MB.
AROUND_BYTES = 1 << 21
# Of a large tensor so much is copied before its pages are given back.
COPIED_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file: what its header says, and the way to its bytes."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    mapped: mmap.mmap

    def read(self) -> Tensor:
        """A copy of the tensor, as its file stores it."""
        copy = torch.empty(self.shape, dtype=DTYPES[self.dtype])
        if self.start == self.stop:
            return copy
        place = self.start
        for part in copy.view(-1).view(torch.uint8).split(COPIED_BYTES):
            part.copy_(torch.frombuffer(self.mapped, dtype=torch.uint8, count=len(part), offset=place))
            self._give_back(place, place + len(part))
            place += len(part)
        return copy

    def row(self, number: int) -> StoredTensor:
        """One of a stack: the part of it at this number of its first axis."""
        size = (self.stop - self.start) // self.shape[0]
        start = self.start + number * size
        return replace(self, shape=self.shape[1:], start=start, stop=start + size)

    def _give_back(self, start: int, stop: int) -> None:
        """Drops the pages of these bytes from memory, and the neighbours that came along; they can be read again."""
        first = max(0, start - AROUND_BYTES) // mmap.PAGESIZE * mmap.PAGESIZE
        stop = min(stop + AROUND_BYTES, len(self.mapped))
        if hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED, first, stop - first)


def open_folder(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint folder by the name its file gives it.

    Raises:
        CheckpointError: no file, a damaged file, a name in two files, or an index that does not agree with the files.
    """
    index = folder / INDEX
    files = _indexed_files(folder, index) if index.exists() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds no *.safetensors file")
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in _open_file(file):
            if tensor.name in tensors:
                raise CheckpointError(f"{tensor.name} is in {tensors[tensor.name].file.name} and in {file.name}")
            tensors[tensor.name] = tensor
    if index.exists():
        _check_index(index, tensors)
    return tensors


def _indexed_files(folder: Path, index: Path) -> list[Path]:
    files = [folder / name for name in sorted(set(_weight_map(index).values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"{index} names files that are not there: {', '.join(missing)}", hint="Copy the missing shards beside it."
        )
    return files


def _check_index(index: Path, tensors: dict[str, StoredTensor]) -> None:
    named = _weight_map(index)
    homes = {name: tensor.file.name for name, tensor in tensors.items()}
    wrong = [
        f"{name}: the index says {file}, it is in {homes.get(name, 'no file')}"
        for name, file in named.items()
        if homes.get(name) != file
    ]
    wrong += [f"{name}: in {home}, not in the index" for name, home in homes.items() if name not in named]
    if wrong:
        raise CheckpointError(f"{index} does not agree with its shards:\n  " + "\n  ".join(wrong))


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if not all(Path(file).name == file for file in weight_map.values()):
            raise CheckpointError(f"{index} names a file outside its folder")
        return dict(weight_map)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} has no readable weight_map: {error!r}") from error


def _open_file(file: Path) -> list[StoredTensor]:
    try:
        with file.open("rb") as handle:
            # A private mapping: torch wants writable memory, and nothing is ever written.
            mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
        size = int.from_bytes(mapped[:8], "little")
        if len(mapped) < 8 or size > min(MAX_HEADER_BYTES, len(mapped) - 8):
            raise ValueError(f"its header would be {size} bytes long, the file has {len(mapped)}")
        header = json.loads(mapped[8 : 8 + size])
        return [
            _stored(name, file, entry, mapped, 8 + size) for name, entry in header.items() if name != "__metadata__"
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}", hint="Is it a whole safetensors file?") from error


def _stored(name: str, file: Path, entry: dict, mapped: mmap.mmap, data: int) -> StoredTensor:
    dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if dtype not in DTYPES:
        raise ValueError(f"{name} has dtype {dtype}, expected one of {', '.join(DTYPES)}")
    if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
        raise ValueError(f"{name} of shape {shape} lies at bytes {start} to {stop}, expected whole numbers")
    if math.prod(shape) * DTYPES[dtype].itemsize != stop - start or not 0 <= start <= stop <= len(mapped) - data:
        raise ValueError(f"{name} of {dtype} {shape} cannot lie at bytes {start} to {stop} of {len(mapped) - data}")
    return StoredTensor(name, file, dtype, shape, data + start, data + stop, mapped)
