"""Sessions of simulated actors, recorded call by call. The tests of the C++ library replay them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simulation.native_session import Row, WatchedSession
from simulation.schedule import Schedule
from simulation.sim_actor import ActorParts
from simulation.simulator import simulate

SEEDS = range(24)


class _RecordedSession(WatchedSession):
    def begin(self, hello: dict[str, Any], seed: int, coded: bool) -> None:
        self.__dict__["record"] = {"hello": hello, "seed": seed, "calls": []}

    def watch(self, name: str, arguments: Row, rows: Row, seen: dict[str, Any]) -> None:
        self.record["calls"].append({"name": name, "arguments": arguments, "rows": rows, "seen": seen})


def recorded_sessions() -> Iterator[dict[str, Any]]:
    """Run a few random schedules. Return what each session was asked, and what it did."""
    for seed in SEEDS:
        sessions: list[_RecordedSession] = []

        def begun(*arguments: Any, into: list[_RecordedSession] = sessions) -> Any:
            into.append(_RecordedSession(*arguments))
            return into[-1]

        drawn = Schedule.draw(random.Random(seed))
        simulate(seed, schedule=replace(drawn, spooled=False), actor=ActorParts(session=begun))
        yield from (session.record for session in sessions)
