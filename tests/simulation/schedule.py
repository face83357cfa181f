"""The schedule of the faults of one simulation."""

import random
from dataclasses import dataclass
from typing import Self

CRASH_POINTS = ("anywhere", "before_commit", "after_commit", "in_checkpoint", "after_checkpoint")
"""The points at which a learner dies: between two turns; between receiving and writing; between writing and acknowledging;
with a checkpoint half written; with a checkpoint written and the journal not trimmed."""

CLOCKS = ("right", "steps", "still")
"""The clocks that a starting actor may read: the right one; one that may be a day ahead or behind; one that stands still."""


@dataclass(frozen=True)
class Schedule:
    """The faults of one simulation, drawn from its seed.

    Attributes:
        actors: The number of actors.
        segments: The number of segments that each actor's host produces during the faults.
        faults_s: The duration of the faults, in virtual seconds.
        drop, repeat, damage: The chances that a message is lost, arrives twice, or arrives with one bit changed.
        lie: The chance that an actor receives an acknowledgement of segments that it never sent.
        reorder: True if messages of one connection may overtake each other.
        delay_s: The longest delay of a message.
        lease_s: The lease of the learner.
        learner_restarts, thread_restarts, actor_restarts, partitions: The number of each.
        durable: True if the learner has a disk: a journal and checkpoints that survive the process.
        spooled: True if the actors' queues and numbers survive their processes.
        offpolicy: True if a segment is trained as soon as it is observed.
        pace: The chance that the learner thread reads one more message in a turn.
        checkpoint_s: The mean time between checkpoints.
        rot: The chance that a starting learner finds its newest checkpoint damaged.
        stalls: The number of times that the disk is full for up to 8 seconds.
        copies: The number of times that an earlier copy replaces the learner's disk.
        wipes: The number of times that an empty disk replaces the learner's disk.
        clock: One of `CLOCKS`.
        relics: The number of times that an actor's process is stopped, another one starts under its name (with
            another spool, if there are spools), and the first one continues later.
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
        """True without faults and long delays. No actor may then exceed its credit by more than one segment."""
        faults = self.drop, self.repeat, self.damage, self.lie, self.reorder, self.partitions, self.stalls
        restarts = self.learner_restarts, self.thread_restarts, self.actor_restarts, self.copies, self.wipes, self.relics
        return not any(faults) and not any(restarts) and self.delay_s <= 0.2

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
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
