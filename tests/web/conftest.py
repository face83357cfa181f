"""Fixtures for the page: stand-ins for learners, and a browser."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .page_kit import StandIn

CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> "Callable[..., StandIn]":
    """Return a function that makes a stand-in at an address, which watchers then reach."""
    from rl4sys_zmq.web import watcher

    from .page_kit import StandIn, StandInConnection

    known: dict[str, StandIn] = {}
    monkeypatch.setattr(watcher, "ASK_S", 0.02)
    monkeypatch.setattr(watcher, "StatusConnection", lambda address, keys: StandInConnection(known[address]))

    def make(address: str = "lab:50051", report: Any = None) -> StandIn:
        known[address] = StandIn(address)
        known[address].report = report
        return known[address]

    return make


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Yield Debian's Chromium, driven by Playwright."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()
