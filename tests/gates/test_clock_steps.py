"""Wrong clocks: an actor joins under its old name, whatever time it and its learner read, and no other actor takes its place.

The quick tier is the whole gate. Its waits are those of the protocol (3 s of silence, the lease), not of the machine.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from harness.children import Child

from .conftest import Report
from .kill_lab import Lab

pytestmark = pytest.mark.timeout(600)

DAY_S = 86_400.0
EPOCH_S = -1.79e9
"""The offset to the year 1970, which a machine without a clock battery reads."""

JOIN_S = 10.0
LEASE_S = 4.0
ACKS = 30
RATE = 60.0


class Clocks:
    """One learner with a run directory, and processes that act under few names, one after another or two at a time."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.joined_s: list[float] = []
        self._number = itertools.count()

    def serve(self, clock_s: float) -> None:
        learner = self.lab.learner
        if learner.running:
            learner.kill()
        learner.command[-1] = json.dumps({**json.loads(learner.command[-1]), "clock_s": clock_s})
        self.lab.serving()

    def start(self, clock_s: float, *robots: tuple[str, Path | None]) -> list[Child]:
        """Start an actor for each name and spool. Wait until they have joined and sent segments."""
        actors = []
        for name, spool in robots:
            config: dict[str, Any] = {"spool": str(spool)} if spool is not None else {}
            actor = self.lab.actor(f"{name}{next(self._number)}", "on", rate=RATE, **config)
            actor.command[-1] = json.dumps({**json.loads(actor.command[-1]), "actor_id": name, "clock_s": clock_s})
            actors.append(actor)
        for actor in actors:
            actor.start()
        for actor in actors:
            tail, what = self.lab.traces[actor.name], f"{actor.name}, whose clock is {clock_s:+g} s off, to join"
            self.lab.loop.until(lambda t=tail: t.count("joined") > 0, 2 * JOIN_S, what)  # type: ignore[misc]
            self.joined_s.append(round((tail.last("joined")["at_ns"] - tail.last("life")["at_ns"]) / 1e9, 2))
        self.heard(*actors)
        return actors

    def heard(self, *actors: Child) -> None:
        """Wait until more segments of each actor are in the journal, or in its spool."""
        for actor in actors:
            least = self.kept(actor) + ACKS
            self.lab.loop.until(lambda a=actor, n=least: self.kept(a) >= n, 20.0, f"{ACKS} segments of {actor.name}")  # type: ignore[misc]

    def kept(self, actor: Child) -> int:
        """Return the number of the actor's segments that it knows to be durable, or that are in its spool."""
        tail = self.lab.traces[actor.name]
        return tail.ids("acked") + tail.ids("kept")

    def check(self, report: Report, **figures: Any) -> None:
        """Check that no acknowledged segment is lost, none is in the state twice, and every law held."""
        lab = self.lab
        lab.ask("drain")
        lab.learner.tell("end")
        lab.learner.wait(15.0)
        outcome = lab.outcome()
        report(joined_s=self.joined_s, outcome=str(outcome), **figures)
        outcome.check(delivered=False)  # segments in flight without a spool were lost with their process
        assert outcome.lost == outcome.duplicate == ()
        assert not any(outcome.counted.values())
        assert max(self.joined_s) < JOIN_S


def test_a_clock_that_jumps_locks_no_name(folder: Path, seed: int, report: Report) -> None:
    """The clocks are a day ahead, right, a day back, and in 1970.

    The actor is killed or ends; the learner is killed in between.

    One name has no spool, one has the same spool at each start, and one has lost its spool each time.
    """
    with Lab(folder / "lab", seed, parameters={"steps_per_update": 24}, lease_s=LEASE_S) as lab:
        clocks = Clocks(lab)
        for number, (actor_clock_s, learner_clock_s) in enumerate(
            [(DAY_S, 0.0), (0.0, DAY_S), (-DAY_S, 0.0), (EPOCH_S, -DAY_S), (EPOCH_S, 0.0)]
        ):
            if number != 1:  # once, the learner continues, and knows names that have been silent for less than 3 s
                clocks.serve(learner_clock_s)
            robots = ("none", None), ("same", folder / "spool"), ("lost", folder / f"spool{number}")
            none, same, lost = clocks.start(actor_clock_s, *robots)
            lab.stop(lost)  # the segments of a killed one would never arrive
            if number in (1, 4):
                lab.stop(none, same)
            else:
                none.kill()
                same.kill()
        clocks.check(report)
