"""How many torch calls a decode step makes beside its kernels, and forks that share what it keeps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

HAS_GPU = Path("/dev/nvidia0").exists()
if not HAS_GPU:
    # Before triton is first imported: its library functions are decorated then.
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from triton.runtime.jit import KernelInterface  # noqa: E402

from benchmarks.random_model import random_tensors  # noqa: E402
from engine.engine import Engine  # noqa: E402
from engine.settings import EngineSettings, Kernels  # noqa: E402
from tests.engine.test_kernels_in_engine import CONFIG  # noqa: E402

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.skipif(HAS_GPU, reason="the interpreter is for machines without a GPU"),
]
# Calls that compute something, in a step that closes no entry, of one sequence in a sliding layer, a CSA layer that
# picks and an HCA layer. Each bound is what was counted and 4, for what a next version of torch does otherwise. It is
# there so that what depends on no layer (rows of candidates, turns, counts) is not done again in each of them: when it
# was, casts were made token by token and norms, rope and the shared expert had no kernel, the kernels' way took 223
# calls in bf16 and 160 in fp32. What is left are mostly products. The references gather no rows: theirs are the ops.
BOUNDS: dict[tuple[Kernels, torch.dtype], int] = {
    ("triton", torch.bfloat16): 44 + 4,
    ("triton", torch.float32): 37 + 4,
    ("reference", torch.float32): 209 + 4,
}


class Calls(TorchDispatchMode):
    """The names of calls that are no views and no allocations; while a kernel is interpreted none is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = {tensor.untyped_storage().data_ptr() for tensor in tree_leaves((args, kwargs)) if _is_tensor(tensor)}
        view = not func._schema.is_mutable and any(
            tensor.untyped_storage().data_ptr() in given for tensor in tree_leaves(out) if _is_tensor(tensor)
        )
        if not (self.paused or view or name in ("empty", "empty_like", "new_empty")):
            self.names.append(name)
        return out


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


@pytest.mark.parametrize(("kernels", "dtype"), BOUNDS, ids=lambda value: str(value).removeprefix("torch."))
def test_a_decode_step_does_once_what_depends_on_no_layer(
    kernels: Kernels, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    settings = EngineSettings(dtype=dtype, runner="marlin" if kernels == "triton" else "reference", kernels=kernels)
    engine = Engine(CONFIG, random_tensors(CONFIG, "cpu"), settings)
    _, cache = engine.prefill(torch.zeros(1, 12, dtype=torch.int64), [])
    # A step before the counted one: it closes no entry either, so the rows of its candidates stay.
    engine.decode(torch.tensor([1]), cache)
    calls = Calls()

    def started(kernel: Any, grid: Any) -> Any:
        def start(*args: Any, **kwargs: Any) -> None:
            calls.paused = True
            kernel.run(*args, grid=grid, warmup=False, **kwargs)
            calls.paused = False

        return start

    monkeypatch.setattr(KernelInterface, "__getitem__", started)
    with calls:
        engine.decode(torch.tensor([2]), cache)

    assert len(calls.names) <= BOUNDS[kernels, dtype], sorted(calls.names)


def test_forks_in_turn_attend_to_their_own_rows_while_windows_fill_and_entries_close() -> None:
    torch.set_num_threads(1)
    tokens = torch.randint(CONFIG.vocab_size, (2, 6), generator=torch.Generator().manual_seed(1))
    prefilled, found = 2, []
    for kernels in ("reference", "triton"):
        engine = Engine(CONFIG, random_tensors(CONFIG, "cpu"), EngineSettings(runner="marlin", kernels=kernels))
        _, alone = engine.prefill(tokens[:1, :prefilled], [])
        forked = alone.fork(2)
        steps = []
        # The same positions with one sequence and with two. What is picked is compared in test_kernels_in_engine.
        for at in range(prefilled, tokens.shape[1] + 1):
            steps += [engine.decode(tokens[:1, at - 1], alone), engine.decode(tokens[:, at - 1], forked)]
        found.append(torch.cat(steps))

    assert (found[1] - found[0]).norm() / found[0].norm() < 1e-5
