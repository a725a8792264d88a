"""Shared by every room's tests: GPU tests are skipped by name where there is no CUDA device.

Kept to pytest alone, so that the kernel tests also run on a machine that has only torch, triton, numpy and pytest.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

try:
    from hypothesis import settings
except ImportError:
    pass  # the machine with the GPU has none, and its tests need none
else:
    # CI tries the same examples every time: what it finds must be what the change did.
    settings.register_profile("ci", derandomize=True, deadline=None)
    if os.environ.get("CI"):
        settings.load_profile("ci")


def has_gpu() -> bool:
    """Whether the driver's device node exists; asking torch would load it for tests that need none."""
    return Path("/dev/nvidia0").exists()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if has_gpu():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; none on this machine"))
