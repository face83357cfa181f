"""Real processes that are killed at random moments while they get on with their work, with one owner who forgets none of them."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rl4sys_zmq.resource import Resource
from rl4sys_zmq.testing.children import REAP_S, Child, ProcessFailed

__all__ = ["KillLoop"]

POLL_S = 0.005


class KillLoop(Resource):
    """Owns processes, and kills some of them at random moments while they get on with their work.

    ::

        with KillLoop(seed=1, folder=tmp_path) as loop:
            learner = loop.child("learner", [sys.executable, "learner.py"])
            learner.start()
            loop.run([learner], kills=100, progress=lambda: acked.ids("acked"))

    A child that ends by itself ends every wait with `ProcessFailed`, but for one that says that its address is in use: it is
    started again.
    """

    def __init__(self, *, seed: int, folder: str | os.PathLike[str]) -> None:
        """Makes a loop without children.

        Args:
            seed: of the moments.
            folder: where what the children print goes.
        """
        self.children: dict[str, Child] = {}
        self._rng = random.Random(seed)
        self._folder = Path(folder)
        self._pause = threading.Event()

    def child(self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> Child:
        """A child of this loop, which is not started yet."""
        self.children[name] = Child(name, command, self._folder, env=env)
        return self.children[name]

    def wait(self, seconds: float) -> None:
        """Lets the children go on for a while.

        Raises:
            ProcessFailed: when one ends by itself meanwhile.
        """
        over = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= over, seconds + REAP_S, "a clock")

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Waits for a condition, and watches the children meanwhile.

        Args:
            condition: looked at every few milliseconds.
            timeout_s: how long it may take.
            what: it is, for the message.

        Raises:
            ProcessFailed: when it takes longer, or a child ends by itself.
        """
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
        """Kills and starts again, `kills` times, one of `victims` each time.

        Args:
            victims: they run.
            kills: how many.
            progress: a count of work done that only grows.
            least: by how much it must have grown since the last kill.
            spread_s: after that, up to how long to wait, at random.
            timeout_s: how long that much progress may take.

        Raises:
            ProcessFailed: when it takes longer, or a process ends by itself.
        """
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
        """A random number from the loop's seed."""
        return self._rng.uniform(low, high)

    @property
    def kills(self) -> int:
        """How many there were, of all children."""
        return sum(child.kills for child in self.children.values())

    def check(self) -> None:
        """Looks at the exit codes of all children.

        Raises:
            ProcessFailed: for one that nobody expected.
        """
        for child in self.children.values():
            child.check()

    def close(self) -> None:
        """Ends and collects every child that still runs."""
        for child in self.children.values():
            child.close()

    def _watch(self) -> None:
        for child in self.children.values():
            if not child.running and child.forgive():
                child.start()
            child.check()
