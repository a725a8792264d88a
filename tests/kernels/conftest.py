"""Where kernel tests run: on the GPU when there is one, else on Triton's CPU interpreter.

The switch must be set before triton is first imported, its library functions are decorated then.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HAS_GPU = Path("/dev/nvidia0").exists()
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def device() -> str:
    """`cuda` for compiled kernels, `cpu` for interpreted ones."""
    return "cuda" if HAS_GPU else "cpu"


@pytest.fixture(params=[0, 1], ids=["seed0", "seed1"])
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """A CPU generator; inputs are drawn on the CPU and moved, so both machines see the same numbers."""
    return torch.Generator().manual_seed(request.param)
