"""The pace of an off-policy training: the units of training that observed steps make due.

The amount of training depends only on the number of observed steps, never on time. After each `train_frequency` environment
steps, one unit of training follows, which consists of `gradient_steps` gradient steps. The steps are counted from the start, as
in Stable-Baselines3 and CleanRL: the first unit follows the first multiple of `train_frequency` above `learning_starts`. With
`samples_per_insert`, a unit follows as soon as this ratio allows it (`SamplesPerInsert`). With `traj_per_epoch`, ended episodes
are counted. So the speed of the actors does not change the number of gradient steps per environment step.
"""

from __future__ import annotations

from dataclasses import dataclass

from rl4sys_zmq.algorithms.offpolicy.offpolicy_parameters import OffPolicyParameters
from rl4sys_zmq.values import Segment


@dataclass(slots=True)
class UnitPace:
    """The counts of observed data and of the units of training that are done.

    Attributes:
        steps: Observed environment steps.
        episodes: Episodes that have ended since `learning_starts`. A part of `max_traj_length` steps counts too.
        units: Units of training that are done, or count as done (`settle`).
        samples: Transitions that units have drawn from the replay, or count as drawn.
    """

    steps: int = 0
    episodes: int = 0
    units: int = 0
    samples: int = 0

    def observe(self, segment: Segment, parameters: OffPolicyParameters) -> None:
        """Count the steps of a segment, and the end of its episode."""
        self.steps += segment.steps
        if self.steps >= parameters.learning_starts:
            self.episodes += segment.ended or segment.capped

    def count_unit(self, parameters: OffPolicyParameters) -> None:
        """Count a unit of training that is done, and the transitions that it has drawn."""
        self.units += 1
        self.samples += parameters.unit_samples

    def due(self, parameters: OffPolicyParameters) -> bool:
        """Return True if a unit of training is due."""
        if (rate := parameters.insert_rate) is not None:
            return self.samples + parameters.unit_samples <= rate.samples(self.steps)
        return self.units < self._units_due(parameters)

    def settle(self, parameters: OffPolicyParameters) -> None:
        """Count as done exactly the units that the observed data make due, because the parameters of the pace are new.

        Otherwise the new parameters would apply to all earlier steps, and make many units due at once or none for long.
        """
        if (rate := parameters.insert_rate) is not None:
            self.samples = rate.samples(self.steps)
        else:
            self.units = max(0, self._units_due(parameters))

    def _units_due(self, parameters: OffPolicyParameters) -> int:
        """Return the number of units that the observed steps or episodes make due in all, without `samples_per_insert`."""
        p = parameters
        if p.traj_per_epoch is None:
            return self.steps // p.train_frequency - p.learning_starts // p.train_frequency
        return self.episodes // p.traj_per_epoch

    def next_unit_steps(self, parameters: OffPolicyParameters) -> int:
        """Return the number of environment steps that the next unit of training needs in all.

        It does not depend on how many steps have been observed, except with `traj_per_epoch`: the lengths of episodes are not
        known beforehand, so it is the number of observed steps.
        """
        p = parameters
        if p.traj_per_epoch is not None:
            return self.steps
        if (rate := p.insert_rate) is not None:
            return rate.inserts_for(self.samples + p.unit_samples)
        return (p.learning_starts // p.train_frequency + self.units + 1) * p.train_frequency

    def missing(self, parameters: OffPolicyParameters, units_per_version: int) -> int:
        """Return the number of environment steps that are missing until the next policy version can be published.

        With `samples_per_insert`, the number is smaller if training lags behind the ratio.
        """
        p = parameters
        next_version = (self.units // units_per_version + 1) * units_per_version
        if p.traj_per_epoch is not None:
            # The lengths of future episodes are unknown. One segment per missing episode never stalls and rarely overshoots.
            missing = max(0, next_version * p.traj_per_epoch - self.episodes) * p.rollout_length
            return max(missing, p.learning_starts - self.steps, 0)
        if (rate := p.insert_rate) is not None:
            due = rate.inserts_for(self.samples + (next_version - self.units) * p.unit_samples) - self.steps
            return max(0, min(due, rate.room(self.steps, self.samples)))
        return max(0, (p.learning_starts // p.train_frequency + next_version) * p.train_frequency - self.steps)
