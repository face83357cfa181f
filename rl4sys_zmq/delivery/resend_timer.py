"""The timer after which an actor resends the segments that the learner has not acknowledged.

The pause follows the measured time to an acknowledgement, as in TCP (RFC 6298). With a fixed pause, a learner that takes longer
to acknowledge would receive each segment several times, and would take even longer.
"""

from __future__ import annotations

import random

from rl4sys_zmq.liveness import SEGMENT_RESEND, Backoff, jittered

# The weights of a new measurement in the running mean and in the running mean deviation (RFC 6298, section 2).
MEAN_GAIN, DEVIATION_GAIN = 1 / 8, 1 / 4
# The pause is the mean time to an acknowledgement and this many mean deviations.
DEVIATIONS = 4


class ResendTimer:
    """The timer of an actor that tells when to send unacknowledged segments again (RFC 6298 and Karn's algorithm).

    The pause doubles each time that it passes without an acknowledgement, up to `SEGMENT_RESEND.most_s`. It stays so long until
    a segment that was sent only once is acknowledged: the acknowledgement of a resent segment does not show which of its sends
    it answers. After a refusal any acknowledgement is enough, because the learner then was not slow.
    """

    __slots__ = ("_deviation_s", "_mean_s", "_measured", "_pause_s", "_refused", "_resends", "_rng", "at")

    def __init__(self, rng: random.Random) -> None:
        self.at = 0.0  # time of the next resend, in seconds; 0.0 if the timer is stopped
        self._rng = rng
        self._mean_s = self._deviation_s = 0.0
        self._pause_s = SEGMENT_RESEND.first_s
        self._resends = 0
        self._refused = False
        self._measured: tuple[int, float] | None = None

    def expired(self, now: float) -> bool:
        """Return True if the timer runs and its pause is over."""
        return self.at != 0.0 and now >= self.at

    def stop(self) -> None:
        """Stop the timer, because no segment waits for its acknowledgement. The estimate stays."""
        self.at = 0.0
        self._measured = None

    def reset(self) -> None:
        """Stop the timer, and do not double the next pause: the session starts again. The estimate stays."""
        self.stop()
        self._resends, self._refused = 0, False

    def sent(self, now: float, seq: int) -> None:
        """Note that a segment was sent for the first time. Start the timer if it is stopped."""
        if self._measured is None:
            self._measured = (seq, now)
        if self.at == 0.0:
            self._start(now)

    def resent(self, now: float) -> None:
        """Note that all segments without an acknowledgement were sent again. After an expired pause, the next one is doubled."""
        self._measured = None
        self._resends += self.expired(now)
        self._start(now)

    def refused(self) -> None:
        """Note that the learner has refused a message, for example because of a rate limit."""
        self._refused = True

    def acknowledged(self, now: float, received: int, waiting: bool) -> None:
        """Note that the learner has received all segments below `received`. Restart if others are still waiting, else stop."""
        if self._measured is not None and self._measured[0] < received:
            self._estimate(now - self._measured[1])
            self._measured = None
            self._resends = 0
        if self._refused:
            self._resends, self._refused = 0, False
        if waiting:
            self._start(now)
        else:
            self.stop()

    def _estimate(self, took_s: float) -> None:
        if self._mean_s == 0.0:
            self._mean_s, self._deviation_s = took_s, took_s / 2
        else:
            self._deviation_s += DEVIATION_GAIN * (abs(self._mean_s - took_s) - self._deviation_s)
            self._mean_s += MEAN_GAIN * (took_s - self._mean_s)
        self._pause_s = max(SEGMENT_RESEND.first_s, self._mean_s + DEVIATIONS * self._deviation_s)

    def _start(self, now: float) -> None:
        pause_s = Backoff(self._pause_s, SEGMENT_RESEND.most_s).pause_s(self._resends)
        self.at = now + jittered(pause_s, self._rng)
