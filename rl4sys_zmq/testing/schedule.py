"""The faults of one simulation."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Schedule"]


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
    """

    actors: int
    segments: int
    faults_s: float
    drop: float
    repeat: float
    damage: float
    lie: float
    reorder: bool
    delay_s: float
    lease_s: float
    learner_restarts: int
    thread_restarts: int
    actor_restarts: int
    partitions: int

    @property
    def clean(self) -> bool:
        """Nothing goes wrong and nobody is slow: credit is kept to the letter."""
        faults = self.drop, self.repeat, self.damage, self.lie, self.reorder, self.partitions
        restarts = self.learner_restarts, self.thread_restarts, self.actor_restarts
        return not any(faults) and not any(restarts) and self.delay_s <= 0.2

    @classmethod
    def draw(cls, rng: random.Random) -> Schedule:
        """A random schedule."""
        bad = rng.random() < 0.8
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
            learner_restarts=rng.choice([0, 0, 1, 2]),
            thread_restarts=rng.choice([0, 0, 1]),
            actor_restarts=rng.choice([0, 0, 1, 2]),
            partitions=rng.choice([0, 0, 1, 2]),
        )
