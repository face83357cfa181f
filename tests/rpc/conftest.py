"""A callback that blocks as long as a test wants."""

import threading
from typing import Any

import pytest

WAIT_S = 10.0


class Blocker:
    """A callback that sets `entered`, blocks until `leave` is set, and returns its payload. `ran` has the payloads."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        self.ran: list[Any] = []

    def __call__(self, payload: Any) -> Any:
        self.entered.set()
        self.leave.wait(WAIT_S)
        self.ran.append(payload)
        return payload


@pytest.fixture
def block() -> Blocker:
    return Blocker()
