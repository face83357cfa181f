"""The limit on the distance of drawn samples and inserted steps from their ratio."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesPerInsert:
    """A ratio between drawn samples and inserted steps, for which training and acting both wait.

    It is the rule of Reverb's rate limiter ``SampleToInsertRatio`` (Cassirer et al. 2021, section 3.4). The *difference*
    ``ratio * (inserted - least) - sampled`` stays between ``-tolerance`` and ``tolerance``. No sample is drawn before `least`
    steps are inserted. The numbers decide, not the time, so training is reproducible.

    Attributes:
        ratio: Samples per inserted step.
        tolerance: Largest absolute difference, in samples.
        least: Number of steps before the first sample.
    """

    ratio: float
    tolerance: float
    least: int

    def samples(self, inserted: int) -> int:
        """Return the number of samples that can have been drawn in all after `inserted` steps."""
        if inserted < max(1, self.least):
            return 0
        return max(0, floor(self.ratio * (inserted - self.least) + self.tolerance))

    def room(self, inserted: int, sampled: int) -> int:
        """Return the number of further steps that can be inserted before more samples are drawn."""
        return max(0, floor((sampled + self.tolerance) / self.ratio) + self.least - inserted)

    def inserts_for(self, samples: int) -> int:
        """Return the number of steps that must be inserted in all before `samples` samples can be drawn in all."""
        least = max(1, self.least)
        steps = max(least, self.least + ceil((samples - self.tolerance) / self.ratio))
        while self.samples(steps) < samples:  # the quotient was rounded
            steps += 1
        while steps > least and self.samples(steps - 1) >= samples:
            steps -= 1
        return steps
