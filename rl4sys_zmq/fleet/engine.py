"""The interface of an engine, which starts actors, reads their reports, and ends them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rl4sys_zmq.fleet.report import ActorReport
from rl4sys_zmq.resource import Resource

TERMINATE_S = 3.0
"""The time between the request to terminate and the kill of an actor, in seconds."""
CONFIG_EXIT_CODE = 2
"""The exit code of an actor that cannot begin, because of its configuration or a file or address that it cannot use."""


class ActorHandle(ABC):
    """One started actor. `ActorEngine.poll` updates it.

    Attributes:
        report: The newest report of the actor. None before the first, which it sends once it acts.
        last_output: The last line of its other output. Empty if there is none.
        exit_code: The exit code, negative for the number of a signal. None while the actor is alive.
    """

    def __init__(self) -> None:
        self.report: ActorReport | None = None
        self.last_output = ""
        self.exit_code: int | None = None

    @property
    def alive(self) -> bool:
        """True until the actor and all processes that it has started have ended."""
        return self.exit_code is None

    @abstractmethod
    def stop(self, grace_s: float) -> None:
        """Begin to end the actor, and return at once. `ActorEngine.poll` does the later steps.

        The actor is drained: it ends its episodes and sends what it has. After `grace_s` seconds it is terminated: it sends what
        it has finished, within half a second. After further `TERMINATE_S` seconds it is killed. An actor that has sent no report
        so far has nothing to drain, and is terminated at once. A second call can only make the end come earlier.
        """


class ActorEngine(Resource):
    """The starter of actors. `close` ends all of them: it terminates them, and kills the rest after `TERMINATE_S` seconds."""

    @abstractmethod
    def start(self, index: int, start: int) -> ActorHandle:
        """Start an actor.

        Args:
            index: The place of the actor in the fleet, from 0.
            start: The number of earlier starts at this place.

        Raises:
            OSError, subprocess.SubprocessError: If the actor cannot be started now.
        """

    @abstractmethod
    def poll(self, timeout_s: float) -> None:
        """Wait for a report or an end of any actor, at most `timeout_s` seconds, and update all handles."""
