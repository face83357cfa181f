"""The timeouts after which a silent peer counts as disconnected, and the pauses between retries.

Some peers must send regularly: an actor sends heartbeats, its learner answers them, and a publisher sends a beacon once a
second. A server and a sidecar only reply. Their silence counts only while a request has no reply. After the silence timeout,
the side that connects replaces its sockets, because the connection can be half open: TCP takes many minutes to detect that.

This module reads no clock and does no I/O. Callers pass the time in seconds, always from the same monotonic clock.
"""

from __future__ import annotations

import random

from rl4sys_zmq.immutable import immutable

MISSED_MESSAGES = 3  # in a row, lost or late: then their sender counts as silent

# An actor and its learner
HEARTBEAT_S = 1.0  # an actor sends at least this often, and the learner replies; `Welcome` announces it
HEARTBEAT_LIMITS_S = (0.05, 60.0)  # what an actor accepts from a learner
SILENCE_S = MISSED_MESSAGES * HEARTBEAT_S  # then a learner ends the session of an actor, and a caller without a reply reconnects
MOST_BEHIND_S = 10.0  # while messages wait at an overloaded learner, it ends the session of an actor by so much later
HELLO_RETRY_S = 0.5  # short, because an actor can deliver nothing before the answer
CLIENT_START_S = 600.0  # an actor's constructor waits at most this long while the learner answers that it starts the client
REFUSED_RETRY_S = 2.0  # between HELLOs after a permanent refusal, which ends only when a person changes something

# A publisher and its subscribers
BEACON_S = 1.0  # for a learner and for a server
PUBLISHER_SILENCE_S = 5.0  # then a subscriber reconnects; above `SILENCE_S`, because a new subscription costs a fetch
NEWCOMER_BEACON_S = 0.05  # between two beacons for new subscribers, because each beacon goes to all subscribers
FETCH_RETRY_S = 1.0  # before missing weights are fetched again
LATEST_RETRY_S = 5.0  # before a newest publication is requested again; long, because the caller's session resends the request
WEIGHTS_TOPIC, BEACON_TOPIC = b"W", b"B"  # the first byte of a learner's topics

# A relay, its upstream and its children
FOLLOW_S = 1.0  # between two `FollowWeights` of one child for one client; also the relay's towards its upstream
FOLLOW_AGAIN_S = 0.25  # instead of `FOLLOW_S`, while children of a relay wait for weights that it has not received
RELAY_ANSWER_S = 1.5  # longest wait for the first answer of a relay, before an actor tries another one
RELAY_WAIT_S = 3.0  # then an actor that no relay serves uses the learner, and goes on trying its relays
RELAY_PROVEN_S = 10.0  # an actor that leaves a relay after a shorter service waits longer before the next try
RELAY_SILENCE_S = MISSED_MESSAGES * FOLLOW_S  # then a child leaves its relay, and a relay reconnects to its upstream
RELAY_BEHIND_S = 3.0  # an actor leaves a relay that lacks a version for so long after the learner has announced it
RELAY_CHILD_S = 10.0  # silence after which a relay discards its record of a child
RELAY_CLIENT_S = 60.0  # after which a relay drops a client that no child has requested
RELAY_SHOWN_S = 600.0  # for which a learner's status shows a relay that has gone

# Connections to a learner or a relay
IDLE_CONNECTION_S = 30.0  # without a complete message, then the connection is closed; actors and relays send each second
BUSY_CONNECTION_S = 1.5  # the same, while memory runs out

# A server and its callers
SLOWEST_BYTES_S = 1 << 20  # bytes per second; large calls extend `SILENCE_S` by the time that they take at this rate
SESSION_S = 600.0  # silence after which a server discards a caller's session; a waiting caller resends every few seconds
INFERENCE_RETRY_S = 1.0  # an actor with ``inference: auto`` acts locally for this long after the service failed
ENV_LEASE_S = 60.0  # silence after which another caller can take an environment, by default
RENEWAL_LIMITS_S = (0.05, 3600.0)  # of the time between renewals, `MISSED_MESSAGES` per lease

# A sidecar and its host
PING_S = 5.0  # silence after which a sidecar gets a `PING`
PING_TIMEOUT_S = 20.0  # from the `PING` on, because the host can have been stopped too
SIDECAR_START_S = 60.0  # until the first command of a sidecar, which first imports its modules

# A worker and its gateway
WORKER_REPORT_S = 1.0  # between two signs of life of a worker
WORKER_SILENCE_S = 5.0  # then ``status`` reports the worker as silent, for example because it is stopped
GATEWAY_SILENCE_S = 5.0  # then a worker on another machine ends; the gateway sends it a sign of life each second
REMOTE_WORKER_SILENCE_S = 20.0  # then the gateway gives up a worker on another machine, and its client gets another one

# The connections of libzmq: each socket draws its first and its longest pause, in milliseconds
RECONNECT_MS = (50, 500)
RECONNECT_MAX_MS = (2_000, 4_000)  # an actor reconnects within 5 s after a network failure ends


def jittered(pause_s: float, rng: random.Random) -> float:
    """Return a random pause within 20 % of `pause_s`, in seconds, so that many peers do not retry at the same moments."""
    return pause_s * rng.uniform(0.8, 1.2)


def is_silent(now: float, received_s: float, timeout_s: float) -> bool:
    """Return True if more than `timeout_s` seconds have passed since the peer's last message, at the time `received_s`."""
    return now - received_s > timeout_s


@immutable
class Backoff:
    """The lengths of the pauses between retries: `first_s` seconds, then doubled after each attempt, up to `most_s` seconds."""

    first_s: float
    most_s: float

    def pause_s(self, attempts: int) -> float:
        """Return the pause, in seconds, before the next attempt if there were `attempts` retries so far."""
        return min(self.first_s * 2.0 ** min(attempts, 64), self.most_s)


SEGMENT_RESEND = Backoff(0.5, 10.0)  # the shortest and the longest pause; `ResendTimer` measures the acknowledgements
CALL_RESEND = Backoff(0.5, 4.0)  # up to shorter pauses, because a thread can be waiting for the reply
RELAY_RETRY = Backoff(5.0, 60.0)  # before an actor that has left all relays tries them again
IO_RESTART = Backoff(0.2, 5.0)  # before an actor creates its sockets again after an exception
WORKER_RESTART = Backoff(0.2, 5.0)  # before a client whose worker has crashed gets another one


class SilenceTimer:
    """A timer of fixed length that expires unless it is restarted in time, for example at each received message.

    Attributes:
        after_s: The time from a start to the expiry, in seconds.
        started_s: The time of the last start, in seconds.
    """

    __slots__ = ("after_s", "started_s")

    def __init__(self, after_s: float, now: float = 0.0) -> None:
        self.after_s, self.started_s = after_s, now

    def restart(self, now: float) -> None:
        """Start the timer again at the time `now`."""
        self.started_s = now

    def expired(self, now: float) -> bool:
        """Return True if the time `now` is at or after the deadline."""
        return now >= self.deadline

    @property
    def deadline(self) -> float:
        """The time at which the timer expires, in seconds."""
        return self.started_s + self.after_s
