"""The report of an actor: one JSON line on its standard output."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Self

REPORT_S = 1.0
"""The time between two reports, in seconds."""
MAX_REPORT_BYTES = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorReport:
    """The figures of one actor since its start.

    Attributes:
        state: The state of its session with the learner: ``joining``, ``joined``, ``refused`` or ``closed``.
        version: The version of its policy; -1 before the first.
        uptime_s: By the actor's clock.
        episodes: Number of episodes that have ended.
        returns: Number of episodes in `mean_return`, at most 100.
        mean_return: Mean return of the last `returns` episodes. None before the first.
        credit_wait_s: Seconds that it has waited for credit or for newer weights.
        done: True if the actor has ended in order: it has run all episodes that were requested, or it was drained.
    """

    actor_id: str
    state: str
    version: int
    uptime_s: float
    steps: int
    episodes: int
    returns: int
    mean_return: float | None
    credit_wait_s: float
    done: bool

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
        numbers = [values[name] for name in ("version", "uptime_s", "steps", "episodes", "returns", "credit_wait_s")]
        texts = [values[name] for name in ("actor_id", "state")]
        mean = values["mean_return"]
        valid = (
            all(isinstance(number, int | float) for number in numbers)
            and all(isinstance(text, str) for text in texts)
            and (mean is None or isinstance(mean, int | float))
            and isinstance(values["done"], bool)
        )
        return cls(**values) if valid else None
