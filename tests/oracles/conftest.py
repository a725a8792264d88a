"""Tests against other people's code. `./run oracles` runs them in an environment that has it; elsewhere they skip."""

from __future__ import annotations

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="one seed of the model instead of three")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick", default=False):
        return
    slow = [item for item in items if getattr(item, "callspec", None) and item.callspec.params.get("case", (0,))[0] > 0]
    items[:] = [item for item in items if item not in slow]
    config.hook.pytest_deselected(items=slow)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
