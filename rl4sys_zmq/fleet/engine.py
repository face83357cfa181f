"""The interface of an engine, which starts actors, reads their reports, and ends them; and the report of an actor."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import Self

from rl4sys_zmq.resource import Resource

REPORT_S = 1.0
"""The time between two reports, in seconds."""
MAX_REPORT_BYTES = 16_384
TERMINATE_S = 3.0
"""The time between the request to terminate and the kill of an actor, in seconds."""
CONFIG_EXIT_CODE = 2
"""The exit code of an actor that cannot begin, because of its configuration or a file or address that it cannot use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorReport:
    """The metrics of one actor since its start."""

    actor_id: str
    state: str  # the state of its session with the learner: ``joining``, ``joined``, ``refused`` or ``closed``
    version: int  # the version of its policy; -1 before the first
    uptime_s: float  # by the actor's clock
    steps: int
    episodes: int  # number of episodes that have ended
    returns: int  # number of episodes in `mean_return`, at most 100
    mean_return: float | None  # mean return of the last `returns` episodes. None before the first
    credit_wait_s: float  # seconds that it has waited for credit or for newer weights
    done: bool  # True if the actor has ended in order: it has run all episodes that were requested, or it was drained

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, line: bytes) -> Self | None:
        """Return the report in a line, or None if the line is not a report."""
        if not line.startswith(b"{") or len(line) > MAX_REPORT_BYTES:
            return None
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if not isinstance(values, dict) or values.keys() != {field.name for field in fields(cls)}:
            return None
        kinds = {"actor_id": str, "state": str, "mean_return": int | float | None, "done": bool}
        valid = all(isinstance(value, kinds.get(name, int | float)) for name, value in values.items())
        return cls(**values) if valid else None


class ActorHandle(ABC):
    """A handle to one started actor. `ActorEngine.poll` updates the handle.

    Attributes:
        report: The newest report of the actor. None before the first report, which the actor sends once it acts.
        last_output: The last line of the actor's output, apart from reports. Empty if there is none.
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
    """The base class of a fleet's engines, which start actors and follow them.

    `close` terminates all actors (SIGTERM), and kills the rest after `TERMINATE_S` seconds.
    """

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
