"""Kills between random attacks: hostile names, poison, damaged files, deleted files and changed clocks.

After each kill the learner starts again on the remaining files. The conservation law holds at each sample. No acknowledged
segment is lost without being counted and reported, and none is trained on twice.
"""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.children import Child
from kit import play

from .conftest import LabForm, Report, Tier, join
from .kill_lab import Lab
from .test_journal_loss import AT_REST, UNDER_IT
from .test_names import NAMES
from .test_state_faults import more

pytestmark = pytest.mark.timeout(3_600)

DAY_S = 86_400.0
CLOCKS_S = (DAY_S, 0.0, -DAY_S, 30 * DAY_S, -1.79e9)
POISON = (
    *(("observations", value) for value in (3.4028234663852886e38, -3.4028234663852886e38, 1e30, 1e19)),
    *(("rewards", value) for value in (3.4028234663852886e38, 1e30, -1e19)),
)
DELETED = ("file", "both files", "log", "directory", "replaced")
DAMAGED = ("header", "zeros", "empty", "deleted")
ATTACKS = ("name", "poison", "clock", "deletion", "damage")
JOIN_S = 15.0
ACKS = 40


def set_clock(process: Child, clock_s: float, **more: Any) -> dict[str, Any]:
    """Change the clock with which a process starts next, and return its options."""
    options = {**json.loads(process.command[-1]), "clock_s": clock_s, **more}
    process.command[-1] = json.dumps(options)
    return options


class Siege:
    """A learner with honest actors, and the attacks on it."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab, self._rng = lab, random.Random(seed)
        self.actors = [lab.actor(f"a{i}", "on", rate=100.0, overflow=o) for i, o in enumerate(("drop_oldest", "wait"))]
        self.poisons = 0
        self.named: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self._clocky: Child | None = None
        for actor in self.actors:
            actor.start()

    def attack(self, kind: str) -> None:
        self.done[kind] += 1
        match kind:
            case "name":
                name = self._rng.choice(NAMES)
                self._play(name, name, "rewards", 1.0)
                self.named[name] += 1
            case "poison":
                self._play("on", f"poisoner {self.poisons}", *self._rng.choice(POISON))
                self.poisons += 1
            case "clock":
                self._set_a_clock()
            case "deletion":
                UNDER_IT[self._rng.choice(DELETED)](self.lab)
                ready = lambda: self.lab.ask("status")["journal"].get("rescued", 0) >= 1  # noqa: E731
                self.lab.loop.until(ready, 20.0, "a journal made anew")

    def kill(self, kind: str) -> None:
        """Kill the learner, damage its files or change its clock if that is the attack, and start it again."""
        self.lab.learner.kill()
        if kind == "clock":
            set_clock(self.lab.learner, self._rng.choice((DAY_S, 0.0, -DAY_S)))
        if kind == "damage":
            AT_REST[self._rng.choice(DAMAGED)](self.lab.run_dir, self._rng)
            self.lab.reconfigure(resume="accept-loss")
        self.lab.serving(40.0)
        self.lab.reconfigure(resume="auto")

    def _play(self, client_id: str, actor_id: str, column: str, value: float) -> None:
        algorithm = "RECORD_ON" if client_id == "on" else "RECORD_NOTHING"
        options = {"client_id": client_id, "actor_id": actor_id, "algorithm_name": algorithm, "connect_timeout_s": JOIN_S}
        with join(self.lab.address, **options) as agent:
            observation = np.full(4, value if column == "observations" else 0.0, np.float32)
            play(agent, [observation], value if column == "rewards" else 1.0)
            agent.flush(JOIN_S)

    def _set_a_clock(self) -> None:
        """End the named actor, and start another process of that name with a changed clock."""
        if self._clocky is not None:
            self.lab.stop(self._clocky)
        actor = self._clocky = self.lab.actor(f"clock{len(self.actors)}", "on", rate=50.0)
        options = set_clock(actor, self._rng.choice(CLOCKS_S), actor_id="clocky")
        actor.start()
        self.actors.append(actor)
        joined = self.lab.traces[actor.name]
        self.lab.loop.until(
            lambda: joined.count("joined") > 0, JOIN_S, f"an actor whose clock is {options['clock_s']:+.0f} s off"
        )

    def finish(self) -> dict[str, Any]:
        """Let the learner receive and train on everything. Return its last status."""
        return self.lab.finish(*(actor for actor in self.actors if actor.running), timeout_s=120.0)


def test_kills_among_attacks(folder: Path, seed: int, tier: Tier, report: Report, lab_form: LabForm) -> None:
    rng = random.Random(seed + 1)
    kills = tier.size(6, 100)
    with Lab(folder, seed, program=lab_form.program, checkpoint_every_s=0.2, lease_s=3_600.0) as lab:
        lab.serving()
        siege = Siege(lab, seed)
        kinds = [*ATTACKS, *(rng.choice(ATTACKS) for _ in range(kills))][:kills]
        for kind in kinds:
            more(lab, ACKS)
            if kind == "damage":
                siege.done[kind] += 1
            else:
                siege.attack(kind)
            siege.kill(kind)
        more(lab, ACKS)
        status = siege.finish()
        outcome = lab.outcome()
    numbers = status["clients"]["on"]
    verdicts, gone = numbers["verdicts"], numbers["rolled_back"]
    report(attacks=dict(siege.done), kills=kills, quarantined=verdicts["quarantined"], rolled_back=gone, outcome=str(outcome))
    outcome.check()
    assert outcome.duplicate == outcome.unacked == ()
    assert len(outcome.lost) <= gone, "nothing is lost without being counted"
    assert (numbers["pending"], numbers["gap"]) == (0, 0)
    assert numbers["accepted"] == outcome.submitted + siege.poisons == verdicts["trained"] + verdicts["quarantined"] + gone
    assert verdicts["trained"] == outcome.applied
    assert verdicts["quarantined"] + gone - len(outcome.lost) == siege.poisons, "what is quarantined is poison, and only that"
    for name, count in siege.named.items():
        assert status["clients"][name]["accepted"] == count, name
