"""The liveness of peers: heartbeats, beacons, silence timeouts, and the pauses between attempts.

Some peers must send regularly: an actor and its learner (heartbeats and their answers), and a publisher (beacons). Others only
reply: a server, a sidecar. Their silence counts only while a request has no reply. After the silence timeout, the side that
connects replaces its sockets, because the connection can be half open: TCP takes many minutes to detect that.

Nothing here reads a clock or does I/O. Times are in seconds, on any one monotonic clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

MISSED_MESSAGES = 3
"""The number of expected messages in a row that can be lost or late before their sender counts as silent."""

# ---- an actor and its learner

HEARTBEAT_S = 1.0
"""The longest time between two messages of an actor. The learner answers each. Its `Welcome` announces the time."""
HEARTBEAT_LIMITS_S = (0.05, 60.0)
"""The range of such times that an actor accepts from a learner."""
SILENCE_S = MISSED_MESSAGES * HEARTBEAT_S
"""The silence after which a learner ends the session of an actor, and a caller with an unanswered call reconnects."""
HELLO_RETRY_S = 0.5
"""The pause between two HELLOs: short, because the actor can deliver nothing before the answer."""
REFUSED_RETRY_S = 2.0
"""The pause between two HELLOs after a permanent refusal, which ends only when a person changes something."""

# ---- a publisher and its subscribers

BEACON_S = 1.0
"""The interval of the beacons of a learner and of a server."""
WEIGHTS_TOPIC, BEACON_TOPIC = b"W", b"B"
"""The first bytes of the topics of a learner's weights and beacons."""
PUBLISHER_SILENCE_S = 5.0
"""The silence after which a subscriber reconnects. It is above `SILENCE_S`, because a new subscription costs a fetch."""
FETCH_RETRY_S = 1.0
"""The pause before missing weights are fetched again."""
LATEST_RETRY_S = 5.0
"""The pause before a server's newest publication is requested again: a long one, because the caller's session resends the call."""

# ---- a server and its callers

SLOWEST_BYTES_S = 1 << 20
"""The slowest transfer rate to allow for, in bytes per second. It extends `SILENCE_S` for large calls."""
SESSION_S = 600.0
"""The silence after which a server discards the session of a caller. A waiting caller resends its call every few seconds."""
INFERENCE_RETRY_S = 1.0
"""The time for which an actor with ``inference: auto`` acts locally after a failure of the learner's inference service."""
ENV_LEASE_S = 60.0
"""The silence after which another caller can take an environment, by default. The caller renews its lease three times in it."""
RENEWAL_LIMITS_S = (0.05, 3600.0)
"""The range of times between two renewals of a lease."""

# ---- a sidecar and its host

PING_S = 5.0
"""The silence after which a sidecar gets a `PING`."""
PING_TIMEOUT_S = 20.0
"""The longest wait for the reply to a `PING`. It counts from the `PING`, because the host can have been stopped too."""
SIDECAR_START_S = 60.0
"""The longest wait for the first command of a sidecar, which first imports its modules."""

# ---- libzmq

RECONNECT_MS = (50, 500)
"""The range of the first pause before libzmq reconnects, in milliseconds."""
RECONNECT_MAX_MS = (2_000, 4_000)
"""The range of the longest such pause, in milliseconds. An actor reconnects within 5 s after a network failure ends."""


def jittered(pause_s: float, rng: random.Random) -> float:
    """Return a random pause within 20 % of `pause_s`, so that many peers do not repeat their messages at the same moments."""
    return pause_s * rng.uniform(0.8, 1.2)


def is_silent(now: float, received_s: float, timeout_s: float) -> bool:
    """Return True if the last message of a peer, at `received_s`, is at least `timeout_s` seconds ago."""
    return now - received_s >= timeout_s


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between attempts: `first_s` seconds, then twice as long after each attempt, at most `most_s` seconds."""

    first_s: float
    most_s: float

    def pause_s(self, attempts: int) -> float:
        """Return the pause after `attempts` earlier attempts."""
        return min(self.first_s * 2.0 ** min(attempts, 64), self.most_s)


SEGMENT_RESEND = Backoff(0.5, 10.0)
"""Before unreceived segments are resent: up to long pauses, because a learner that is behind gets all of them again."""
CALL_RESEND = Backoff(0.5, 4.0)
"""Before a call is resent: up to shorter pauses, because a thread can be waiting for the reply."""
IO_RESTART = Backoff(0.2, 5.0)
"""Before an actor creates its sockets again after an exception."""


class Timer:
    """A timer of fixed length: restarted by each message sent or received, or each beacon, it expires when none follows.

    Attributes:
        after_s: The length, in seconds.
        started_s: The time of the last start.
    """

    __slots__ = ("after_s", "started_s")

    def __init__(self, after_s: float, now: float = 0.0) -> None:
        self.after_s, self.started_s = after_s, now

    def restart(self, now: float) -> None:
        """Start the timer again."""
        self.started_s = now

    def expired(self, now: float) -> bool:
        """Return True from the deadline on."""
        return now >= self.deadline

    @property
    def deadline(self) -> float:
        """The time at which the timer expires."""
        return self.started_s + self.after_s
