"""The pace of an off-policy training: the units of training that observed steps make due, whatever the speed of the actors.

As in Stable-Baselines3 and CleanRL, the first unit follows the first multiple of `train_frequency` above `learning_starts`. With
`samples_per_insert`, a unit follows as soon as this ratio allows it; with `traj_per_epoch`, ended episodes are counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from rl4sys_zmq.algorithms.offpolicy.offpolicy_parameters import OffPolicyParameters
from rl4sys_zmq.values import Segment


@dataclass(slots=True)
class UnitPace:
    """The counts of observed data and of the units of training that are done, or count as done (`settle`).

    Attributes:
        episodes: Episodes that have ended since `learning_starts`. A part of `max_traj_length` steps counts too.
        samples: Transitions that the units have drawn.
    """

    steps: int = 0
    episodes: int = 0
    units: int = 0
    samples: int = 0

    def observe(self, segment: Segment, parameters: OffPolicyParameters) -> None:
        self.steps += segment.steps
        if self.steps >= parameters.learning_starts:
            self.episodes += segment.ended or segment.capped

    def count_unit(self, parameters: OffPolicyParameters) -> None:
        self.units += 1
        self.samples += parameters.unit_samples

    def due(self, parameters: OffPolicyParameters) -> bool:
        if (rate := parameters.insert_rate) is not None:
            return self.samples + parameters.unit_samples <= rate.samples(self.steps)
        return self.units < self._units_due(parameters)

    def settle(self, parameters: OffPolicyParameters) -> None:
        """Count as done exactly the units that are due, because the parameters of the pace are new.

        Otherwise they would apply to all earlier steps, and make many units due at once or none for long.
        """
        if (rate := parameters.insert_rate) is not None:
            self.samples = rate.samples(self.steps)
        else:
            self.units = max(0, self._units_due(parameters))

    def _units_due(self, parameters: OffPolicyParameters) -> int:
        """Return the units that are due in all, without `samples_per_insert`."""
        p = parameters
        if p.traj_per_epoch is None:
            return self.steps // p.train_frequency - p.learning_starts // p.train_frequency
        return self.episodes // p.traj_per_epoch

    def next_unit_steps(self, parameters: OffPolicyParameters) -> int:
        """Return the steps that the next unit needs in all. With `traj_per_epoch`, they are known only when observed."""
        p = parameters
        if p.traj_per_epoch is not None:
            return self.steps
        if (rate := p.insert_rate) is not None:
            return rate.inserts_for(self.samples + p.unit_samples)
        return (p.learning_starts // p.train_frequency + self.units + 1) * p.train_frequency

    def missing(self, parameters: OffPolicyParameters, units_per_version: int) -> int:
        """Return the steps until the next version; fewer if training lags behind `samples_per_insert`."""
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
