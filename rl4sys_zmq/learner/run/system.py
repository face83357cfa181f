"""The thread that measures the processes of a learner and their machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path

from rl4sys_zmq.errors import Closed, ConfigError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.machine import Usage, UsageSampler
from rl4sys_zmq.resource import Worker

log = get_logger(__name__)

FIRST_S = 1.0
ANSWER_S = 10.0
Note = Callable[[Mapping[int, Usage], Mapping[int, str]], Future[Mapping[int, str]]]
"""A function that takes figures and the clients of the workers among them. It returns the workers of now, with their clients."""


class SystemThread(Worker):
    """A thread that passes on the figures of this process and of its workers at regular intervals, if psutil is installed."""

    def __init__(self, every_s: float, run_dir: Path | None, note: Note) -> None:
        super().__init__("rl4sys-system")
        self._every_s, self._run_dir, self._note = every_s, run_dir, note

    def run(self) -> None:
        """Measure until `stop` is called or the learner has closed. This is the body of the thread."""
        try:
            sampler = UsageSampler(self._run_dir)
        except ConfigError as exc:
            log.warning("the learner records no figures of its machine: %s", exc)
            return
        wait_s = min(FIRST_S, self._every_s)
        clients: Mapping[int, str] = {}
        while not self._stop_asked.wait(wait_s):
            wait_s = self._every_s
            try:
                clients = self._note(sampler.sample(clients), clients).result(ANSWER_S)
            except FutureTimeout:  # the gateway is busy; its own alarms say so
                continue
            except Closed:
                return
