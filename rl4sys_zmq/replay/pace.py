"""The pace of the training on a replay: the units of training that observed steps make due."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil, floor

from rl4sys_zmq.values import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesPerInsert:
    """The ratio between drawn samples and inserted steps. Training and acting wait for each other to keep it.

    The rule is that of Reverb's rate limiter ``SampleToInsertRatio`` (Cassirer et al. 2021, section 3.4). The *difference*
    ``ratio * (inserted - least) - sampled`` stays between ``-tolerance`` and ``tolerance``. No sample is drawn before `least`
    steps are inserted. The rule depends on these counts and not on time, so training is reproducible.

    Attributes:
        ratio: Samples per inserted step.
        tolerance: Largest absolute difference, in samples.
        least: Number of steps before the first sample.
    """

    ratio: float
    tolerance: float
    least: int

    def samples(self, inserted: int) -> int:
        """Return the total number of samples that may be drawn after `inserted` steps in all."""
        if inserted < max(1, self.least):
            return 0
        return max(0, floor(self.ratio * (inserted - self.least) + self.tolerance))

    def room(self, inserted: int, sampled: int) -> int:
        """Return the number of further steps that may be inserted before more samples are drawn."""
        return max(0, floor((sampled + self.tolerance) / self.ratio) + self.least - inserted)

    def inserts_for(self, samples: int) -> int:
        """Return the total number of steps that must be inserted before `samples` samples in all may be drawn."""
        least = max(1, self.least)
        steps = max(least, self.least + ceil((samples - self.tolerance) / self.ratio))
        while self.samples(steps) < samples:  # the quotient was rounded
            steps += 1
        while steps > least and self.samples(steps - 1) >= samples:
            steps -= 1
        return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceRule:
    """The rule that makes units of training due: by steps, by ended episodes (`traj_per_epoch`), or by an `insert_rate`.

    As in Stable-Baselines3 and CleanRL, the first unit follows the first multiple of `train_frequency` above `learning_starts`.
    With an `insert_rate`, a unit follows as soon as its ratio allows it. A unit draws `unit_samples` transitions.
    """

    learning_starts: int
    train_frequency: int
    rollout_length: int
    unit_samples: int = 0
    traj_per_epoch: int | None = None
    insert_rate: SamplesPerInsert | None = None

    @classmethod
    def of(cls, parameters: object) -> PaceRule:
        """Return the rule with the attributes of `parameters` that have the names of its fields."""
        return cls(**{f.name: getattr(parameters, f.name) for f in fields(cls) if hasattr(parameters, f.name)})


@dataclass(slots=True)
class UnitSchedule:
    """The schedule of the units of training: a `PaceRule`, and the counts from which it decides when the next unit is due.

    Attributes:
        episodes: Episodes that have ended since `learning_starts`. A part of an episode with `max_traj_length` steps counts
            too.
        units: The number of units that are done, or count as done (`settle`).
        samples: The number of transitions that the units have drawn.
    """

    rule: PaceRule
    steps: int = 0
    episodes: int = 0
    units: int = 0
    samples: int = 0

    def observe(self, segment: Segment) -> None:
        self.steps += segment.steps
        if self.steps >= self.rule.learning_starts:
            self.episodes += segment.ended or segment.capped

    def count_unit(self) -> None:
        self.units += 1
        self.samples += self.rule.unit_samples

    @property
    def due(self) -> bool:
        if (rate := self.rule.insert_rate) is not None:
            return self.samples + self.rule.unit_samples <= rate.samples(self.steps)
        return self.units < self._units_due()

    def settle(self) -> None:
        """Count as done exactly the units that are due, because the rule is new.

        Otherwise a new rule would apply to all earlier steps, and make many units due at once, or no unit for long.
        """
        if (rate := self.rule.insert_rate) is not None:
            self.samples = rate.samples(self.steps)
        else:
            self.units = max(0, self._units_due())

    def _units_due(self) -> int:
        """Return the total number of units due so far, by a rule without an `insert_rate`."""
        rule = self.rule
        if rule.traj_per_epoch is None:
            return self.steps // rule.train_frequency - rule.learning_starts // rule.train_frequency
        return self.episodes // rule.traj_per_epoch

    def next_unit_steps(self) -> int:
        """Return the total number of steps after which the next unit is due. With `traj_per_epoch`, it must be due now."""
        rule = self.rule
        if rule.traj_per_epoch is not None:
            return self.steps
        if rule.insert_rate is not None:
            return rule.insert_rate.inserts_for(self.samples + rule.unit_samples)
        return (rule.learning_starts // rule.train_frequency + self.units + 1) * rule.train_frequency

    def missing(self, units_per_version: int) -> int:
        """Return the number of further steps that actors may collect for the next version.

        This is the number until the version is due; with an `insert_rate`, fewer if training lags behind.
        """
        rule = self.rule
        next_version = (self.units // units_per_version + 1) * units_per_version
        if rule.traj_per_epoch is not None:
            # The lengths of future episodes are unknown. One segment per missing episode never stalls and rarely overshoots.
            missing = max(0, next_version * rule.traj_per_epoch - self.episodes) * rule.rollout_length
            return max(missing, rule.learning_starts - self.steps, 0)
        if (rate := rule.insert_rate) is not None:
            due = rate.inserts_for(self.samples + (next_version - self.units) * rule.unit_samples) - self.steps
            return max(0, min(due, rate.room(self.steps, self.samples)))
        return max(0, (rule.learning_starts // rule.train_frequency + next_version) * rule.train_frequency - self.steps)
