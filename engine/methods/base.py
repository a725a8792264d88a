"""What every expert method offers, and the packed weights it makes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from engine import events
from engine.errors import CheckpointError
from engine.events import Phase
from engine.loading.experts import StoredExperts
from engine.loading.formats import Storage, is_same_number_format
from engine.loading.pieces import row_pieces, scale_rows
from engine.topk import Bypassed, TopKOutput
from kernels import nvfp4_ref
from kernels.errors import KernelError
from kernels.fp8_block_ref import Fp8Experts
from kernels.nvfp4_layout import Nvfp4Experts

if TYPE_CHECKING:
    from engine.experts import FusedMoE
    from engine.runners import MoeRunner


PARTS = ("codes", "block_scale", "global_scale")


@dataclass(frozen=True, slots=True)
class Packed:
    """One projection of all experts as it is stored; scales that a method does not have are None."""

    codes: Tensor
    block_scale: Tensor | None = None
    global_scale: Tensor | None = None
    # What codes of the activations are multiplied by, one fp32 number for all experts; None where the checkpoint
    # says nothing of it.
    input_scale: Tensor | None = None

    def shapes(self) -> Packed:
        """The same without what is in it, for whoever gave the memory back."""
        block_scale, global_scale = (
            part if part is None else part.to("meta") for part in (self.block_scale, self.global_scale)
        )
        return Packed(self.codes.to("meta"), block_scale, global_scale, self.input_scale)

    def rows(self, expert: int, rows: slice, block_rows: int) -> Packed:
        """Some rows of one expert, whole blocks of them, as far as `decode` goes."""
        scale = None if self.block_scale is None else scale_rows(self.block_scale, rows, block_rows)
        one = slice(expert, expert + 1)
        return Packed(
            self.codes[one, rows],
            None if scale is None else scale[one],
            None if self.global_scale is None else self.global_scale[one],
        )

    def put(self, expert: int, one: Packed) -> None:
        """Writes a pack of one expert to its place."""
        for part in PARTS:
            if (stack := getattr(self, part)) is not None:
                stack[expert].copy_(getattr(one, part)[0])


def _stacked(packs: Iterable[Packed], num_experts: int) -> Packed:
    """Packs of one expert into stacks of all, which the first one makes: nothing is held twice."""
    stacks: Packed | None = None
    for expert, one in enumerate(packs):
        if stacks is None:
            pieces = {part: piece for part in PARTS if (piece := getattr(one, part)) is not None}
            stacks = replace(one, **{part: p.new_empty(num_experts, *p.shape[1:]) for part, p in pieces.items()})
        stacks.put(expert, one)
    assert stacks is not None
    return stacks


def _under(pieces: Sequence[Packed]) -> Packed:
    """The rows of one matrix, piece under piece, with the global scale that all of them were given."""
    if len(pieces) == 1:
        return pieces[0]
    codes = torch.cat([piece.codes for piece in pieces], 1)
    scales = [piece.block_scale for piece in pieces if piece.block_scale is not None]
    return Packed(codes, torch.cat(scales, 1) if scales else None, pieces[0].global_scale)


def nvfp4_scale(amax_E: Tensor) -> Tensor:
    """The global scale of matrices with these largest magnitudes: that of a block which holds nothing else."""
    return nvfp4_ref.encode(amax_E[:, None, None].expand(-1, 1, nvfp4_ref.BLOCK))[2]


def nvfp4_of(w13: Packed, w2: Packed) -> Nvfp4Experts:
    """Both projections as the NVFP4 kernels take them; global scales are multipliers."""
    assert w13.block_scale is not None
    assert w2.block_scale is not None
    assert w13.global_scale is not None
    assert w2.global_scale is not None
    return Nvfp4Experts(
        w13_codes=w13.codes,
        w13_scale=w13.block_scale,
        w13_global=w13.global_scale,
        w2_codes=w2.codes,
        w2_scale=w2.block_scale,
        w2_global=w2.global_scale,
    )


class MoEMethod(ABC):
    """Storage of the experts and the way through their computation.

    `runners` names the runners that understand this storage; on a machine without a GPU "auto" takes the first.
    `takes_input_scale` says that activations are rounded with the checkpoint's own scale where it has one.
    `leaves_factor_to_epilogue` says that the method itself never applies the routed scaling factor: where neither
    router nor runner does, the block must.
    """

    name: ClassVar[Storage]
    runners: ClassVar[tuple[str, ...]]
    takes_input_scale: ClassVar[bool] = False
    leaves_factor_to_epilogue: ClassVar[bool] = False
    weight_bits: ClassVar[int]
    activation_bits: ClassVar[int]
    # How many rows share block scales.
    block_rows: ClassVar[int] = 1

    def load(self, weights: Tensor | StoredExperts, layer: int, more: Tensor | None = None) -> Packed:
        """The packed form of experts [E, N, K]: as they are where the checkpoint stores them in this very form.

        Others are encoded one by one: what that needs on the way stays small beside the weights.

        Args:
            more: experts [M, N, K] that come behind them, which take their activations.

        Raises:
            CheckpointError: this form cannot hold the weights: a width that its blocks do not divide, NaN, infinity.
        """
        behind: Sequence[Tensor] = () if more is None else more.unbind()
        count = len(weights) + len(behind)
        if isinstance(weights, Tensor):
            one = partial(self._encoded, name=f"experts of layer {layer}")
            return _stacked(map(one, chain(weights, behind)), count)
        one = partial(self._encoded, name=weights.name)
        input_scale = self._input_scale(weights, layer)
        kept = weights.kept_as(self.name, len(behind))
        if kept is None:
            # `map` lets go of a matrix before it asks for the next.
            return replace(_stacked(map(one, chain(weights.numbers(), behind)), count), input_scale=input_scale)
        packed = Packed(kept.codes, kept.block_scale, kept.global_scale, input_scale)
        for expert, w_NK in enumerate(behind, len(weights)):
            packed.put(expert, one(w_NK))
        return packed

    def _encoded(self, w_NK: Tensor, name: str) -> Packed:
        """The pack of one expert, encoded piece by piece."""
        low, high = w_NK.aminmax()
        amax_1 = torch.maximum(high, -low).float()[None]
        pieces = row_pieces(w_NK.shape[0], w_NK.shape[1], self.block_rows, w_NK.device)
        try:
            return _under([self.encode(w_NK[None, rows], amax_1) for rows in pieces])
        except KernelError as error:
            raise CheckpointError(f"{name} cannot be stored as {self.name}: {error}") from error

    def _input_scale(self, weights: StoredExperts, layer: int) -> Tensor | None:
        """The checkpoint's scale of the activations, where it is one for this format."""
        input_scale = weights.input_scale()
        same = all(is_same_number_format(storage, self.name) for storage in weights.storages)
        if input_scale is None or (self.takes_input_scale and same):
            return input_scale
        why = f"the scale is one for {' and '.join(weights.storages)}" if self.takes_input_scale else "which takes none"
        events.emit_once(
            ("input_scale", layer),
            "ignored",
            setting="input_scale",
            where=f"engine/methods/base.py, layer {layer}",
            reason=f"expert_quant is {self.name}, " + why,
        )
        return None

    def unpacked(self, packed: Packed, dtype: torch.dtype) -> Tensor:
        """`decode` rounded to `dtype`, one piece after the other: no second stack exists on the way."""
        rows, columns = packed.codes.shape[1], packed.codes.shape[2] * (2 if self.weight_bits == 4 else 1)
        stack = packed.codes.new_empty(len(packed.codes), rows, columns, dtype=dtype)
        for expert, own in enumerate(stack):
            for piece in row_pieces(rows, columns, self.block_rows, stack.device):
                own[piece] = self.decode(packed.rows(expert, piece, self.block_rows))[0]
        return stack

    @abstractmethod
    def encode(self, w_ENK: Tensor, amax_E: Tensor | None = None) -> Packed:
        """Packs fp32 weights [E, N, K].

        Args:
            amax_E: the largest magnitudes, fp32, of the matrices that these are some rows of; None for whole matrices.
        """

    @abstractmethod
    def decode(self, packed: Packed) -> Tensor:
        """The fp32 weights [E, N, K] that the packed ones stand for."""

    @abstractmethod
    def quantise_activations(self, x_ND: Tensor, input_scale: Tensor | None = None) -> Tensor:
        """fp32 rows as the low-precision GEMM of this format sees them; rows do not influence each other.

        Args:
            input_scale: the checkpoint's scale of these activations; only formats that take one get one.
        """

    def nvfp4_experts(self, w13: Packed, w2: Packed) -> Nvfp4Experts | None:
        """The weights as the NVFP4 kernels take them, or None where they are in another format."""
        return None

    def fp8_experts(self, w13: Packed, w2: Packed) -> Fp8Experts | None:
        """The weights as the FP8 kernels take them, or None where they are in another format."""
        return None

    @abstractmethod
    def create_moe_runner(self, layer: FusedMoE) -> MoeRunner:
        """The runner of this layer, chosen by `layer.runner_name`."""

    @abstractmethod
    def apply(self, layer: FusedMoE, x_TD: Tensor, topk_output: TopKOutput | Bypassed, phase: Phase) -> Tensor:
        """The weighted sum of the routed experts [T, D]: fp32 by a reference, the tokens' dtype by a kernel."""
