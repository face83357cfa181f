"""A test loop that kills child processes at random moments while they work."""

import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.children import REAP_S, Child, ProcessFailed
from rl4sys_zmq.resource import Resource

POLL_S = 0.005


class KillLoop(Resource):
    """A loop that owns child processes and kills some of them at random moments while they work.

    If a child ends by itself, every wait raises `ProcessFailed`. But a child that reports its address as in use is restarted.
    """

    def __init__(self, *, seed: int, folder: str | os.PathLike[str]) -> None:
        self.children: dict[str, Child] = {}
        self._rng = random.Random(seed)
        self._folder = Path(folder)
        self._pause = threading.Event()

    def child(self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> Child:
        self.children[name] = Child(name, command, self._folder, env=env)
        return self.children[name]

    def wait(self, seconds: float) -> None:
        over = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= over, seconds + REAP_S, "a clock")

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            self._watch()
            if time.monotonic() >= deadline:
                said = "".join(f"\n{name}{child.said()}" for name, child in self.children.items())
                raise ProcessFailed(f"{what}: not within {timeout_s:g} s{said}")
            self._pause.wait(POLL_S)

    def run(
        self,
        victims: Sequence[Child],
        *,
        kills: int,
        progress: Callable[[], int],
        least: int = 200,
        spread_s: float = 0.3,
        timeout_s: float = 30.0,
    ) -> None:
        """Kill and restart one of `victims` at random, `kills` times."""
        for number in range(1, kills + 1):
            before = progress()
            for victim in victims:
                victim.prepare()
            self.until(lambda b=before: progress() - b >= least, timeout_s, f"{least} more before kill {number} of {kills}")  # type: ignore[misc]
            self.wait(self._rng.uniform(0.0, spread_s))
            victim = self._rng.choice(list(victims))
            victim.kill()
            victim.start()

    def uniform(self, low: float, high: float) -> float:
        return self._rng.uniform(low, high)

    @property
    def kills(self) -> int:
        return sum(child.kills for child in self.children.values())

    def check(self) -> None:
        for child in self.children.values():
            child.check()

    def close(self) -> None:
        """Kill every child that still runs and wait for its end."""
        for child in self.children.values():
            child.close()

    def _watch(self) -> None:
        for child in self.children.values():
            if not child.running and child.forgive():
                child.start()
            child.check()
