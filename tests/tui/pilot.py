"""Driving the app in a test: open it on a case, press keys, wait for its threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.message import Message
from textual.pilot import Pilot

from store.store import Store
from tests.tui.fake_gateway import FakeGateway
from tui.app import LivepathApp
from tui.widgets.text_pane import TextPane

_TRIES = 200


class Driver:
    """An open app with what happened in it."""

    def __init__(self, app: LivepathApp, gateway: FakeGateway, pilot: Pilot[None], log: list[Message]) -> None:
        self.app = app
        self.gateway = gateway
        self.pilot = pilot
        self.log = log

    async def press(self, *keys: str) -> None:
        """Presses keys, and waits for what they started."""
        await self.pilot.press(*keys)
        await self.settle()

    async def type(self, words: str) -> None:
        for character in words:
            await self.pilot.press("space" if character == " " else character)

    async def settle(self) -> None:
        await self.pilot.pause()
        await self.app.workers.wait_for_complete()
        await self.pilot.pause()

    async def until(self, true: Callable[[], bool], what: str) -> None:
        """Waits for the watcher's thread to bring something about."""
        for _ in range(_TRIES):
            if true():
                await self.pilot.pause()
                return
            await self.pilot.pause(0.02)
        raise AssertionError(f"never came about: {what}")

    def messages(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.log if isinstance(message, kind)]

    def text(self, selector: str) -> str:
        return self.app.screen.query_one(selector, TextPane).words

    def lines(self) -> list[str]:
        """What the terminal shows, line by line."""
        width, height = self.app.size
        strips = self.app.screen._compositor.render_strips()
        assert len(strips) == height
        assert width
        return [strip.text for strip in strips]

    def shown(self) -> str:
        return "\n".join(self.lines())


@asynccontextmanager
async def open_screen(
    make: Callable[[Path], Store], tmp_path: Path, *, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[Driver]:
    """The app on a case, after its first view arrived."""
    gateway = FakeGateway(make, tmp_path / "case.db")
    async with open_gateway(gateway, size=size) as driver:
        await driver.until(lambda: driver.app.case_view is not None, "a view of the case")
        await driver.settle()
        yield driver


@asynccontextmanager
async def open_gateway(gateway: FakeGateway, *, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Driver]:
    """The app on any gateway, from its first paint on."""
    log: list[Message] = []
    app = LivepathApp(gateway)
    async with app.run_test(size=size, notifications=True, message_hook=log.append) as pilot:
        await pilot.pause()
        yield Driver(app, gateway, pilot, log)


Play = Callable[[Driver], Coroutine[Any, Any, None]]


def play(case: Callable[[Path], Store], tmp_path: Path, acts: Play, *, size: tuple[int, int] = (80, 24)) -> None:
    """Opens the app on a case and lets the test act in it."""

    async def run() -> None:
        async with open_screen(case, tmp_path, size=size) as driver:
            await acts(driver)

    asyncio.run(run())
