"""The faults of one simulation."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["CLOCKS", "CRASH_POINTS", "Schedule"]

CRASH_POINTS = ("anywhere", "before_commit", "after_commit", "in_checkpoint", "after_checkpoint")
"""Where a learner dies: between two turns; between taking and writing; between writing and acknowledging; with a checkpoint
half written; with a checkpoint written and the journal not trimmed."""

CLOCKS = ("right", "steps", "still")
"""The time that a starting actor reads: the right one; that, a day more or a day less; or always the same."""


@dataclass(frozen=True)
class Schedule:
    """The faults of one simulation, drawn from its seed.

    Attributes:
        actors: how many.
        segments: how many each actor's host hands over while there are faults.
        faults_s: how long there are faults, in virtual seconds.
        drop, repeat, damage: the chances that a message is lost, comes twice, or comes with a byte changed.
        lie: the chance that an actor is sent an acknowledgement of things that it never sent.
        reorder: whether messages of one connection may overtake each other.
        delay_s: the longest delay of a message.
        lease_s: of the learner.
        learner_restarts, thread_restarts, actor_restarts, partitions: how many of each.
        durable: whether the learner has a disk: a journal and checkpoints that survive it.
        spooled: whether the actors' queues and numbers survive them.
        offpolicy: whether a segment is trained as soon as it is observed.
        pace: how likely the learner thread reads on in a turn.
        checkpoint_s: the mean time between checkpoints.
        rot: the chance that a starting learner finds its newest checkpoint damaged.
        stalls: how often the disk takes nothing for a while.
        copies: how often a dead learner's disk is replaced by a copy made earlier.
        wipes: how often it is replaced by an empty one.
        clock: one of `CLOCKS`.
        relics: how often an actor's process is stopped, another starts under its name (with a
            spool of its own, if there are any), and the first one wakes up again.
    """

    actors: int
    segments: int
    faults_s: float
    drop: float = 0.0
    repeat: float = 0.0
    damage: float = 0.0
    lie: float = 0.0
    reorder: bool = False
    delay_s: float = 0.01
    lease_s: float = 30.0
    learner_restarts: int = 0
    thread_restarts: int = 0
    actor_restarts: int = 0
    partitions: int = 0
    durable: bool = False
    spooled: bool = False
    offpolicy: bool = False
    pace: float = 0.8
    checkpoint_s: float = 1.0
    rot: float = 0.0
    stalls: int = 0
    copies: int = 0
    wipes: int = 0
    clock: str = "right"
    relics: int = 0

    @property
    def clean(self) -> bool:
        """Nothing goes wrong and nobody is slow: credit is kept to the letter."""
        faults = self.drop, self.repeat, self.damage, self.lie, self.reorder, self.partitions, self.stalls
        restarts = self.learner_restarts, self.thread_restarts, self.actor_restarts, self.copies, self.wipes, self.relics
        return not any(faults) and not any(restarts) and self.delay_s <= 0.2

    @classmethod
    def draw(cls, rng: random.Random) -> Schedule:
        """A random schedule."""
        bad, durable = rng.random() < 0.8, rng.random() < 0.65
        return cls(
            actors=rng.randint(1, 3),
            segments=rng.randint(5, 25),
            faults_s=rng.choice([4.0, 10.0, 20.0]),
            drop=rng.choice([0.0, 0.05, 0.3]) if bad else 0.0,
            repeat=rng.choice([0.0, 0.1]) if bad else 0.0,
            damage=rng.choice([0.0, 0.0, 0.02]) if bad else 0.0,
            lie=rng.choice([0.0, 0.0, 0.05]) if bad else 0.0,
            reorder=bad and rng.random() < 0.5,
            delay_s=rng.choice([0.01, 0.2, 2.0]),
            lease_s=rng.choice([4.0, 30.0]),
            learner_restarts=rng.choice([0, 1, 2, 3]) if durable else rng.choice([0, 0, 1, 2]),
            thread_restarts=rng.choice([0, 0, 1, 2]),
            actor_restarts=rng.choice([0, 0, 1, 2]),
            partitions=rng.choice([0, 0, 1, 2]),
            durable=durable,
            spooled=rng.random() < 0.5,
            offpolicy=rng.random() < 0.3,
            pace=rng.choice([0.8, 0.8, 0.1]),
            checkpoint_s=rng.choice([0.3, 1.0, 4.0]),
            rot=rng.choice([0.0, 0.5]),
            stalls=rng.choice([0, 0, 1, 2]) if bad else 0,
            copies=rng.choice([0, 0, 0, 1]) if durable else 0,
            wipes=rng.choice([0, 0, 0, 0, 1]) if durable else 0,
            clock=rng.choice(CLOCKS),
            relics=rng.choice([0, 0, 0, 1]),
        )
